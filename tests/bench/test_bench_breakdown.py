"""What `python -m bench.step --breakdown` counts, and how two checkouts are measured in turn."""

import json

import pytest
import torch

from bench import before_after, breakdown, step
from bench.before_after import Job
from dgc.memory import MomentumCorrection


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_bytes_are_those_of_the_tensors_that_are_read_and_written():
    n, ledger = 1000, breakdown.Ledger()
    w, b, g = (torch.randn(n) for _ in range(3))
    with ledger:
        decayed = g.add(w, alpha=0.1)  # 12 bytes an element
        b.mul_(0.9).add_(decayed)  # 8 and 12
        w.add_(b, alpha=-0.1)  # 12
        w.view(10, 100)[3:].detach()  # none
    assert ledger.nbytes == {'optimizer': 44 * n}
    with breakdown.Ledger() as ledger:
        w.index_fill_(0, torch.arange(5), 0.0)
    assert ledger.nbytes['memory of what was sent'] == 8 * 5


def test_both_optimizers_are_shown_side_by_side(tmp_path, capsys):
    file = tmp_path / 'breakdown.json'
    words = ['--breakdown', '--model', 'digits', '--workers', '3', '--rounds', '2']
    assert step.main([*words, '--json', str(file)]) == 0
    rows = {row['name']: row for row in json.loads(file.read_text())}
    alone, ours = (rows[name]['stages'] for name in ('compute alone', 'dgc'))
    assert alone['optimizer']['bytes'] == pytest.approx(44, abs=0.5)
    assert ours['momentum, velocity, search']['bytes'] == pytest.approx(20, abs=0.5)
    printed = capsys.readouterr().out
    assert all(stage in printed for stage in ('compute alone', 'dgc', 'messages', 'step'))


def test_a_memory_in_bfloat16_moves_12_bytes_in_the_place_of_20():
    rows = breakdown.measure('digits', 2, 1, memory=MomentumCorrection(dtype='bfloat16'))
    assert rows[1]['stages']['momentum, velocity, search']['bytes'] == pytest.approx(12, abs=0.5)


def test_checkouts_alternate_and_what_is_measured_is_not_measured_again(
    tmp_path, monkeypatch, capsys
):
    ran = []

    def run(job, checkout, rates, file):
        file.write_text('')
        ran.append(job)
        milliseconds = {'before': 120, 'after': 110}[job.version]
        rows = [('compute', 100, 50), ('dgc (torch)', milliseconds, milliseconds - 50)]
        return [
            {'name': name, 'rate': 'none', 'median_ms': ms, 'cpu_ms': cpu} for name, ms, cpu in rows
        ]

    monkeypatch.setattr(before_after, 'run', run)
    words = [str(tmp_path), str(tmp_path / 'found.jsonl'), '--models', 'vgg16']
    assert before_after.main([*words, '--rounds', '1']) == 0
    with (tmp_path / 'found.jsonl').open('a') as file:
        file.write('{"number": 1, "mod')  # of a disk that was full
    for _ in range(2):
        assert before_after.main([*words, '--rounds', '2']) == 0
    assert ran == [
        Job(0, 'vgg16', 'before'),
        Job(0, 'vgg16', 'after'),
        Job(1, 'vgg16', 'after'),
        Job(1, 'vgg16', 'before'),
    ]
    printed = capsys.readouterr().out.splitlines()[-1]
    assert '1.200 × (1.200 to 1.200)' in printed and '1.100 × (1.100 to 1.100)' in printed
