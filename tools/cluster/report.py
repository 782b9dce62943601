"""What a run has sent, by the kernel's counters and, for a training run, by its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.network import Counters
from utils.cli import parse_arguments
from utils.config.loading import parse_overrides
from utils.naming import by_setting, run_name


def since(before: Sequence[Counters], after: Sequence[Counters]) -> list[Counters]:
    """The increase of each node's counters."""
    return [
        Counters(late.sent - early.sent, late.received - early.received)
        for early, late in zip(before, after, strict=True)
    ]


def counted_by_training(command: Sequence[str], workers: int) -> int | None:
    """Bytes of gradients that rank 0 has sent, from the metrics.jsonl of a successful train.py.

    None for other commands, and if the file may hold more than this run.
    """
    if Path(command[0]).name != 'train.py':
        return None
    arguments, overrides = parse_arguments(command[1:])
    if arguments.evaluate or arguments.resume is not None:
        return None
    settings = by_setting(parse_overrides(overrides))
    name = arguments.name or run_name(arguments.configs, arguments.suffix, workers, settings)
    folder = Path(arguments.runs) / name
    try:
        lines = (folder / 'metrics.jsonl').read_text().splitlines()
        return round(sum(json.loads(line)['bytes/sent'] for line in lines))
    except (OSError, ValueError, KeyError):
        return None


def traffic_table(names: Sequence[str], traffic: Sequence[Counters], gradients: int | None) -> str:
    """A table of bytes by node. gradients: bytes that rank 0 counted itself; None if unknown."""
    rows = [['node', 'sent', 'received', 'gradients sent']]
    for node, (name, counters) in enumerate(zip(names, traffic, strict=True)):
        counted = megabytes(gradients) if gradients is not None and node == 0 else ''
        rows.append([name, megabytes(counters.sent), megabytes(counters.received), counted])
    if gradients is None:
        rows = [row[:-1] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join(map(str.rjust, row, widths)).rstrip() for row in rows]
    return "bytes at each node's eth0, by the kernel\n" + '\n'.join(lines)


def megabytes(count: int) -> str:
    """Format a number of bytes in units of 10⁶ bytes."""
    return f'{count / 1e6:.3f} MB'
