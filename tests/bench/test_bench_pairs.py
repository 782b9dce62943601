"""Comparing rows round by round."""

from __future__ import annotations

import json

import pytest

from bench.pairs import compare, main


def row(name, times, rate='1gbit'):
    return {'name': name, 'rate': rate, 'samples_ms': times}


def test_load_on_both_rows_is_no_difference():
    assert compare([110.0, 220.0, 55.0], [100.0, 200.0, 50.0]) == pytest.approx((3, 0.1, 0.0))


def test_the_error_is_that_of_the_mean():
    count, more, error = compare([110.0, 90.0, 110.0, 90.0], [100.0] * 4)
    assert (count, more) == (4, pytest.approx(0.0))
    assert error == pytest.approx(0.1155 / 2, rel=1e-3)


def test_a_line_for_each_rate_and_other(tmp_path, capsys):
    table = [
        *(row('a', [1.1, 2.2], rate) for rate in ('1gbit', '100mbit')),
        *(row('b', [1.0, 2.0], rate) for rate in ('1gbit', '100mbit')),
        {'name': 'c', 'rate': '1gbit', 'error': 'lost'},
    ]
    (tmp_path / 'table.json').write_text(json.dumps(table))
    assert main([str(tmp_path / 'table.json'), 'a', 'b']) == 0
    assert capsys.readouterr().out.splitlines() == [
        f'{rate}: a takes +10.0% ± 0.0% of b (2 pairs; two standard errors)'
        for rate in ('1gbit', '100mbit')
    ]


@pytest.mark.parametrize(
    ('rows', 'message'),
    [
        ([row('a', [1.0]), row('b', [1.0])], 'no pairs'),
        ([row('a', [1.0, 2.0]), row('b', [1.0])], 'no pairs'),
        ([row('a', [1.0, 2.0])], "'b'"),
        ({}, ''),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(tmp_path, capsys, rows, message):
    if rows == {}:
        (tmp_path / 'table.json').write_text('nothing')
    else:
        (tmp_path / 'table.json').write_text(json.dumps(rows))
    assert main([str(tmp_path / 'table.json'), 'a', 'b']) == 2
    assert message in capsys.readouterr().err
