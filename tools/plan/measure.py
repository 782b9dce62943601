"""Measuring on this host what predictions are computed from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection

from torch.optim import SGD, Optimizer

from dgc import Composition
from dgc.bucket_spec import BucketSpec
from dgc.costmodel import Line
from dgc.profile import profile
from tools.plan.compositions import Candidate, Make, unfit
from tools.plan.counts import growth
from tools.plan.path import dense_line, sparse_line
from tools.plan.predict import Growth, Measured, Part
from tools.plan.rounds import Rounds
from tools.plan.subject import Subject

BATCHES = 9
UPDATES = 5


class Bench:
    """Measures a subject and its compositions, everything once.

    Args:
        subject: what is trained.
        workers: the numbers of workers to predict for.

    Attributes:
        step: profile of the forward and backward pass.
    """

    def __init__(self, subject: Subject, workers: Collection[int]) -> None:
        self.subject = subject
        self.workers = workers
        self.step = profile(subject.model, subject.closure, BATCHES)
        self._updates: dict[str, float] = {}
        self._dense: dict[tuple[str, int], Line] = {}

    def composition(self, candidate: Candidate) -> Measured:
        """Measure one composition. Raises UnfitError if that is impossible here."""
        composition = candidate.make()
        request = self.subject.request(composition, saved=candidate.plan)
        parts = [self._part(candidate, spec) for spec in composition.planner.plan(request)]
        sparse = any(part.sparse is not None for part in parts)
        return Measured(
            candidate.name,
            composition.exchange,
            composition.codec,
            composition.compressor,
            composition.overlaps,
            self.update(composition),
            parts,
            self.growth(candidate.make) if sparse else Growth({}),
            composition.always_sparse,
            candidate.rounds,
            0.0 if candidate.rounds is None else self.outer(candidate.rounds),
        )

    def growth(self, make: Make) -> Growth:
        """Count how the messages of a composition's exchange grow with the number of workers."""
        return growth(make, self.workers)

    def update(self, composition: Composition) -> float:
        """Seconds of an update of the optimizer that goes with a composition."""
        optimizer = self.subject.optimizer(composition)
        return self._seconds(type(optimizer).__name__, optimizer)

    def outer(self, rounds: Rounds) -> float:
        """Seconds of an update of the outer SGD."""
        parameters = self.subject.model.parameters()
        outer = SGD(parameters, 1.0, rounds.momentum, nesterov=rounds.nesterov)
        return self._seconds(f'outer, momentum {rounds.momentum:g}', outer)

    def _seconds(self, name: str, optimizer: Optimizer) -> float:
        """Seconds of an update of an optimizer, measured once for each name."""
        if name not in self._updates:
            optimizer.step()  # allocates its state
            self._updates[name] = statistics.median(timed(optimizer) for _ in range(UPDATES))
        return self._updates[name]

    def _part(self, candidate: Candidate, spec: BucketSpec) -> Part:
        """Measure one bucket, on the paths that it takes with these numbers of workers."""
        composition = candidate.make()
        paths = {
            composition.volume.compresses(spec, spec.density, workers)
            for workers in self.workers
            if not unfit(composition.exchange, workers)
        }
        return Part(
            spec,
            sparse_line(candidate.make, spec) if True in paths else None,
            self._dense_line(candidate, spec) if False in paths else None,
        )

    def _dense_line(self, candidate: Candidate, spec: BucketSpec) -> Line:
        """Measure the dense path, once for all buckets of one size under the same memory."""
        key = type(candidate.make().memory).__name__, spec.numel
        if key not in self._dense:
            self._dense[key] = dense_line(candidate.make, spec)
        return self._dense[key]


def timed(optimizer: Optimizer) -> float:
    """Seconds of one update."""
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start
