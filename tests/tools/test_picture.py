"""The picture of the architecture is that of this tree."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tools.imports.layers import LAYERS as IMPORT_LAYERS
from tools.picture.__main__ import FILE, picture
from tools.picture.content import LAYERS, PATH

ROOT = Path(__file__).parents[2]


def test_the_file_is_what_the_command_draws():
    assert FILE.read_text() == picture()
    ElementTree.fromstring(picture())


def test_every_module_that_it_shows_is_there():
    shown = [module for layer in LAYERS for module in layer.modules]
    shown += [name.strip() for stage in PATH for name in stage.where.split(',')]
    for module in shown:
        inside = module if module.endswith(('/', '.py')) else f'{module}.py'
        assert (ROOT / inside).exists() or (ROOT / 'dgc' / inside).exists(), module


def test_it_shows_every_module_of_the_package():
    shown = {module.rstrip('/') for layer in LAYERS for module in layer.modules}
    there = {path.stem for path in (ROOT / 'dgc').iterdir() if path.suffix in ('.py', '')}
    assert there - {'__init__', '__pycache__', 'py.typed'} <= shown


def test_its_layers_are_those_of_the_lint():
    """A module that stands above another in the picture is not below it for the lint."""
    level = {
        prefix.rpartition('dgc.')[2]: number
        for number, layer in enumerate(IMPORT_LAYERS)
        for prefix in layer
        if prefix.startswith('dgc.')
    }
    order = [m.rstrip('/') for layer in reversed(LAYERS) for m in layer.modules]
    rows = {m.rstrip('/'): i for i, layer in enumerate(reversed(LAYERS)) for m in layer.modules}
    for one in order:
        for other in order:
            if one in level and other in level and rows[one] < rows[other]:
                assert level[one] <= level[other], f'{one} is drawn below {other}'
