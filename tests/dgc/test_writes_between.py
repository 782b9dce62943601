"""What a training loop writes to gradients between backward() and step(): docs/failures.md, row 11.

A change that the tensor's version shows is refused (test_optimizer_refusals.py). The others do not
show, and must not make ranks differ.
"""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import exact, loss, parameters, values, wrap

import dgc
from dgc.planner import BySize, Whole


def clamp(optimizer, named, rank, step):
    """As the issue has it: on some rank, of some parameter, through ``.data``."""
    for index, (_, parameter) in enumerate(named):
        if (rank + step + index) % 2:
            parameter.grad.data.clamp_(-0.01 * (rank + 1), 0.01)


def unscale(optimizer, named, rank, step):
    scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** (rank + 1))
    scaler.scale(torch.ones(()))  # makes the scale
    scaler.unscale_(optimizer)


COMPOSITIONS = {
    'dense': dgc.dense,
    'dense in one': lambda: dgc.dense(planner=Whole()),
    'per tensor': exact,
    'in pieces': lambda: exact(planner=BySize()),
    'uncompressed for now': lambda: exact(1.0, planner=Whole()),
    'skip': lambda: exact(nonfinite='skip'),
    'powersgd': lambda: dgc.ALGORITHMS['power-sgd'].make(),
    'demo': lambda: dgc.ALGORITHMS['demo'].make(),
}


@pytest.mark.parametrize('write', [clamp, unscale])
@pytest.mark.parametrize('set_to_none', [True, False])
@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_a_write_that_no_version_shows_does_not_make_ranks_differ(make, write, set_to_none):
    """Fails where the result lies in ``.grad`` before step(): 8e-2 after 8 steps, dense."""

    def worker(engine):
        named, composition = parameters(), make()
        momentum = 0.9 if composition.memory.holds_momentum else 0.0
        optimizer = wrap(named, composition, engine, momentum=momentum)
        for step in range(3):
            optimizer.zero_grad(set_to_none)
            loss(named, engine.rank, step).backward()
            write(optimizer, named, engine.rank, step)
            optimizer.step()
        return values(named)

    first, *others = dgc.simulate(3, worker)
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_until_synchronize_a_gradient_is_this_rank_s_own(make):
    def worker(engine):
        named = parameters()
        optimizer = wrap(named, make(), engine)
        own = torch.autograd.grad(loss(named, engine.rank, 0), [p for _, p in named])
        loss(named, engine.rank, 0).backward()
        held = [parameter.grad.clone() for _, parameter in named]
        optimizer.synchronize()
        return all(map(torch.equal, held, own)), [p.grad.clone() for _, p in named]

    (is_own, mean), (other_is_own, other_mean) = dgc.simulate(2, worker)
    assert is_own and other_is_own
    assert all(map(torch.equal, mean, other_mean))


@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_other_memory_behind_a_gradient_is_refused(make):
    """``grad.data = …``, which changes neither the tensor object nor its version."""
    named = parameters()
    optimizer = wrap(named, make())
    loss(named, 0, 0).backward()
    named[0][1].grad.data = torch.zeros(named[0][1].shape)
    with pytest.raises(RuntimeError, match=r'the gradient of wide\.weight was changed between'):
        optimizer.step()
