"""Kill elastic workers and their lighthouse: `python -m tools.faults.elastic --help`."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.faults.report import FAILED
from tools.harness.cli import Parser, exit_on_signals, log, non_negative, positive, refuse
from tools.harness.launch import ROOT, environment
from tools.harness.pages import write
from tools.harness.tables import markdown_table
from utils.files import append_line
from utils.lines import json_lines

PROGRAM = 'tools.faults.elastic'
KINDS = {'dgc': ['configs/dgc/wm5.py'], 'dense': []}
STACK = ['configs/digits/cnn.py', 'tools/faults/paced.py', 'configs/elastic/torchft.py']
BATCHES = 1437 // 16  # batches of all workers in an epoch
SLACK = 1.25  # by which training would outlast the last fault
START, END = 240.0, 900.0  # seconds for a worker to begin, and for all to end after the last fault
AWAY = 3.0  # seconds for which the lighthouse is gone
WRITTEN = 2.0  # seconds until what follows the last fault is written
SETTLED = 60.0  # seconds in which the effect of a fault is looked for
ACCURACY = 'acc/test_top1'
PAGE = ROOT / 'docs' / 'reliability.md'
HEAD = (
    *('composition', 'kills of workers', 'of the lighthouse'),
    *('steps lost per kill: most (mean)', 'seconds until all others go on: median, 95 %'),
    *('longest gap without lighthouse, s', 'lost residual / gradient, median'),
    *('same parameters', 'accuracy (undisturbed)'),
)
EXAMPLES = """\
examples:
    python -m tools.faults.elastic --rounds 5 --kills 20 --lighthouse 1 --results elastic.jsonl
    python -m tools.faults.elastic --rounds 1 --kills 2 --lighthouse 1 --mean 5 --kinds dgc
    python -m tools.faults.elastic --results elastic.jsonl --write      the table of the docs

A round trains the digits on four workers, started one by one. A random one gets kill -9 after a
time that is drawn from an exponential distribution, and is started again; so is the lighthouse,
three seconds later. A line of --results for each round; rounds that are there are not repeated.

Exit status 1 where workers end with different parameters, do not end, lose more steps than there
were faults, or are more than a point of accuracy below the undisturbed run in the mean of the
rounds.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROGRAM, 'Kill elastic workers and their lighthouse, by a seed.', EXAMPLES)
    add = parser.add_argument
    add('--kinds', nargs='+', default=[*KINDS], help=f'of {", ".join(KINDS)} (all)')
    add('--rounds', type=positive, default=5, help='runs with faults for each kind (5)')
    add('--kills', type=non_negative, default=20, help='of workers in a round (20)')
    add('--lighthouse', type=non_negative, default=1, help='kills of it in a round (1)')
    add('--mean', type=float, default=15.0, help='seconds between two faults (15)')
    add('--workers', type=positive, default=4, help='(4)')
    add('--epochs', type=positive, default=25, help='of a run (25)')
    add('--backup', type=non_negative, default=0, help='configs.elastic.residual_backup (0)')
    add('--seed', type=int, default=0, help='of all that is drawn (0)')
    add('--results', type=Path, default=None, help='file for a line for each round')
    add('--write', action='store_true',
        help='only write the rounds that are in --results into docs/reliability.md')  # fmt: skip
    add('--keep', type=Path, default=None, help='folder for what the workers write')
    return parser.parse_args(argv)


