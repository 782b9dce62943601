"""One worker of a benchmark, started by a launcher: `LAUNCHER python -m bench.worker SPEC`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import dgc
from bench.measure import Contender, Track, plan
from bench.rows import by_name
from bench.spec import Spec
from tools.harness.gate import wait_at
from tools.harness.machine import free_memory
from tools.harness.spec import write_json
from tools.harness.workloads import WORKLOADS, make_batches, make_model
from utils.allocator import keep_freed_memory

COPIES = 5  # of a network's parameters per row: weights, gradients, and up to three more
LONG = 8  # a step that takes more than 1/LONG of a row's time is probed only once


class Answer:
    """The answer file, which rank 0 writes.

    It is written again whenever a row is begun, with the name of that row, so that the program that
    started the workers knows it if they break down.
    """

    def __init__(self, path: Path, engine: dgc.Engine, contenders: list[Contender]) -> None:
        self._path = path
        self._is_writer = engine.rank == 0
        self._contenders = contenders
        self.about = {
            'engine': engine.name,
            'workers': engine.size,
            'torch': torch.__version__,
            'dgc': str(Path(dgc.__file__).resolve().parent),
            'threads': torch.get_num_threads(),
        }

    def write(self, now: str = '') -> None:
        """Write all results so far. now: the row that is begun; '' at the end."""
        if self._is_writer:
            rows = {
                each.row.name: {
                    'error': each.error,
                    'plan': each.buckets,
                    'steps': each.plan.rounds * each.plan.steps,
                    'samples': [sample._asdict() for sample in each.samples],
                }
                for each in self._contenders
            }
            write_json(self._path, {**self.about, 'now': now, 'rows': rows})

    def log(self, text: str) -> None:
        """Print a line on stderr, on rank 0."""
        if self._is_writer:
            print(f'{time.strftime("%H:%M:%S")}   {text}', file=sys.stderr, flush=True)


class Benchmark:
    """The rows of one launch, on one worker."""

    def __init__(self, spec: Spec, engine: dgc.Engine) -> None:
        self.spec = spec
        self.engine = engine
        self.workload = WORKLOADS[spec.model]
        self.contenders = [Contender(row) for row in by_name(spec.rows)]
        self.answer = Answer(Path(spec.answer), engine, self.contenders)
        batches = make_batches(self.workload, spec.batch, engine.rank)
        self.track = Track(engine, batches, spec.interface)

    def run(self) -> None:
        """Make all rows, then measure them in turn, round after round."""
        self.check_memory()
        for each in self.contenders:
            if not each.row.late:
                self.take_turn(each, self.make)
        if self.spec.interface:
            wait_at(Path(self.spec.answer).parent, self.engine)
        for each in self.contenders:
            if each.row.late:
                self.take_turn(each, self.make)
        for each in self.contenders:
            self.take_turn(each, self.probe)
        for number in range(max(each.plan.rounds for each in self.contenders)):
            self.answer.log(f'round {number + 1}')
            for each in self.contenders:
                if number < each.plan.rounds:
                    self.take_turn(each, self.measure)
        self.answer.write()

    def take_turn(self, contender: Contender, job: Callable[[Contender], None]) -> None:
        """Call ``job(contender)``, unless the contender has failed; note if it fails now."""
        if not contender.error:
            self.answer.write(now=contender.row.name)
            self.track.attempt(contender, partial(job, contender))
            if contender.error:
                self.answer.log(f'{contender.row.name} failed: {contender.error}')

    def make(self, contender: Contender) -> None:
        """Build a row's network and optimizer; make steps that allocate, connect and adapt."""
        row, model = contender.row, make_model(self.workload)
        contender.trained = row.make(model, self.engine, partial(self.track.profile, model))
        self.track.run(contender.trained, row.warmup)

    def probe(self, contender: Contender) -> None:
        """Time one step, or the faster of two short ones, and plan how many steps to make.

        The first of the two may have been delayed. All ranks gather the same times, so all of them
        make the same plan.
        """
        spec = self.spec
        milliseconds = self.track.run(contender.trained, 1).ms
        if milliseconds < 1e3 * spec.seconds / LONG:
            milliseconds = min(milliseconds, self.track.run(contender.trained, 1).ms)
        contender.plan = plan(milliseconds / 1e3, spec.seconds, spec.rounds, spec.steps)
        rounds, steps = contender.plan
        self.answer.log(f'{contender.row.name}: {milliseconds:,.0f} ms, now {rounds} × {steps}')

    def measure(self, contender: Contender) -> None:
        """Make the steps of one round."""
        contender.samples.append(self.track.run(contender.trained, contender.plan.steps))

    def check_memory(self) -> None:
        """End all workers if the rows do not fit into the free memory of this machine.

        Otherwise the kernel would choose a process to end.
        """
        parameters = sum(p.numel() for p in make_model(self.workload).parameters())
        self.answer.about['parameters'] = parameters
        needed = self.engine.size * len(self.contenders) * COPIES * 4 * parameters
        free = free_memory()
        self.engine.barrier()  # no rank allocates before all have looked
        if needed > free:
            raise SystemExit(
                f'bench: {len(self.contenders)} rows at once take {needed / 1e9:.1f} GB on '
                f'{self.engine.size} workers, {free / 1e9:.1f} GB are free: choose with --only'
            )


def main(path: str) -> None:
    """Measure what the specification at ``path`` asks for."""
    keep_freed_memory()
    engine = dgc.create()
    Benchmark(Spec.read(Path(path)), engine).run()
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
