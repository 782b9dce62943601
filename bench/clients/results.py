"""The results of the clients: a line of JSON for each run, and tables from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.clients.program import CLIENTS, changed
from utils.files import append_line
from utils.lines import json_lines

PLAIN, WHOLE, SPARSE, REORDERED = 'plain', 'whole', 'sparse', 'reordered'
VARIANTS = (PLAIN, WHOLE, SPARSE)
LAST = 10  # steps whose mean is the final loss


class Setting(NamedTuple):
    """What the runs of a table have in common.

    Attributes:
        steps: Optimizer steps of a run.
        density: The low density.
        warmup: Steps in which it falls from 1.
    """

    steps: int
    density: float
    warmup: int


Key = tuple[str, int, int, float, int, str]


class Run(NamedTuple):
    """One run of a client.

    Attributes:
        client: Its name.
        ranks: The world size.
        steps: Of the setting.
        density: Of the setting.
        warmup: Of the setting.
        variant: Without dgc, with it at density 1, with it at a low density; or without dgc and
            with other buckets of DistributedDataParallel.
        losses: Of each rank, at each step.
    """

    client: str
    ranks: int
    steps: int
    density: float
    warmup: int
    variant: str
    losses: list[list[float]]

    @property
    def key(self) -> Key:
        """What identifies a run."""
        return self[:-1]

    @property
    def first(self) -> float:
        """The mean loss of the ranks at the first step."""
        return sum(each[0] for each in self.losses) / self.ranks

    @property
    def last(self) -> float:
        """The mean loss of the ranks in the last steps."""
        ends = [loss for each in self.losses for loss in each[-LAST:]]
        return sum(ends) / len(ends)

    def distance(self, other: Run) -> float:
        """The largest difference between two runs' losses, at any step of any rank."""
        return max(
            abs(mine - theirs)
            for own, others in zip(self.losses, other.losses, strict=True)
            for mine, theirs in zip(own, others, strict=True)
        )


def variants(ranks: int) -> tuple[str, ...]:
    """Return what is run: of two ranks' gradients the sum is the same in either order."""
    return VARIANTS if ranks == 2 else (*VARIANTS, REORDERED)


def read(path: Path) -> dict[Key, Run]:
    """Return the runs in a file, of which a later one replaces an earlier one, and of which a line
    may be incomplete."""
    runs = [Run(**each) for each in json_lines(path)]
    return {run.key: run for run in runs}


def append(path: Path, runs: Iterable[Run]) -> None:
    """Write runs at the end of a file."""
    for run in runs:
        append_line(path, json.dumps(run._asdict()))


def table(runs: dict[Key, Run], ranks: int, setting: Setting) -> str:
    """Return the results at one world size as a table in Markdown."""
    lines = [
        '| program | loss at first | DDP | density 1 | largest difference '
        '| of DDP with other buckets | 1 % | lines + / - |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for client in CLIENTS:
        cells = [runs.get((client.name, ranks, *setting, variant)) for variant in VARIANTS]
        other = runs.get((client.name, ranks, *setting, REORDERED))
        if None in cells:
            continue
        plain, whole, sparse = (cell for cell in cells if cell is not None)
        added, removed = changed(client.path.read_text())
        lines.append(
            f'| {client.title} | {plain.first:.3f} | {plain.last:.4f} | {whole.last:.4f} '
            f'| {plain.distance(whole):.1e} | {f"{plain.distance(other):.1e}" if other else ""} '
            f'| {sparse.last:.4f} | {added} / {removed} |'
        )
    return '\n'.join(lines)
