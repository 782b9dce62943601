"""All faults, one after another: a result a line, behind which a later start goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from models.digits import DigitsCNN
from tools.faults import damage, trace
from tools.faults.runs import LAUNCHERS, Plan, Run
from tools.harness.cli import log
from tools.harness.launch import ROOT, environment
from utils import sealed
from utils.files import append_line
from utils.lines import json_lines, untimed

FAULTS = 4  # in one run, at most
WRITERS = ('alone', 'torchrun 2')  # of runs that are killed while they write
RESTARTED = 'torchrun 2'
MOST_RUNS = 40  # of a kind and launcher, where many end before their faults


class Counts(NamedTuple):
    """How many faults there are: see the command line."""

    damage: int
    kills: int
    signals: int
    writes: int
    restarts: int


@dataclass(frozen=True)
class Campaign:
    """All faults of one seed.

    Attributes:
        folder: Of the results.
        epochs, steps: Of the runs, and between their checkpoints.
        seed: Of all that is drawn.
        python: That runs train.py and torchrun.
    """

    folder: Path
    epochs: int
    steps: int
    seed: int
    python: str = sys.executable

    @property
    def path(self) -> Path:
        """The file of the results."""
        return self.folder / 'results.jsonl'

    def lines(self) -> list[dict[str, Any]]:
        """The results so far; a line that a kill has cut is left out."""
        return json_lines(self.path)

    def append(self, line: dict[str, Any]) -> None:
        """Write a result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps(line))
        log(json.dumps(line))

    def carry_out(self, counts: Counts, has_horovod: bool) -> None:
        """Do what is missing of the faults."""
        launchers = [name for name in LAUNCHERS if has_horovod or 'horovod' not in name]
        self.restarts(counts.restarts)
        self.writes(counts.writes)
        for number, launcher in enumerate(launchers):
            kills, signals = (
                (count + len(launchers) - 1 - number) // len(launchers)
                for count in (counts.kills, counts.signals)
            )
            self.times(launcher, kills, signals)
        self.damage(counts.damage)

    # ------------------------------------------------------------ runs

    def times(self, launcher: str, kills: int, signals: int) -> None:
        """Kills and signals at random times."""
        for number in range(MOST_RUNS):
            done = self.done('times', launcher)
            if done['kill -9'] >= kills and done['SIGTERM'] >= signals:
                return
            if number >= done['runs']:
                self.run(Plan('times', launcher, number, self.epochs, self.steps, FAULTS))

    def writes(self, kills: int) -> None:
        """Kills while a checkpoint is written: as many as have left a part of a file."""
        for number in range(MOST_RUNS):
            for launcher in WRITERS:
                if sum(self.done('writes', each)['written'] for each in WRITERS) >= kills:
                    return
                if number >= self.done('writes', launcher)['runs']:
                    self.run(Plan('writes', launcher, number, self.epochs, self.steps, FAULTS))

    def restarts(self, runs: int) -> None:
        """Runs under torchrun --max-restarts, each with as many kills."""
        for number in range(self.done('restarts', RESTARTED)['runs'], runs):
            self.run(Plan('restarts', RESTARTED, number, self.epochs, self.steps, 3))

    def done(self, kind: str, launcher: str) -> Counter[str]:
        """How many runs there are of a kind and launcher, and faults by what they are."""
        count: Counter[str] = Counter()
        for line in self.lines():
            if (line['kind'], line.get('launcher')) == (kind, launcher):
                count['runs'] += 1
                count.update(fault['what'] for fault in line['faults'])
                count['written'] += sum(fault['partial'] is not None for fault in line['faults'])
        return count

    def run(self, plan: Plan) -> None:
        """Carry out a plan, and write the result."""
        steps, digest = self.reference(plan)
        run = self.trained(plan, 'run')
        run.judge(steps)
        if not run.wrong and left(run) != digest:
            run.wrong.append('it leaves other tensors or metrics than the undisturbed run')
        if run.wrong:
            kept = self.folder / f'{plan.kind}.{plan.launcher}.{plan.number}'.replace(' ', '')
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(run.folder, kept)
        self.append(run.to_json())

    def reference(self, plan: Plan) -> tuple[list[trace.Step], str]:
        """The trace of the run without faults, and a digest of what it leaves."""
        name = f'{plan.launcher}.{plan.ballast}.{plan.epochs}'.replace(' ', '')
        steps, digest = (self.folder / 'reference' / f'{name}.{end}' for end in ('trace', 'digest'))
        if not digest.is_file():
            kind = 'writes' if plan.ballast else 'times'
            undisturbed = Plan(kind, plan.launcher, -1, plan.epochs, plan.steps, faults=0)
            run = self.trained(undisturbed, name)
            if run.wrong:
                raise RuntimeError(f'the undisturbed run failed: {run.wrong[0]} ({run.folder})')
            steps.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.trace, steps)
            digest.write_text(left(run))
        return trace.read(steps), digest.read_text()

    def trained(self, plan: Plan, name: str) -> Run:
        """A run to its end, in a folder that is emptied before."""
        folder = self.folder / 'now' / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run = Run(folder, plan, self.seed, self.python)
        run.train()
        return run

    # ------------------------------------------------------------ damage

    def damage(self, count: int) -> None:
        """Damage copies of a run's checkpoints."""
        first = sum(line['kind'] == 'damage' for line in self.lines())
        if first >= count:
            return
        checkpoints = self.checkpoints()
        for number, kind, wrong in damage.trials(checkpoints, DigitsCNN(), count, self.seed, first):
            line = {'kind': 'damage', 'number': number, 'what': kind, 'seed': self.seed}
            self.append({**line, 'wrong': [wrong] if wrong else []})

    def checkpoints(self) -> Path:
        """The checkpoints of two ranks, at six positions."""
        folder = self.folder / 'now' / 'damage'
        shutil.rmtree(folder, ignore_errors=True)
        words = ['train.py', '--configs', 'configs/digits/cnn.py', 'configs/dgc/wm5.py']
        words += ['--devices', 'cpu', '--runs', str(folder), '--configs.train.num_epochs=3']
        words += ['--configs.train.batch_size=128', '--configs.checkpoint.every_steps=2']
        words += ['--configs.engine.name', 'simulated', '--configs.engine.size', '2']
        subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | environment(),
            check=True,
            stdout=sys.stderr,
        )
        (checkpoints,) = folder.glob('*/checkpoints')
        return checkpoints


def left(run: Run) -> str:
    """A digest of the tensors in the last checkpoint of each rank, and of the metrics that are not
    seconds."""
    folder = run.runs / 'run'
    files: Sequence[Path] = sorted(
        (folder / 'checkpoints').glob(f'e{run.plan.epochs - 1:04d}.r*.pth')
    )
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    metrics = [untimed(line) for line in lines]
    tensors = [damage.fingerprint(sealed.read(path)) for path in files]
    return hashlib.sha256(json.dumps([tensors, metrics]).encode()).hexdigest()
