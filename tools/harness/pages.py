"""Tables that programs write into pages of the documentation, between two marks."""

from __future__ import annotations

from pathlib import Path


def marks(name: str) -> tuple[str, str]:
    """The lines before and behind what is written under a name on a page."""
    return f'<!-- {name}: begin -->', f'<!-- {name}: end -->'


def write(page: Path, text: str, name: str) -> None:
    """Put a text between the marks of a page.

    Args:
        page: Has the marks.
        text: In Markdown.
        name: Of the marks.
    """
    begin, end = marks(name)
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f'{before}{begin}\n{text}\n{end}{after}')
