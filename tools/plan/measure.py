"""Measuring on this host what a prediction is made from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection

from torch.optim import Optimizer

from dgc import Composition
from dgc.costmodel import Line
from dgc.profile import profile
from tools.plan.compositions import Candidate, Make, unfit
from tools.plan.counts import growth
from tools.plan.path import Blueprint, blueprints, dense_line, sparse_line
from tools.plan.predict import Growth, Measured, Part, Step, is_sparse
from tools.plan.subject import Subject

BATCHES = 9
UPDATES = 5


class Bench:
    """What one subject takes, and its compositions, each thing measured once.

    workers: the numbers of them that predictions will be for.
    step: forward and backward pass; forward: when the second begins.
    """

    def __init__(self, subject: Subject, workers: Collection[int]) -> None:
        self.subject = subject
        self.workers = workers
        profiled = profile(subject.model, subject.closure, BATCHES)
        self.step = Step(profiled.arrivals, profiled.backward)
        self.forward = profiled.forward
        self._updates: dict[str, float] = {}
        self._dense: dict[tuple[str, int], Line] = {}

    def composition(self, candidate: Candidate) -> Measured:
        """What one composition costs. Raises UnfitError where that cannot be measured here."""
        composition = candidate.make()
        planned = blueprints(composition, self.subject.trained(composition))
        parts = [self._part(candidate, blueprint) for blueprint in planned]
        sparse = any(part.sparse is not None for part in parts)
        return Measured(
            candidate.name,
            composition.exchange,
            composition.codec,
            composition.overlaps,
            self.update(composition),
            parts,
            self.growth(candidate.make) if sparse else Growth({}),
        )

    def growth(self, make: Make) -> Growth:
        """How what an exchange does grows with the workers."""
        return growth(make, self.workers)

    def update(self, composition: Composition) -> float:
        """Seconds of the optimizer that goes with a composition."""
        optimizer = self.subject.optimizer(composition)
        kind = type(optimizer).__name__
        if kind not in self._updates:
            optimizer.step()  # which makes its state
            self._updates[kind] = statistics.median(timed(optimizer) for _ in range(UPDATES))
        return self._updates[kind]

    def _part(self, candidate: Candidate, blueprint: Blueprint) -> Part:
        """One bucket; what no number of workers asks for is not measured."""
        composition = candidate.make()
        exchange, codec = composition.exchange, composition.codec
        routes = {
            is_sparse(blueprint.numel, blueprint.k, exchange, codec, workers)
            for workers in self.workers
            if not unfit(exchange, workers)
        }
        return Part(
            [name for name, *_ in blueprint.parameters],
            blueprint.numel,
            blueprint.k,
            sparse_line(candidate.make, blueprint) if True in routes else None,
            self._dense_line(candidate, blueprint) if False in routes else None,
        )

    def _dense_line(self, candidate: Candidate, blueprint: Blueprint) -> Line:
        """Buckets that are dense under the same memory cost the same."""
        key = type(candidate.make().memory).__name__, blueprint.numel
        if key not in self._dense:
            self._dense[key] = dense_line(candidate.make, blueprint)
        return self._dense[key]


def timed(optimizer: Optimizer) -> float:
    """Seconds of one update."""
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start
