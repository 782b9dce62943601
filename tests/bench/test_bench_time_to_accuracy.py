"""The README's figure: its data are those of the documents, and the file is what is drawn."""

from __future__ import annotations

import json

import pytest

from bench.time_to_accuracy import DATA, FIGURE, MEASURED_STEPS, ROOT, composed, draw

STORED = json.loads(DATA.read_text())


def cells(page: str, heading: str) -> list[list[str]]:
    """The cells of all tables of a section, without bold print."""
    section = (ROOT / page).read_text().partition(f'# {heading}\n')[2].partition('\n#')[0]
    lines = section.replace('*', '').splitlines()
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if '|' in line]


def test_the_measured_seconds_are_those_of_the_document():
    table = {row[0]: row for row in cells('docs/performance.md', 'Time to a target accuracy')}
    names = {'DDP': 'DDP, fp32', 'DGC, 0.1 %': 'dgc, 0.1 %', 'DGC, 1 %': 'dgc, 1 %',
             'gTop-k, 1 %': 'gtopk, 1 %'}  # fmt: skip
    for row in STORED['reached']['rows']:
        _, *reached, end, _, _ = table[names[row['name']]]
        expected = [
            (int(seconds), level)
            for seconds, level in zip(reached, (45, 50, 55), strict=True)
            if seconds != 'never'
        ]
        accuracy, _, seconds = end.partition(' % in ')
        expected.append((int(seconds.split()[0]), float(accuracy)))
        assert [tuple(point) for point in row['points']] == expected
    for row in STORED['composed']['rows']:
        assert float(table[names[row['name']]][5]) == row['seconds_per_78_steps']


def test_the_accuracies_by_epoch_are_those_of_the_document():
    page = 'docs/results.md'
    dense = [float(row[2]) for row in cells(page, 'ResNet-20 on CIFAR-10, four workers')
             if row[0].isdigit()]  # fmt: skip
    ours = [float(row[2]) for row in cells(page, 'Packed indices, 8-bit values, shared buckets')
            if row[0].isdigit()]  # fmt: skip
    assert [row['accuracy'] for row in STORED['composed']['rows']] == [dense, ours]


def test_seconds_are_steps_times_the_seconds_of_a_step():
    row = {'seconds_per_78_steps': float(MEASURED_STEPS), 'accuracy': [40.0, 50.0]}
    assert composed(row, 390) == [(pytest.approx(390.0), 40.0), (pytest.approx(780.0), 50.0)]


def test_the_file_is_what_the_command_draws(tmp_path):
    draw(STORED, tmp_path / 'figure.svg')
    drawn = (tmp_path / 'figure.svg').read_text()
    assert drawn.count('<path') == FIGURE.read_text().count('<path')
    assert len(drawn) == len(FIGURE.read_text())
