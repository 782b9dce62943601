"""The documents' figures and their table of methods: from stored numbers, which are the pages'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgc.algorithms import ALGORITHMS
from tools.figures.draw import FIGURES, draw, stored
from tools.figures.methods import BEGIN, PAGE, cells_used, markdown, with_table

ROOT = Path(__file__).parents[2]


def rows_of(page: str, section: str) -> list[list[str]]:
    """The cells of all tables of a section, without bold print."""
    text = re.split(r'\n#', (ROOT / page).read_text().partition(f'# {section}\n')[2])[0]
    lines = [line.strip() for line in text.replace('*', '').splitlines()]
    return [[c.strip() for c in line.split('|')[1:-1]] for line in lines if line.startswith('|')]


def value(cell: str) -> float:
    return float(cell.split()[0].replace(',', ''))


def test_the_page_has_the_table_of_today():
    """`make figures` writes it."""
    text = PAGE.read_text()
    assert BEGIN in text and with_table(text) == text


def test_every_algorithm_has_a_row_and_no_other_has():
    assert set(stored('methods')['methods']) == set(ALGORITHMS)
    assert markdown().count('\n') == len(ALGORITHMS) + 2


def test_the_numbers_of_the_table_are_those_of_the_pages():
    for each in cells_used():
        rows = rows_of(each['page'], each['section'])
        found = [r for r in rows if r[0] == each['row'] and len(r) > each['column']]
        assert found, each
        assert value(found[0][each['column']]) == each['value'], each


def test_the_step_times_are_those_of_the_page():
    data = stored('step_times')
    rows = rows_of(data['source']['page'], data['source']['section'])
    for each in data['rows']:
        first, second = (r for r in rows if r[0] == each['name'] and len(r) == 9)
        numbers = [value(first[1]), value(first[5]), value(second[1]), value(second[5])]
        assert numbers == [each['ms'][rate] for rate in ('1gbit', '100mbit', '10mbit', 'none')]


def test_bytes_and_accuracies_are_those_of_the_page():
    data = stored('bytes')
    rows = {r[0]: r for r in rows_of(data['source']['page'], data['source']['section'])}
    for each in data['rows']:
        row = rows[each['name']]
        assert (value(row[3]), value(row[4])) == (each['accuracy'], each['megabytes'])
    methods = {name for name, row in rows.items() if row[-1].endswith('×')}
    assert methods == {each['name'] for each in data['rows']}


def test_scaling_is_that_of_the_page():
    data = stored('scaling')
    rows = {r[0]: r for r in rows_of(data['source']['page'], data['source']['section'])}
    for each in data['rows']:
        assert [value(cell) for cell in rows[each['name']][1:6]] == each['ms']


def test_the_timeline_is_that_of_the_page():
    data = stored('timeline')
    text = (ROOT / data['source']['page']).read_text()
    for each in data['divisions']:
        assert f'{each["name"]}: {each["buckets"]} buckets, {each["ms"]} ms per step' in text
        for name in ('backward', 'compress', 'communicate'):
            assert f'{name:<12} {each[name]}\n' in text


@pytest.mark.parametrize('name', sorted(FIGURES))
def test_a_figure_is_what_the_command_draws(name, tmp_path):
    draw(name, tmp_path / 'figure.svg')
    drawn, kept = (tmp_path / 'figure.svg').read_text(), ROOT / f'docs/figures/{name}.svg'
    assert drawn.count('<path') == kept.read_text().count('<path')
    assert len(drawn) == len(kept.read_text())