@dataclass
class Round:
    """What happened in a run.

    Attributes:
        kind, number, seed: Which one; number 0 is the undisturbed one.
        kills, lighthouse_kills: Faults.
        seconds: From each kill of a worker until the last of the others had made a step with a
            changed group.
        lighthouse_seconds: The longest gap between two steps after each kill of the lighthouse;
            0 where it was below a second.
        lost: Steps that were not applied after each fault: the most of any worker.
        accuracy: Of each worker at the end.
        parameters: Their digests.
        relative: Norms of lost residuals, in the mean, over that of the mean gradient.
        wrong: What should not have been.
    """

    kind: str
    number: int
    seed: int
    kills: int = 0
    lighthouse_kills: int = 0
    seconds: list[float] = field(default_factory=list)
    lighthouse_seconds: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Job:
    """Four workers and a lighthouse, each a process of its own that is started again.

    Args:
        kind: Of KINDS.
        folder: For the runs and their output.
        workers, epochs, backup: See the command line.
        settings: More words of the command line of train.py.
    """

    def __init__(
        self, kind: str, folder: Path, workers: int, epochs: int, backup: int, *settings: str
    ) -> None:
        self._settings = settings
        self.kind, self.folder, self.epochs, self.backup = kind, folder, epochs, backup
        self.names = [f'w{number}' for number in range(workers)]
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            self.port = probe.getsockname()[1]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started: dict[str, float] = {}
        folder.mkdir(parents=True)
        self.set_pace(0.0)

    def set_pace(self, seconds: float) -> None:
        """Set the seconds of a batch."""
        partial = self.folder / 'pace.partial'
        partial.write_text(str(seconds))
        partial.replace(self.folder / 'pace')

    def start(self, name: str) -> None:
        """Start a worker, or the lighthouse."""
        words = ['-m', 'tools.faults.lighthouse', str(self.port)]
        if name != 'lighthouse':
            settings = {
                'dataset.pace_file': str(self.folder / 'pace'),
                'train.num_epochs': str(self.epochs),
                'elastic.lighthouse': f'127.0.0.1:{self.port}',
                'elastic.worker': name,
                'elastic.start_workers': str(len(self.names)),
                'elastic.residual_backup': str(self.backup),
            }
            words = ['train.py', '--configs', *STACK[:1], *KINDS[self.kind], *STACK[1:]]
            words += ['--devices', 'cpu', '--runs', str(self.folder / 'runs'), '--resume', 'auto']
            words += [f'--configs.{key}={value}' for key, value in settings.items()]
            words += self._settings
        with (self.folder / f'{name}.txt').open('ab') as file:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=os.environ | environment() | {'CUDA_VISIBLE_DEVICES': ''},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.started[name] = time.time()

    def kill(self, name: str) -> float:
        """Kill a process; return when."""
        process, now = self.processes[name], time.time()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return now

    def events(self, name: str) -> list[dict[str, Any]]:
        """What a worker has written of itself."""
        lines = []
        for path in (self.folder / 'runs').glob(f'*/{name}/events.jsonl'):
            lines += json_lines(path)
        return lines

    def trains(self, name: str) -> bool:
        """Whether a worker lives and has made a step since it was started."""
        since = self.started[name]
        is_alive = self.processes[name].poll() is None
        return is_alive and any(
            each['event'] == 'goes on' and each['time'] > since for each in self.events(name)
        )

    def training(self) -> list[str]:
        """The workers that train."""
        return [name for name in self.names if self.trains(name)]

    def close(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_until(condition: Any, seconds: float) -> bool:
    """Wait until ``condition()`` holds, for at most so long; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def faults(record: Round, arguments: argparse.Namespace) -> Iterator[tuple[float, bool]]:
    """Yield the seconds until each next fault, and whether it is one of the lighthouse."""
    draw = random.Random(f'{record.seed} faults')
    kinds = [False] * arguments.kills + [True] * arguments.lighthouse
    draw.shuffle(kinds)
    for is_lighthouse in kinds:
        yield draw.expovariate(1 / arguments.mean), is_lighthouse


def disturb(job: Job, record: Round, arguments: argparse.Namespace) -> None:
    """Kill workers and the lighthouse at random times, and start them again."""
    draw = random.Random(f'{record.seed} victims')
    times: list[tuple[float, str, list[str]]] = []  # when, who, and the others that trained
    for seconds, is_lighthouse in faults(record, arguments):
        time.sleep(seconds)
        if not wait_until(lambda: len(job.training()) > 1, START):
            record.wrong.append('workers did not begin to train again')
            return
        alive = job.training()
        victim = 'lighthouse' if is_lighthouse else draw.choice(alive)
        others = [name for name in alive if name != victim]
        times.append((job.kill(victim), victim, others))
        log(f'{record.kind} {record.number}: kill -9 of {victim}, {len(others)} others train')
        if is_lighthouse:
            time.sleep(AWAY)
        job.start(victim)
    wait_until(lambda: len(job.training()) == len(job.names), START)
    time.sleep(WRITTEN)
    whens = [when for when, victim, _ in times if victim != 'lighthouse']
    for when, victim, others in times:
        measure(job, record, when, victim, others, whens)


def measure(
    job: Job, record: Round, when: float, victim: str, others: list[str], kills: Sequence[float]
) -> None:
    """Add what the others have written after a fault.

    Args:
        job: What was disturbed.
        record: Is added to.
        when, victim: The fault.
        others: The workers that trained then.
        kills: The times of all kills of workers: several may come before the others go on.
    """
    is_lighthouse = victim == 'lighthouse'
    record.kills += not is_lighthouse
    record.lighthouse_kills += is_lighthouse
    seconds, lost, relative = [0.0], [0], 0.0
    for name in others:
        after = written_after(job.events(name), when)
        if is_lighthouse:
            seconds += [e['gap'] for e in after if e['event'] == 'gap']
            continue
        change = next((e for e in after if victim in e.get('lost', {})), None)
        if change is None:  # it was killed itself before
            continue
        ends = [e['time'] for e in after if e['event'] == 'goes on' and e['time'] > change['time']]
        if ends:
            seconds.append(ends[0] - when)
            lost.append(sum(e['event'] == 'lost' and e['time'] <= ends[0] for e in after))
        note, size = change['lost'][victim], len(change['before'])
        if note['gradient']:
            relative = note['residual'] / size / note['gradient']
    if relative:
        record.relative.append(relative)
    if is_lighthouse:
        record.lighthouse_seconds.append(max(seconds))
    else:
        record.seconds.append(max(seconds))
        record.lost.append(max(lost))
        several = sum(when <= each <= when + max(seconds) for each in kills)
        if max(lost) > several:
            record.wrong.append(f'{max(lost)} steps lost in {several} faults')
        if max(seconds) == 0.0 and not others_died(job, when, others):
            record.wrong.append(f'nobody went on within {SETTLED:g} s after a kill of {victim}')


def written_after(events: list[dict[str, Any]], when: float) -> list[dict[str, Any]]:
    """What a worker wrote soon after a fault, and before it was started again itself."""
    after = (e for e in events if when < e['time'] < when + SETTLED)
    return [*takewhile(lambda event: event['event'] != 'start', after)]


def others_died(job: Job, when: float, others: list[str]) -> bool:
    """Whether all of some workers were started again soon after a fault."""
    return all(when < job.started[name] < when + SETTLED for name in others)


def run(kind: str, number: int, arguments: argparse.Namespace, folder: Path) -> Round:
    """Train once, with faults unless ``number`` is 0."""
    record = Round(kind, number, arguments.seed + number)
    job = Job(kind, folder, arguments.workers, arguments.epochs, arguments.backup)
    try:
        if number:
            count = arguments.kills + arguments.lighthouse
            steps = BATCHES // arguments.workers * arguments.epochs
            job.set_pace(SLACK * (count + 1) * arguments.mean / steps)
        for name in ('lighthouse', *job.names):
            job.start(name)
        if not wait_until(lambda: len(job.training()) == len(job.names), START):
            record.wrong.append('the workers did not begin')
            return record
        if number:
            disturb(job, record, arguments)
            job.set_pace(0.0)
        finish(job, record)
    finally:
        if record.wrong:
            for path in sorted(folder.glob('*.txt')):
                log(f'{path.name}: {path.read_text(errors="replace")[-1500:]}')
        job.close()
    return record


def finish(job: Job, record: Round) -> None:
    """Wait for the end of all workers, and compare what they have."""
    workers = [job.processes[name] for name in job.names]
    if not wait_until(lambda: all(p.poll() is not None for p in workers), END):
        record.wrong.append('the workers did not end')
        return
    for name in job.names:
        ends = [e for e in job.events(name) if e['event'] == 'end']
        if job.processes[name].returncode or not ends:
            record.wrong.append(f'{name} ended with {job.processes[name].returncode}')
            continue
        record.parameters.append(ends[-1]['parameters'])
        for path in (job.folder / 'runs').glob(f'*/{name}/metrics.jsonl'):
            record.accuracy.append(json.loads(path.read_text().splitlines()[-1])[ACCURACY])
    if len({*record.parameters}) > 1:
        record.wrong.append('the parameters differ')


def summary(rounds: Sequence[Round]) -> tuple[list[str], list[str]]:
    """A row of the table for one kind, and what went wrong."""
    kind, disturbed = rounds[0].kind, [each for each in rounds if each.number]
    seconds = sorted(second for each in disturbed for second in each.seconds)
    lost = [steps for each in disturbed for steps in each.lost]
    away = [second for each in disturbed for second in each.lighthouse_seconds]
    straight = [a for each in rounds if not each.number for a in each.accuracy]
    faulty = [a for each in disturbed for a in each.accuracy]
    wrong = [f'{kind}, round {each.number}: {text}' for each in rounds for text in each.wrong]
    if straight and faulty and mean(straight) - mean(faulty) > 1:
        wrong.append(f'{kind}: accuracy {mean(faulty):.2f}, undisturbed {mean(straight):.2f}')
    relative = [share for each in disturbed for share in each.relative]
    row = [
        *(kind, str(sum(e.kills for e in disturbed)), str(len(away))),
        f'{max(lost, default=0)} ({mean(lost):.2f})',
        f'{quantile(seconds, 0.5):.2f}, {quantile(seconds, 0.95):.2f}',
        f'{max(away, default=0.0):.1f}',
        f'{statistics.median(relative):.2g}' if relative else '',
        'no' if any('differ' in text for text in wrong) else 'yes',
        f'{mean(faulty):.2f} ({mean(straight):.2f})',
    ]
    return row, wrong


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is not below ``share`` of the others; 0 of nothing."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def earlier(path: Path | None, kind: str, number: int, arguments: argparse.Namespace) -> Any:
    """A round that is in the file of results already; None where it is not."""
    for found in json_lines(path) if path is not None else ():
        options = found.pop('options')
        if (found['kind'], found['number']) == (kind, number) and options == choices(arguments):
            return Round(**found)
    return None


def choices(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that a round depends on."""
    names = ('kills', 'lighthouse', 'mean', 'workers', 'epochs', 'backup', 'seed')
    return {name: getattr(arguments, name) for name in names}


def rounds_of(kind: str, arguments: argparse.Namespace) -> Iterator[Round]:
    """Make the rounds of a kind, but for those that are in the file of results; yield all.

    With ``--write`` none is made.
    """
    for number in range(arguments.rounds + 1):
        record = earlier(arguments.results, kind, number, arguments)
        if record is None and arguments.write:
            continue
        if record is None:
            with TemporaryDirectory(prefix='elastic') as name:
                folder = (arguments.keep or Path(name)) / f'{kind}-{number}'
                record = run(kind, number, arguments, folder)
            line = json.dumps({**asdict(record), 'options': choices(arguments)})
            log(line)
            if arguments.results is not None:
                arguments.results.parent.mkdir(parents=True, exist_ok=True)
                append_line(arguments.results, line)
        yield record


def main(argv: Sequence[str]) -> int:
    """Make all rounds and print the table; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    unknown = [kind for kind in arguments.kinds if kind not in KINDS]
    if unknown:
        return refuse(PROGRAM, f'--kinds: there is no {unknown[0]!r}, only {", ".join(KINDS)}')
    rows, wrong = [], []
    for kind in arguments.kinds:
        if rounds := [*rounds_of(kind, arguments)]:
            row, faulty = summary(rounds)
            rows.append(row)
            wrong += faulty
    if not rows:
        return refuse(PROGRAM, f'there are no such rounds in --results {arguments.results}')
    table = markdown_table(HEAD, rows)
    print(table, flush=True)
    if arguments.write:
        write(PAGE, table, 'elastic')
    for text in wrong:
        log(text)
    return FAILED if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
