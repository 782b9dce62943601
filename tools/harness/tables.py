"""Numbers, aligned tables for terminals, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def number(value: float | None, digits: int = 1) -> str:
    """Format a number; '' for None. From 1,000 on no digits follow the decimal point."""
    if value is None:
        return ''
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:,.{digits}f}'


def megabytes(count: float | None) -> float | None:
    """Convert bytes to units of 10⁶ bytes; None stays None."""
    return None if count is None else count / 1e6


def align(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """Lines of a table with aligned columns.

    Args:
        rows: cells; every row has as many.
        right: align all columns but the first to the right instead of to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    justify = str.rjust if right else str.ljust
    return [
        '  '.join([row[0].ljust(widths[0]), *map(justify, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, without a line feed at its end."""
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
