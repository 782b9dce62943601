"""Files of JSON lines that a kill has cut: whoever appends to one loses that line alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.faults.plans import Campaign
from tools.faults.server.__main__ import Results
from tools.mutate.trial import Record
from utils.lines import json_lines
from utils.training.elastic import Events

Line = dict[str, Any]
Use = Callable[[Path, int | None], list[Line]]  # appends n, or nothing, in a new process


def campaign(folder: Path, n: int | None) -> list[Line]:
    results = Campaign(folder, epochs=1, steps=1, seed=0)
    if n is not None:
        results.append({'n': n})
    return results.lines()


def server(folder: Path, n: int | None) -> list[Line]:
    results = Results(folder, seed=0)
    if n is not None:
        results.add('attack', {'n': n})
    return results.of('attack')


def mutations(folder: Path, n: int | None) -> list[Line]:
    record = Record(folder / 'results.jsonl')
    if n is not None:
        record.add(str(n), n=n)
    return list(record.results.values())


def elastic_worker(folder: Path, n: int | None) -> list[Line]:
    events = Events()
    if n is not None:
        events.add('earlier', n=n - 1)  # before its folder is known
    events.path = folder / 'results.jsonl'
    if n is not None:
        events.add('step', n=n)
    return [line for line in json_lines(events.path) if line['event'] == 'step']


@pytest.mark.parametrize('use', [campaign, server, mutations, elastic_worker])
def test_a_line_cut_by_a_kill_is_the_only_one_lost(use: Use, tmp_path):
    assert use(tmp_path, None) == []
    for n in range(3):
        use(tmp_path, n)
    path = tmp_path / 'results.jsonl'
    path.write_bytes(path.read_bytes()[:-5])
    assert [line['n'] for line in use(tmp_path, None)] == [0, 1]
    use(tmp_path, 3)
    assert [line['n'] for line in use(tmp_path, None)] == [0, 1, 3]


@pytest.mark.parametrize(
    'cut', ['{"n": 2, "x', '7', '[1]', 'null', '\x00\x00', '"é', '[' * 100_000]
)
def test_what_is_no_object_is_skipped(tmp_path, cut):
    path = tmp_path / 'lines'
    path.write_text(f'{{"n": 0}}\n{cut}\n\n{{"n": 1}}')
    assert [line['n'] for line in json_lines(path)] == [0, 1]
    assert json_lines(tmp_path / 'none') == []
