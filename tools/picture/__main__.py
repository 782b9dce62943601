"""``python -m tools.picture``: write docs/figures/architecture.svg."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tools.picture.content import LAYERS, PATH

FILE = Path(__file__).parents[2] / 'docs/figures/architecture.svg'
WIDTH, MARGIN, GAP = 1240, 20, 10
STAGE_HEIGHT, LEFT = 52, 560  # of the path's boxes
FONT = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif"'


def main() -> int:
    """Draw the picture; return the exit code."""
    FILE.write_text(picture())
    print(FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE)
    return 0


def picture() -> str:
    """Return the SVG: the path of a gradient on the left, the modules by layer on the right."""
    top = MARGIN + 34
    height = top + len(PATH) * (STAGE_HEIGHT + GAP) + MARGIN
    shapes = [
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(MARGIN, MARGIN + 16, 'The path of a gradient', size=17, weight='bold'),
        text(LEFT + 60, MARGIN + 16, 'The modules: each imports downwards only', 17, 'bold'),
        *stages(top),
        *layers(top, height - MARGIN),
    ]
    body = '\n'.join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">\n{body}\n</svg>\n'
    )


def stages(top: int) -> Iterator[str]:
    """The boxes of the path, from top to bottom, with arrows between them."""
    for number, stage in enumerate(PATH):
        y = top + number * (STAGE_HEIGHT + GAP)
        yield box(MARGIN, y, LEFT - MARGIN, STAGE_HEIGHT, '#eef4fb', '#3b6ea5')
        yield text(MARGIN + 14, y + 21, stage.name, 14, 'bold')
        yield text(MARGIN + 14, y + 40, stage.what, 12)
        yield text(LEFT - 14, y + 21, stage.where, 12, colour='#3b6ea5', anchor='end')
        if number:
            x = MARGIN + (LEFT - MARGIN) // 2
            yield f'<path d="M{x - 5} {y - GAP + 1} h10 l-5 8 z" fill="#3b6ea5"/>'


def layers(top: int, bottom: int) -> Iterator[str]:
    """The layers, from the top down, with a box for each module."""
    left = LEFT + 60
    height = (bottom - top - GAP * (len(LAYERS) - 1)) // len(LAYERS)
    for number, layer in enumerate(LAYERS):
        y = top + number * (height + GAP)
        yield box(left, y, WIDTH - MARGIN - left, height, '#f7f4ec', '#9a7b2f')
        yield text(left + 10, y + 16, layer.name, 11, colour='#7a5f1d')
        width = (WIDTH - MARGIN - left - 12) // len(layer.modules)
        for place, module in enumerate(layer.modules):
            x = left + 8 + place * width
            yield box(x, y + 22, width - 6, height - 28, 'white', '#c9b37a')
            yield text(
                x + (width - 6) / 2, y + 22 + (height - 28) / 2 + 4, module, 11, anchor='middle'
            )


def box(x: float, y: float, width: float, height: float, fill: str, line: str) -> str:
    """A rounded rectangle."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{fill}" stroke="{line}"/>'
    )


def text(
    x: float,
    y: float,
    content: str,
    size: int,
    weight: str = 'normal',
    colour: str = '#222',
    anchor: str = 'start',
) -> str:
    """A line of text."""
    return (
        f'<text x="{x}" y="{y}" {FONT} font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{escape(content)}</text>'
    )


if __name__ == '__main__':
    sys.exit(main())
