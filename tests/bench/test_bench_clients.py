"""The programs of bench.clients: two versions of one file, and what docs/integrations.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from textwrap import dedent

import pytest
import warm
from worlds import ROOT, environment

from bench.clients.__main__ import main
from bench.clients.measure import measure
from bench.clients.program import CLIENTS, COMMON, FOLDER, Client, changed, difference, version
from bench.clients.results import PLAIN, SPARSE, WHOLE, Run, Setting, append, read, table

PAGE = ROOT / 'docs/integrations.md'
every_client = pytest.mark.parametrize('client', CLIENTS, ids=lambda client: client.name)


class TestVersions:
    @every_client
    def test_only_one_knows_dgc(self, client):
        text = client.path.read_text()
        plain, ours = (version(text, with_dgc) for with_dgc in (False, True))
        assert 'dgc' not in plain
        assert 'import dgc\n' in ours
        for program in (plain, ours):
            compile(program, client.name, 'exec')
            assert not re.search(r'# [+-]$', program, re.M)

    @every_client
    def test_the_difference_makes_one_from_the_other(self, client):
        text = client.path.read_text()
        plain, ours = (version(text, with_dgc).splitlines() for with_dgc in (False, True))
        added = [line[1:] for line in difference(text) if line[0] == '+']
        removed = [line[1:] for line in difference(text) if line[0] == '-']
        rest = [line for line in plain if line.strip()]
        for line in removed:
            rest.remove(line)
        assert sorted(rest + added) == sorted(line for line in ours if line.strip())

    def test_every_program_is_measured(self):
        assert set(FOLDER.glob('*.py')) == {COMMON, *(c.path for c in CLIENTS)}


class TestPage:
    @every_client
    def test_has_the_difference(self, client):
        shown = '\n'.join(difference(client.path.read_text()))
        assert f'```diff\n{shown}\n```' in PAGE.read_text()

    @every_client
    def test_counts_the_lines(self, client):
        added, removed = changed(client.path.read_text())
        lines = PAGE.read_text().splitlines()
        rows = [line for line in lines if line.startswith(f'| {client.title} |')]
        assert len(rows) == 2  # with 2 and with 4 ranks
        assert all(row.endswith(f'| {added} / {removed} |') for row in rows)


def run_of(variant: str, losses: list[list[float]], client: str = 'gan') -> Run:
    return Run(client, len(losses), len(losses[0]), 0.01, 40, variant, losses)


class TestResults:
    def test_a_distance_is_the_largest_of_all_ranks_and_steps(self):
        first = run_of(PLAIN, [[1.0, 2.0], [3.0, 4.0]])
        second = run_of(WHOLE, [[1.0, 2.5], [3.1, 4.0]])
        assert first.distance(second) == second.distance(first) == 0.5

    def test_a_file_keeps_the_later_of_two_runs(self, tmp_path):
        path = tmp_path / 'clients.jsonl'
        append(path, [run_of(PLAIN, [[1.0], [2.0]]), run_of(SPARSE, [[5.0], [6.0]])])
        with path.open('a') as file:
            file.write('{"client": "ga')  # of a disk that was full
        append(path, [run_of(PLAIN, [[3.0], [4.0]])])
        runs = read(path)
        assert runs['gan', 2, 1, 0.01, 40, PLAIN].losses == [[3.0], [4.0]]
        assert runs['gan', 2, 1, 0.01, 40, SPARSE].losses == [[5.0], [6.0]]

    def test_the_table_has_complete_programs_only(self, tmp_path):
        path = tmp_path / 'clients.jsonl'
        whole = [run_of(variant, [[2.0], [4.0]]) for variant in (PLAIN, WHOLE, SPARSE)]
        append(path, [*whole, run_of(PLAIN, [[1.0], [1.0]], client='gpt')])
        rows = table(read(path), 2, Setting(1, 0.01, 40)).splitlines()[2:]
        assert len(rows) == 1
        assert rows[0].startswith('| GAN | 3.000 | 3.0000 | 3.0000 | 0.0e+00 |  | 3.0000 |')


def test_runs_are_measured_once(tmp_path):
    """Under torchrun; at density 1 the losses are those of DistributedDataParallel."""
    path = tmp_path / 'clients.jsonl'
    words = [sys.executable, '-m', 'bench.clients', '--only', 'gan', '--ranks', '2', '--steps', '4',
             '--file', str(path)]  # fmt: skip
    done = subprocess.run(
        warm.warmed(words), cwd=ROOT, env=environment() | warm.environment(), capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    runs = read(path)
    assert {run.variant for run in runs.values()} == {PLAIN, WHOLE, SPARSE}
    plain, whole = (runs['gan', 2, 4, 0.01, 40, variant] for variant in (PLAIN, WHOLE))
    assert plain.distance(whole) < 1e-5
    before = path.stat().st_mtime_ns
    assert main(['--only', 'gan', '--ranks', '2', '--steps', '4', '--file', str(path)]) == 0
    assert path.stat().st_mtime_ns == before


def test_of_a_program_that_fails_the_complete_runs_are_kept(monkeypatch, tmp_path, warm_python):
    program = """
        import os
        from common import STEPS, save
        raise ValueError('a fault')  # +
        save(int(os.environ['RANK']), STEPS * [2.0])
    """
    (tmp_path / 'faulty.py').write_text(dedent(program))
    monkeypatch.setattr('bench.clients.program.FOLDER', tmp_path)
    client = Client('faulty', 'a faulty program')
    runs, failure = measure(client, 2, (PLAIN, WHOLE, SPARSE), Setting(3, 0.01, 1), 120)
    assert runs == [Run('faulty', 2, 3, 0.01, 1, PLAIN, [3 * [2.0], 3 * [2.0]])]
    assert 'ValueError: a fault' in failure


def test_a_difference_is_printed(capsys):
    assert main(['--diff', 'language']) == 0
    assert '+import dgc' in capsys.readouterr().out.splitlines()


def test_an_unknown_program_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match='2'):
        main(['--only', 'gna'])
    assert "there is no program 'gna'" in capsys.readouterr().err
