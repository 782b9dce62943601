"""Seconds to an accuracy: the command line, the schedule, and the table."""

from __future__ import annotations

import pytest

import dgc
from bench.accuracy import parse, seconds_to, table
from bench.accuracy_worker import LR, ROWS, maker, rate_at
from tools.harness.workloads import WORKLOADS, make_model

EPOCHS = [
    {'seconds': 10.0, 'accuracy': 30.0},
    {'seconds': 20.0, 'accuracy': 47.0},
    {'seconds': 30.0, 'accuracy': 44.0},
]


@pytest.mark.parametrize(('target', 'expected'), [(25, 10.0), (45, 20.0), (47, 20.0), (50, None)])
def test_the_first_epoch_at_the_target_counts(target, expected):
    assert seconds_to(target, EPOCHS) == expected


def test_without_epochs_there_is_no_time():
    assert seconds_to(10, []) is None


def test_the_rate_warms_up_for_an_epoch_and_ends_at_zero():
    steps, epochs = 10, 4
    rates = [rate_at(step, steps, epochs) for step in range(steps * epochs + 1)]
    assert rates[0] == pytest.approx(LR / steps)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(LR)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)


def test_the_table_has_never_and_why_a_row_failed():
    about = {'rate': '100mbit', 'nodes': 4, 'target': 45.0, 'megabytes': 12.5, 'epochs': EPOCHS}
    rows = [
        {'name': 'ddp', 'seconds': 20.0, **about},
        {'name': 'dgc', 'seconds': None, **about},
        {'name': 'gtopk', 'error': 'the workers did not end in time'},
    ]
    title, ddp, never, failed = table(rows).splitlines()
    assert title.startswith('seconds to 45 % at 100mbit, 4 nodes')
    assert ddp.split()[:4] == ['ddp', '20', 's', '12.50'] and ddp.endswith('30/44.0')
    assert never.split()[1] == 'never'
    assert 'failed: the workers did not end in time' in failed


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--only', 'dcg'], "no row 'dcg'"),
        (['--root', '/nowhere'], 'does not hold cifar-10-batches-py'),
        (['--rate', 'fast'], 'fast'),
    ],
)
def test_invalid_input_is_refused(tmp_path, capsys, words, message):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    with pytest.raises(SystemExit) as ended:
        parse(['--root', str(tmp_path), *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('name', [name for name in ROWS if name != 'ddp'])
def test_rows_warm_up_for_two_epochs(name):
    trained = dgc.simulate(
        1, lambda engine: maker(name, 5)(make_model(WORKLOADS['digits']), engine, None)
    )[0]
    densities = {
        bucket.spec.schedule.at(step, 5)
        for bucket in trained.ours.reducer.buckets
        for step in (0, 5, 10, 100)
        if bucket.spec.schedule is not None
    }
    assert len(densities) == 3 and min(densities) == pytest.approx(0.01 if '1 %' in name else 0.001)
