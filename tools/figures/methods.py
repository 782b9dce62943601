"""The table of methods in docs/methods.md, from the table of algorithms and docs/data/methods.json.

The accuracies of synchronous methods are those of simulated workers, but for three by measured
times, which were trained by processes; those of asynchronous ones are of four workers and a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.figures.draw import stored
from tools.harness.algorithms import table
from tools.harness.tables import markdown_table, number

if TYPE_CHECKING:
    from dgc.algorithms import Algorithm

PAGE = Path(__file__).parents[2] / 'docs/methods.md'
BEGIN, END = '<!-- begin: python -m tools.figures -->\n', '<!-- end -->\n'
NONE = '–'


def markdown() -> str:
    """The table, with a line for each algorithm."""
    data = stored('methods')
    dense, ddp = data['methods']['dense'], data['ddp_ms']['value']
    head = (
        'method',
        f'accuracy in % (dense {dense["accuracy"]["value"]})',
        f'kB per step (dense {number(kilobytes(dense), 0)})',
        f'ms per step at 100 Mbit/s (DDP {number(ddp, 0)})',
        'when to use it',
        'config files',
    )
    rows = [row(each, data['methods'][name]) for name, each in table().items()]
    return f'{markdown_table(head, rows)}\n'


def row(algorithm: Algorithm, stored_row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one algorithm."""
    size = kilobytes(stored_row)
    accuracy, ms = stored_row.get('accuracy'), stored_row.get('ms')
    whole = '¹' if size is not None and stored_row['kilobytes']['of'] == 'run' else ''
    return (
        f'{algorithm.name}: {algorithm.summary}',
        NONE if accuracy is None else f'{accuracy["value"]:.2f}',
        NONE if size is None else f'{number(size, 1)}{whole}',
        NONE if ms is None else number(ms['value'], 0),
        stored_row['when'],
        ', '.join(f'`{path.removeprefix("configs/")}`' for path in algorithm.configs),
    )


def kilobytes(stored_row: Mapping[str, Any]) -> float | None:
    """kB of a step; None where they were not measured."""
    size = stored_row.get('kilobytes')
    return None if size is None else size['value'] * size['unit'] / size['steps']


def cells_used() -> Iterator[Mapping[str, Any]]:
    """Each stored number, with the page, section, row and column that it comes from."""
    data = stored('methods')
    yield data['ddp_ms']
    for each in data['methods'].values():
        yield from (each[name] for name in ('accuracy', 'kilobytes', 'ms') if name in each)


def with_table(text: str) -> str:
    """A page whose part between the marks is the table of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f'{before}{BEGIN}\n{markdown()}\n{END}{after}'


def write() -> Path:
    """Write the table into the page; returns its path."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return PAGE
