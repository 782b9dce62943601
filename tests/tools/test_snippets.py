"""Snippets of a page: which are executed, and that one that fails is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.snippets.commands import command_lines
from tools.snippets.run import snippets

ROOT = Path(__file__).parents[2]
RUN = ROOT / 'tools/snippets/run.py'
PAGE = """
Text.

```python
engine = dgc.create()
```

<!-- not executed: it needs a GPU -->
```python
torch.zeros(1, device='cuda')
```

- In a list:

    ```python
    # some/file.py
    undefined
    ```

```bash
undefined
```
"""


def run(page: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, str(RUN), str(page)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_each_block_of_python_is_found_with_its_reason(tmp_path):
    page = tmp_path / 'page.md'
    page.write_text(PAGE)
    first, second, third = snippets(page)
    assert (first.line, first.text, first.reason) == (5, 'engine = dgc.create()\n', '')
    assert second.reason == 'it needs a GPU'
    assert third.text == '# some/file.py\nundefined\n' and third.reason == 'a file'


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('missing', "NameError: name 'missing' is not defined"),
        ('optimizer = torch.optim.SGD(model.parameters(), lr=0.0)', 'changes no parameter'),
    ],
)
def test_a_snippet_that_fails_is_named_by_its_line(tmp_path, warm_python, code, message):
    page = tmp_path / 'page.md'
    page.write_text(f'{PAGE}\n```python\n{code}\n```\n')
    done = run(page)
    assert done.returncode == 1
    assert done.stdout.startswith('2 snippets executed by 1 ranks, 1 failed')
    assert f'{page}:{page.read_text().splitlines().index(code) + 1}' in done.stderr
    assert message in done.stderr


def test_command_lines_are_joined_and_variables_put_in(tmp_path):
    page = tmp_path / 'page.md'
    page.write_text(
        '    MORE="--devices cpu\n        --suffix .x"\n\n'
        '    python train.py --configs configs/a.py \\\n        configs/b.py $MORE  # why\n'
        '    make run\n'
    )
    (line,) = command_lines(page)
    assert line.split() == [
        'python', 'train.py', '--configs', 'configs/a.py', 'configs/b.py',
        '--devices', 'cpu', '--suffix', '.x',
    ]  # fmt: skip
