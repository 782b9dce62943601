"""Discarded steps, and backward passes that are no part of one: docs/failures.md, row 21."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import exact, loss, parameters, train, values, wrap
from state_helpers import assert_same
from test_nonfinite import STATEFUL
from torch import nn

import dgc
from dgc.compressors import SampledTopK
from dgc.engines import LocalEngine

COMPOSITIONS = {
    'dense': dgc.dense,
    'dgc': lambda **s: dgc.deep_gradient_compression(0.02, **s),
    **{name: STATEFUL[name] for name in ('hierarchical', 'gtopk', 'powersgd', 'random-k')},
}


def by_zero_grad(optimizer, backward):
    """The usual guard: ``loss.backward(); if …: optimizer.zero_grad(); continue``."""
    backward()
    optimizer.zero_grad()


def by_discard(optimizer, backward):
    backward()
    optimizer.discard()
    optimizer.step()


def before_backward(optimizer, backward):
    """``if loss.isnan(): optimizer.discard()`` in the place of a backward pass."""
    optimizer.discard()
    optimizer.step()


@pytest.mark.parametrize('discard', [by_zero_grad, by_discard, before_backward])
@pytest.mark.parametrize('bad_ranks', [{1}, {0, 1, 2, 3}], ids=['one', 'all'])
@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_all_ranks_skip_a_step_that_any_rank_discards_without_a_trace(make, bad_ranks, discard):
    def trained(steps, bad_step):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, make(nonfinite='skip'), engine, momentum=0.9)
            for step in steps:
                optimizer.zero_grad()
                backward = loss(named, engine.rank, step).backward
                if step == bad_step and engine.rank in bad_ranks:
                    discard(optimizer, backward)
                    continue
                backward()
                optimizer.step()
            state = optimizer.state_dict()
            return values(named), state, state.pop('steps')

        return dgc.simulate(4, worker)

    discarded, without = trained(range(4), 2), trained([0, 1, 3], None)
    for ours, theirs in zip(discarded, without, strict=True):
        assert_same(ours[:2], theirs[:2])
        assert_same(ours[0], discarded[0][0])
        assert (ours[2], theirs[2]) == (4, 3)


def test_a_single_process_discards_as_well():
    named, plain = parameters(), parameters()
    optimizer = wrap(named, exact(nonfinite='skip'), momentum=0.9)
    other = wrap(plain, exact(nonfinite='skip'), momentum=0.9)
    train(optimizer, named, 1)
    loss(named, 0, 9).backward()
    optimizer.zero_grad()
    train(optimizer, named, [1, 2])
    train(other, plain, 3)
    assert all(map(torch.equal, values(named), values(plain)))


def test_a_step_after_a_discarded_one_is_taken():
    """The wish to discard ends with the step."""
    named = parameters()
    optimizer = wrap(named, dgc.dense(nonfinite='skip'))
    optimizer.discard()
    optimizer.step()
    loss(named, 0, 0).backward()
    assert optimizer.synchronize()


class TestRefusals:
    def test_zero_grad_says_that_step_was_not_called_and_what_to_do(self):
        named = parameters()
        optimizer = wrap(named, exact())
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError) as caught:
            optimizer.zero_grad()
        for words in ('step() was not called', "nonfinite='skip'", 'optimizer.no_sync()'):
            assert words in str(caught.value)
        assert 'load_state_dict' not in str(caught.value)
        optimizer.step()  # nothing is lost by it

    def test_after_an_error_it_says_so(self):
        named = parameters()
        optimizer = wrap(named, exact())
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError, match=r'step\(\) was not called since') as caught:
            loss(named, 0, 1).backward()
        assert 'no_sync' in str(caught.value)
        with pytest.raises(RuntimeError, match=r'load_state_dict\(\) first'):
            optimizer.zero_grad()

    def test_discard_needs_a_copy_of_the_state(self):
        named = parameters()
        optimizer = wrap(named, exact())
        with pytest.raises(RuntimeError, match="only with nonfinite='skip'"):
            optimizer.discard()

    def test_discard_comes_before_synchronize(self):
        named = parameters()
        optimizer = wrap(named, exact(nonfinite='skip'))
        loss(named, 0, 0).backward()
        optimizer.synchronize()
        with pytest.raises(RuntimeError, match='too late'):
            optimizer.discard()


class TestNoSync:
    def test_a_fast_gradient_sign_attack(self):
        """A backward pass for the gradient of the inputs, of which the parameters' is dropped."""

        def train(named, optimizer, pause):
            for step in range(3):
                inputs = torch.full((64, 20), 0.1, requires_grad=True)
                with pause(optimizer):
                    (named[0][1] * inputs).square().sum().backward()
                optimizer.zero_grad()
                attacked = (inputs + 0.1 * inputs.grad.sign()).detach()
                ((named[0][1] * attacked).square().sum() + loss(named, 0, step)).backward()
                optimizer.step()
            return values(named)

        named, plain = parameters(), parameters()
        result = train(named, wrap(named, dgc.dense()), lambda optimizer: optimizer.no_sync())
        sgd = torch.optim.SGD([p for _, p in plain], lr=0.1)
        right = train(plain, sgd, lambda optimizer: torch.enable_grad())
        torch.testing.assert_close(result, right)

    def test_it_accumulates_as_ddp_does(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, exact(), engine, momentum=0.9)
            for step in range(3):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                with optimizer.no_sync():
                    loss(named, engine.rank, 2 * step).backward()
                loss(named, engine.rank, 2 * step + 1).backward()
                optimizer.step()
            return values(named)

        def together(engine):
            named = parameters()
            optimizer = wrap(named, exact(), engine, momentum=0.9, batches_per_step=2)
            for step in range(3):
                optimizer.zero_grad()
                for half in (0, 1):
                    loss(named, engine.rank, 2 * step + half).backward()
                optimizer.step()
            return values(named)

        for one, other in zip(dgc.simulate(2, worker), dgc.simulate(2, together), strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize('make', [dgc.dense, lambda: dgc.deep_gradient_compression(1.0)])
    def test_two_networks_that_train_against_each_other(self, make):
        """DCGAN's loop: the generator's loss goes backward through the discriminator too."""
        if make is not dgc.dense:
            assert isinstance(make().compressor, SampledTopK)

        def train(wrap_both, no_sync):
            torch.manual_seed(0)
            g, d = nn.Linear(3, 4), nn.Linear(4, 1)
            of_g, of_d = wrap_both(g), wrap_both(d)
            for step in range(4):
                noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
                of_d.zero_grad()
                d(torch.ones(5, 4)).sigmoid().log().mean().neg().backward()
                fake = g(noise)
                (1 - d(fake.detach()).sigmoid()).log().mean().neg().backward()
                of_d.step()
                of_g.zero_grad()
                with no_sync(of_d):
                    d(fake).sigmoid().log().mean().neg().backward()
                of_g.step()
            return [p.detach() for p in [*g.parameters(), *d.parameters()]]

        def wrapped(network):
            passes = 2 if network.in_features == 4 else 1
            sgd = torch.optim.SGD(network.parameters(), lr=0.5)
            return dgc.DistributedOptimizer(
                sgd, network.named_parameters(), make(), LocalEngine(), batches_per_step=passes
            )

        result = train(wrapped, lambda optimizer: optimizer.no_sync())
        right = train(
            lambda network: torch.optim.SGD(network.parameters(), lr=0.5),
            lambda optimizer: torch.enable_grad(),
        )
        torch.testing.assert_close(result, right)
