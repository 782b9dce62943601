"""Asynchronous and synchronous DiLoCo with a slow learner: `python -m bench.slow_learner -h`."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tools.harness.cli import Parser, log, non_negative, positive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dgc.parameter_server import AsynchronousSteps

PROGRAM = 'bench.slow_learner'
METHODS = ('synchronous', 'asynchronous', 'fragments', 'sparse')
GOAL = 97.0  # percent
EXAMPLE = f"""\
The digits, and a network of 36,000 parameters. A step of a fast learner takes one second of a
virtual clock, and one of the slow learner --slow seconds; messages and outer steps take no time.
All methods train on as many samples.

methods: {', '.join(METHODS)}
    asynchronous   a quorum of all but one; dense
    fragments      the same, two fragments
    sparse         the same as asynchronous, 5 % of movements and answers, int8 values
"""
OUTER = {'lr': 0.7, 'momentum': 0.9, 'nesterov': True}


def parse(argv: Sequence[str]) -> Namespace:
    """Parse and check the command line."""
    about = 'Train learners, one of which is slow, and print accuracies by a virtual clock.'
    parser = Parser(PROGRAM, about, EXAMPLE)
    count = partial(parser.add_argument, type=positive, metavar='N')
    parser.add_argument('--method', choices=METHODS, default='asynchronous')
    count('--learners', default=4, help='how many (4)')
    count('--slow', default=4, help='seconds of a step of the last one (4)')
    count('--every', default=30, help='local steps between two pushes (30)')
    count('--steps', default=2200, help='of all learners together (2200)')
    parser.add_argument('--grace', type=non_negative, default=2, metavar='S', help='seconds (2)')
    parser.add_argument('--seed', type=int, default=0, help='of weights and batches (0)')
    return parser.parse_args(argv)


class Point(NamedTuple):
    """The accuracy of the common model, in percent of the test images, and when."""

    seconds: float
    steps: int
    accuracy: float


@dataclass
class Task:
    """What is trained, and how long.

    Attributes:
        arguments: The command line.
        batches: By learner, endless.
        test: Images and labels.
    """

    arguments: Namespace
    batches: list[Iterator[tuple[Tensor, Tensor]]]
    test: tuple[Tensor, Tensor]

    def seconds(self, learner: int) -> int:
        """Of a step of a learner."""
        arguments = self.arguments
        return int(arguments.slow) if learner == arguments.learners - 1 else 1

    def rate(self, share: float) -> float:
        """The learning rate when a share of all steps is made: a cosine."""
        return 0.025 * (1 + math.cos(math.pi * min(share, 1.0))) / 2

    def accuracy(self, model: nn.Module) -> float:
        """Percent of the test images."""
        import torch

        model.eval()
        with torch.inference_mode():
            right = model(self.test[0]).argmax(1) == self.test[1]
        model.train()
        return 100 * float(right.float().mean())


def task_of(arguments: Namespace) -> Task:
    """The data, divided among the learners, each of which draws its batches of 16."""
    import torch
    from torch.utils.data import DataLoader, Subset

    from datasets.digits import Digits

    data = Digits()

    def endless(learner: int) -> Iterator[tuple[Tensor, Tensor]]:
        own = range(learner, len(data['train']), arguments.learners)  # type: ignore[arg-type]
        draw = torch.Generator().manual_seed(1000 * arguments.seed + learner)
        loader = DataLoader(
            Subset(data['train'], own), 16, shuffle=True, drop_last=True, generator=draw
        )
        while True:
            yield from loader

    whole = DataLoader(data['test'], len(data['test']))  # type: ignore[arg-type]
    return Task(arguments, [endless(each) for each in range(arguments.learners)], next(iter(whole)))


def network(seed: int) -> nn.Module:
    """The same weights for all learners."""
    import torch

    from models.digits import digits_cnn

    torch.manual_seed(seed)
    return digits_cnn()


def backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """Compute the gradients of a batch."""
    import torch

    model.zero_grad()
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()


def synchronous(task: Task) -> list[Point]:
    """DiLoCo: each round lasts as long as the slow learner takes for it."""
    import torch

    import dgc

    arguments = task.arguments
    rounds = arguments.steps // (arguments.learners * arguments.every)

    def train(engine: dgc.Engine) -> list[Point]:
        model, points = network(arguments.seed), []
        inner = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=1e-4)
        outer = torch.optim.SGD(model.parameters(), **OUTER)  # type: ignore[arg-type]
        named = model.named_parameters()
        optimizer = dgc.LocalSteps(inner, outer, named, engine=engine, every=arguments.every)
        for step in range(1, rounds * arguments.every + 1):
            optimizer.param_groups[0]['lr'] = task.rate(step / (rounds * arguments.every))
            backward(model, next(task.batches[engine.rank]))
            optimizer.step()
            if step % arguments.every == 0:
                dgc.average_tensors(engine, model.buffers())
                seconds = float(step * arguments.slow)
                points.append(Point(seconds, step * engine.size, task.accuracy(model)))
        return points

    return list(dgc.simulate(arguments.learners, train)[0])


def asynchronous(task: Task) -> list[Point]:
    """Asynchronous DiLoCo: the learner whose step ends next takes it."""
    import torch

    from dgc.algorithms.async_diloco import async_diloco
    from dgc.parameter_server import (
        AsynchronousSteps,
        Budget,
        DirectLink,
        OuterServer,
        Rounds,
    )
    from dgc.parameter_server.model import FloatBuffers

    arguments = task.arguments
    sparse = arguments.method == 'sparse'
    make = partial(async_diloco, 0.05, values='int8') if sparse else async_diloco
    fragments = 2 if arguments.method == 'fragments' else 1
    quorum = max(arguments.learners - 1, 1)
    rounds = Rounds(arguments.every, fragments, quorum, float(arguments.grace))
    now = 0.0
    served = network(arguments.seed)
    outer = torch.optim.SGD(served.parameters(), **OUTER)  # type: ignore[arg-type]
    budget = Budget(arguments.learners, arguments.every, arguments.steps // rounds.period)
    server = OuterServer(
        outer, served.named_parameters(), served.buffers(), make(), budget, rounds, timeout=1e9
    )
    buffers = FloatBuffers(served.buffers())

    def join() -> tuple[nn.Module, AsynchronousSteps]:
        model = network(arguments.seed)
        inner = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=1e-4)
        link, named = DirectLink(server, lambda: now), model.named_parameters()
        return model, AsynchronousSteps(
            inner, named, model.buffers(), make(), link, rounds, samples_per_step=16
        )

    learners = [join() for _ in range(arguments.learners)]
    queue = [(task.seconds(each), each) for each in range(arguments.learners)]
    heapq.heapify(queue)
    points: list[Point] = []
    for step in itertools.count(1):
        if server.finished:
            return points
        now, learner = heapq.heappop(queue)
        heapq.heappush(queue, (now + task.seconds(learner), learner))
        model, optimizer = learners[learner]
        optimizer.param_groups[0]['lr'] = task.rate(step / arguments.steps)
        backward(model, next(task.batches[learner]))
        before = [each.number for each in server.open_rounds]
        optimizer.step()
        if before != [each.number for each in server.open_rounds]:
            buffers.write(server.average())
            points.append(Point(float(now), step, task.accuracy(served)))
    raise AssertionError


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    import torch

    arguments = parse(argv)
    torch.manual_seed(arguments.seed)
    task = task_of(arguments)
    points = (synchronous if arguments.method == 'synchronous' else asynchronous)(task)
    for point in points:
        log(f'{point.seconds:8.0f} s  {point.steps:6d} steps  {point.accuracy:.2f} %')
    last = points[-1]
    reached = next((point.seconds for point in points if point.accuracy >= GOAL), None)
    own = {'method': arguments.method, 'seed': arguments.seed, 'rounds': len(points)}
    print(json.dumps({**own, **last._asdict(), f'seconds_to_{GOAL:g}': reached}))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
