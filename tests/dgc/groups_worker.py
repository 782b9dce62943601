"""Cases of test_groups: several optimizers on one engine, engines of some ranks, spawned programs.

They run on every engine; those of torch's groups in a torchrun world, whose engine has made the
default group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from dgc_helpers import parameters, values
from real_worker import collectives
from torch import Tensor, nn

import dgc
from dgc.compressors import TopK
from dgc.engines import LocalEngine, TorchEngine, run
from dgc.exchanges import AllGather
from dgc.memory import Residual
from dgc.planner import PerTensor
from dgc.rules import LayerRules

PARTS = {
    'actor': {'actor.wide': (64, 20), 'actor.out': (16, 10)},
    # The same shapes in another order: sums of buckets that do not belong together raise no error.
    'critic': {'critic.out': (16, 10), 'critic.wide': (64, 20)},
}
STEPS = 6


def top(density: float = 0.05) -> dgc.Composition:
    """Exact top-k of every tensor, with a residual."""
    return dgc.Composition(
        memory=Residual(),
        compressor=TopK(),
        codec=dgc.codec.Codec('fp32', 'int32'),
        exchange=AllGather(),
        schedule=dgc.DensitySchedule(density),
        rules=LayerRules(),
        planner=PerTensor(),
    )


def one_for_both(engine: dgc.Engine) -> Iterator[dgc.Engine]:
    """The same engine for all optimizers."""
    while True:
        yield engine


def one_for_each(engine: dgc.Engine) -> Iterator[dgc.Engine]:
    """An engine for each optimizer, as from dgc.create() without arguments."""
    yield engine
    while True:
        yield type(engine)()


def two_optimizers(
    engine: dgc.Engine, engines: Callable = one_for_both
) -> dict[str, dict[str, Tensor]]:
    """Train two parts of which every rank uses others, in another order.

    Returns:
        For each part, its ``gradients`` summed over the steps, what the ``residual`` holds at the
        end, and how far the parameters have ``moved`` at a learning rate of 1.
    """
    parts = {name: parameters(shapes) for name, shapes in PARTS.items()}
    given = engines(engine)
    optimizers = {
        name: dgc.DistributedOptimizer(
            torch.optim.SGD([p for _, p in named], lr=1.0), named, top(), next(given)
        )
        for name, named in parts.items()
    }
    start = {name: values(named) for name, named in parts.items()}
    gradients = {name: [torch.zeros_like(p) for _, p in named] for name, named in parts.items()}
    for step in range(STEPS):
        order = list(parts)[:: 1 if (engine.rank + step) % 2 else -1]
        if step % 3 == 1 and engine.rank % 2:  # a branch that half of the ranks do not take
            order.remove('critic')
        draw = torch.Generator().manual_seed(100 * step + engine.rank)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        for name in order:
            ours = [torch.randn(p.shape, generator=draw) for _, p in parts[name]]
            sum((p * g).sum() for (_, p), g in zip(parts[name], ours, strict=True)).backward()
            for total, gradient in zip(gradients[name], ours, strict=True):
                total += gradient
        for optimizer in optimizers.values():
            optimizer.step()
    result = {}
    for name, named in parts.items():
        held = optimizers[name].reducer.state_dict()['memory']
        result[name] = {
            'gradients': flat(gradients[name]),
            'residual': flat([held[each]['residual'] for each, _ in named]),
            'moved': flat(start[name]) - flat(values(named)),
        }
    return result


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.double().reshape(-1) for tensor in tensors])


def two_engines(engine: dgc.Engine) -> dict[str, dict[str, Tensor]]:
    """``two_optimizers`` with an engine each."""
    return two_optimizers(engine, one_for_each)


def gan(engine: dgc.Engine | None, ranks: int) -> list[Tensor]:
    """The parameters of a generator and a discriminator after some steps.

    Args:
        engine: None for plain torch on the samples of all ranks.
        ranks: The world size.
    """
    torch.manual_seed(0)
    nets = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    generator, discriminator = nets
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
    if engine is not None:
        optimizers = [
            dgc.DistributedOptimizer(each, net.named_parameters(), dgc.dense(), engine)
            for each, net in zip(optimizers, nets, strict=True)
        ]
    of_generator, of_discriminator = optimizers
    mine = range(ranks) if engine is None else [engine.rank]
    for step in range(4):
        draws = [torch.Generator().manual_seed(100 * step + rank) for rank in mine]
        noise = torch.cat([torch.randn(4, 3, generator=draw) for draw in draws])
        real = torch.cat([torch.randn(4, 6, generator=draw) for draw in draws])
        for _ in range(1 + step % 2):  # not always as many steps of the one as of the other
            of_discriminator.zero_grad()
            fake = discriminator(generator(noise).detach())
            (discriminator(real) - fake).square().mean().backward()
            of_discriminator.step()
        of_generator.zero_grad()
        loss = -discriminator(generator(noise)).mean()
        if engine is None:
            loss.backward()
        else:
            with of_discriminator.no_sync():  # this pass is no step of the discriminator
                loss.backward()
        of_generator.step()
    return [parameter.detach().clone() for net in nets for parameter in net.parameters()]


@contextmanager
def no_launcher() -> Iterator[None]:
    """The environment of a process that ``torch.multiprocessing.spawn`` has started."""
    before = os.environ.copy()
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'):
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def spawned(engine: dgc.Engine) -> dict[str, object]:
    """What a program without a launcher gets, once it has called ``init_process_group``."""
    results: dict[str, object] = {}
    named = parameters()
    with no_launcher():
        made = dgc.create()
        results['engine'] = made.name, made.rank, made.size, made.local_rank, made.local_size
        results['sum'] = made.all_reduce(torch.ones(1)).item()
        results['variables'] = [name for name in ('RANK', 'WORLD_SIZE') if name in os.environ]
        made.close()
        inner = torch.optim.SGD([p for _, p in named], lr=1.0)
        refused = {
            'local': lambda: dgc.create('local'),
            'simulated': lambda: run(print, 'simulated', size=2),
            'created before': lambda: dgc.DistributedOptimizer(
                inner, named, dgc.dense(), LocalEngine()
            ),
        }
        for case, call in refused.items():
            try:
                call()
            except dgc.EngineError as error:
                results[case] = str(error)
    return results


def halves(engine: dgc.Engine) -> TorchEngine:
    """The engine of this rank's half of the world: the even ranks, or the odd ones."""
    groups = [dist.new_group([*range(first, engine.size, 2)]) for first in range(2)]
    return TorchEngine(group=groups[engine.rank % 2])


