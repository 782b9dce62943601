"""One worker of a benchmark, started by a launcher: `LAUNCHER python -m bench.worker SPEC`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import dgc
from bench.gate import wait_at
from bench.measure import Contender, Track, plan
from bench.rows import by_name
from bench.spec import Spec, write_json
from bench.workloads import WORKLOADS, make_batches, make_model
from utils.allocator import keep_freed_memory

COPIES = 5  # of a network's parameters that a row holds: weights, gradients, and up to three more
LONG = 8  # steps that fill a row's time: longer ones are not probed twice


class Answer:
    """What rank 0 writes for whoever started the workers.

    Again and again, with the row that is begun, so that they know it when the workers break down.
    """

    def __init__(self, path: Path, engine: dgc.Engine, contenders: list[Contender]) -> None:
        self._path = path
        self._speaks = engine.rank == 0
        self._contenders = contenders
        self.about = {
            'engine': engine.name,
            'workers': engine.size,
            'torch': torch.__version__,
            'dgc': str(Path(dgc.__file__).resolve().parent),
            'threads': torch.get_num_threads(),
        }

    def write(self, now: str = '') -> None:
        """now: the row that is begun; '' at the end."""
        if self._speaks:
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

    def say(self, text: str) -> None:
        """A line on stderr."""
        if self._speaks:
            print(f'{time.strftime("%H:%M:%S")}   {text}', file=sys.stderr, flush=True)


class Benchmark:
    """The rows of one launch."""

    def __init__(self, spec: Spec, engine: dgc.Engine) -> None:
        self.spec = spec
        self.engine = engine
        self.workload = WORKLOADS[spec.model]
        self.contenders = [Contender(row) for row in by_name(spec.rows)]
        self.answer = Answer(Path(spec.answer), engine, self.contenders)
        batches = make_batches(self.workload, spec.batch, engine.rank)
        self.track = Track(engine, batches, spec.interface)

    def run(self) -> None:
        """Make all, then measure them round after round."""
        self.check_memory()
        for each in self.contenders:
            if not each.row.late:
                self.take_turn(each, self.make)
        if self.spec.gate:
            wait_at(Path(self.spec.gate), self.engine)
        for each in self.contenders:
            if each.row.late:
                self.take_turn(each, self.make)
        for each in self.contenders:
            self.take_turn(each, self.probe)
        for number in range(max(each.plan.rounds for each in self.contenders)):
            self.answer.say(f'round {number + 1}')
            for each in self.contenders:
                if number < each.plan.rounds:
                    self.take_turn(each, self.measure)
        self.answer.write()

    def take_turn(self, contender: Contender, job: Callable[[Contender], None]) -> None:
        """``job(contender)``, unless it has failed before, or fails now."""
        if not contender.error:
            self.answer.write(now=contender.row.name)
            self.track.attempt(contender, partial(job, contender))
            if contender.error:
                self.answer.say(f'{contender.row.name} failed: {contender.error}')

    def make(self, contender: Contender) -> None:
        """Its network and optimizer; some steps, to allocate, connect and adapt."""
        row, model = contender.row, make_model(self.workload)
        contender.trained = row.make(model, self.engine, partial(self.track.profile, model))
        self.track.run(contender.trained, row.warmup)

    def probe(self, contender: Contender) -> None:
        """One step, which decides how many are made, and another where it was no large part of the
        time: the first may have come late. All ranks gather the same times, so they agree."""
        spec = self.spec
        milliseconds = self.track.run(contender.trained, 1).ms
        if milliseconds < 1e3 * spec.seconds / LONG:
            milliseconds = min(milliseconds, self.track.run(contender.trained, 1).ms)
        contender.plan = plan(milliseconds / 1e3, spec.seconds, spec.rounds, spec.steps)
        rounds, steps = contender.plan
        self.answer.say(f'{contender.row.name}: {milliseconds:,.0f} ms, now {rounds} × {steps}')

    def measure(self, contender: Contender) -> None:
        """Its steps of one round."""
        contender.samples.append(self.track.run(contender.trained, contender.plan.steps))

    def check_memory(self) -> None:
        """End all workers where their rows would not fit, rather than let the kernel choose one."""
        parameters = sum(p.numel() for p in make_model(self.workload).parameters())
        self.answer.about['parameters'] = parameters
        needed = self.engine.size * len(self.contenders) * COPIES * 4 * parameters
        free = free_memory()
        self.engine.barrier()  # nobody takes any before all have looked
        if needed > free:
            raise SystemExit(
                f'bench: {len(self.contenders)} rows at once take {needed / 1e9:.1f} GB on '
                f'{self.engine.size} workers, {free / 1e9:.1f} GB are free: choose with --only'
            )


def free_memory() -> float:
    """Bytes that this machine, on which all workers are, has left; infinite where it cannot say."""
    table = Path('/proc/meminfo')
    for line in table.read_text().splitlines() if table.exists() else ():
        name, _, value = line.partition(':')
        if name == 'MemAvailable':
            return 1024 * float(value.split()[0])
    return math.inf


def main(path: str) -> None:
    """Measure what the spec at ``path`` asks for."""
    keep_freed_memory()
    engine = dgc.create()
    Benchmark(Spec.read(Path(path)), engine).run()
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
