"""The code that docs/adding.md shows, as modules."""

from __future__ import annotations

import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parent.parent / 'docs' / 'adding.md'


def source(file: str) -> str:
    """What docs/adding.md writes into ``file``: the block of code that begins with its name."""
    block = re.search(rf'^( *)# {re.escape(file)}\n.*?```', PAGE.read_text(), re.S | re.M)
    assert block is not None, f'docs/adding.md has no {file}'
    return textwrap.dedent(block[0].rpartition('```')[0])


@cache
def documented(file: str) -> ModuleType:
    """Execute the module that docs/adding.md writes into ``file``, under its own name."""
    module = ModuleType(file.removesuffix('.py').replace('/', '.'))
    sys.modules[module.__name__] = module
    exec(compile(source(file), f'docs/adding.md: {file}', 'exec'), module.__dict__)
    return module