def in_halves(engine: dgc.Engine) -> tuple:
    """The results of collectives and of training within each half of the world."""
    half = halves(engine)
    place = half.rank, half.size, half.local_rank, half.local_size
    results = place, collectives(half), two_optimizers(half)
    half.close()
    again = halves(engine)
    total = again.all_reduce(torch.tensor([float(engine.rank)])).item()
    again.close()
    return *results, total


def in_pairs(engine: dgc.Engine) -> tuple[list[float], float]:
    """The sums of overlapping groups, of which ranks have different numbers, and of all ranks by an
    engine that is made afterwards."""
    pairs = [[first, first + 1] for first in range(engine.size - 1)]
    groups = [dist.new_group(pair) for pair in pairs]
    sums = []
    for pair, group in zip(pairs, groups, strict=True):
        if engine.rank in pair:
            ours = TorchEngine(group=group)
            sums.append(ours.all_reduce(torch.tensor([float(engine.rank)])).item())
            ours.close()
    everyone = dgc.create()
    total = everyone.all_reduce(torch.ones(1)).item()
    everyone.close()
    return sums, total


def backwards(engine: dgc.Engine) -> tuple[int, dict[str, Tensor]]:
    """The rank and collectives in a group of all ranks that counts them from the last."""
    ours = TorchEngine(group=dist.new_group([*range(engine.size)][::-1], sort_ranks=False))
    results = ours.rank, collectives(ours)
    ours.close()
    return results


def outside(engine: dgc.Engine) -> dict[str, str]:
    """The errors for a group without this rank, and for something that is no group."""
    errors = {}
    first = dist.new_group([0])
    for name, group in {'group': first, 'list': [0, 1]}.items():
        try:
            TorchEngine(group=group).close()
        except (dgc.EngineError, TypeError) as error:
            errors[name] = str(error)
    return errors


def in_turn(engine: dgc.Engine, detach: bool) -> int:
    """The number of engines after many optimizers of which the program keeps one at a time."""
    for _ in range(12):
        named = parameters()
        inner = torch.optim.SGD([p for _, p in named], lr=1.0)
        optimizer = dgc.DistributedOptimizer(inner, named, top(), engine)
        sum(p.sum() for _, p in named).backward()
        optimizer.step()
        if detach:
            optimizer.detach()
    return 1 + len(engine._duplicates)
