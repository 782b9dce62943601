"""Rows of the JSON file, the table, and the closing lines."""

from __future__ import annotations

import json
import math

import pytest

from bench import report
from bench.rows import by_name

ABOUT = {'model': 'vgg16', 'batch': 8, 'nodes': 4, 'rate': '1gbit', 'parameters': 14_724_042}
NAN = math.nan


def sample(ms, ours=True, kernel=2e6):
    counted = (1e6, 3.0, 4.0, 5.0) if ours else (NAN,) * 4
    names = ('ms', 'cpu', 'kernel', 'codec', 'compress', 'communicate', 'wait')
    return dict(zip(names, (ms, 2 * ms, kernel, *counted), strict=True))


def row(name, *times, rate='1gbit', ours=None, kernel=2e6, error=''):
    (chosen,) = by_name([name])
    ours = '(' in name and not name.startswith('compute') if ours is None else ours
    samples = [sample(ms, ours, kernel) for ms in times]
    outcome = {'error': error, 'steps': 2 * len(times), 'samples': samples}
    return report.result(chosen, {**ABOUT, 'rate': rate}, outcome)


@pytest.fixture
def results():
    return report.compare(
        report.in_order(
            [
                row('dgc (torch)', 30, 20, 24),
                row('compute (torch)', 10, 10, 10),
                row('ddp', 48, 47, 60),
                row('powersgd', error='a worker was ended by SIGABRT'),
                row('compute (horovod)', 12),
                row('dgc (horovod)', 36),
            ]
        )
    )


def test_keys_of_a_row(results):
    dgc = next(each for each in results if each['name'] == 'dgc (torch)')
    assert dgc == {
        **ABOUT,
        'name': 'dgc (torch)',
        'row': 'dgc',
        'engine': 'torch',
        'kind': 'compressed',
        'steps': 6,
        'plan': None,
        'median_ms': 24,
        'spread': {'min': 20, 'q1': 22, 'median': 24, 'q3': 27, 'max': 30},
        'samples_ms': [30, 20, 24],
        'cpu_ms': 48,
        'vs_compute': 2.4,
        'speedup_vs_ddp': 2.0,
        'kernel_mb': 2.0,
        'codec_mb': 1.0,
        'control_mb': 1.0,
        'phases': {'compute': 19, 'compress': 3, 'communicate': 4, 'wait': 5},
    }
    json.dumps(results, allow_nan=False)


def test_ratios_are_to_rows_of_the_same_rate_and_engine(results):
    named = {each['name']: each for each in results}
    assert named['dgc (horovod)']['vs_compute'] == 3.0
    assert named['dgc (horovod)']['speedup_vs_ddp'] == pytest.approx(48 / 36)
    assert named['ddp']['codec_mb'] is None and named['ddp']['phases'] is None
    assert named['powersgd']['error'] == 'a worker was ended by SIGABRT'
    assert 'median_ms' not in named['powersgd']
    alone = report.compare([row('dgc (torch)', 5), row('ddp', 7, rate='none')])
    assert alone[0]['speedup_vs_ddp'] is None and alone[0]['vs_compute'] is None


def test_without_a_counter_or_a_sample():
    assert row('dgc (torch)', 5, kernel=NAN)['kernel_mb'] is None
    assert row('dgc (torch)', 5, kernel=NAN)['control_mb'] is None
    assert row('dgc (torch)')['error'] == 'not measured'


def test_the_table_is_aligned_and_names_failed_rows(results):
    lines = report.table(results).splitlines()
    assert lines[0].split()[:3] == ['row', 'ms', 'min']
    assert len(lines) == 7
    failed = next(line for line in lines if line.startswith('powersgd'))
    assert failed.split(maxsplit=1)[1] == 'failed: a worker was ended by SIGABRT'
    dgc = next(line for line in lines if line.startswith('dgc (torch)'))
    assert len(dgc) == len(lines[0])  # the last column is right-aligned under its heading
    assert '20.0 to 30.0' in dgc


def test_columns_without_values_are_left_out():
    lines = report.table(report.compare([row('compute (torch)', 1500, 5, kernel=NAN)]))
    assert 'MB sent' not in lines and 'wait' not in lines and '× ddp' not in lines
    assert '5.0 to 1,500' in lines


def test_the_closing_lines_have_the_fastest_row_and_whether_dense_won(results):
    slow = [row('ddp', 9, rate='none'), row('dgc (torch)', 12, rate='none')]
    compute = [row('compute (torch)', 1, rate='none')]
    assert report.closing([*results, *slow, *compute]).splitlines() == [
        'fastest at 1gbit: dgc (torch), 24.0 ms per step',
        'fastest at none: ddp, 9.0 ms per step',
        'dense wins at none (dgc (torch) takes 1.33 times as long)',
    ]
    assert report.closing(results).splitlines()[-1] == 'dense wins nowhere'
    assert report.closing([row('ddp', error='x')]) == 'no row was measured'
    assert report.closing([row('ddp', 3)]).splitlines()[-1] == 'dense wins at 1gbit'


def test_the_title_has_the_workload(results):
    assert report.title(results) == (
        'vgg16, 14.72 M parameters, batch 8 per node, 4 nodes, links 1gbit'
    )
