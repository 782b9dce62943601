"""Execute the Python snippets of documentation pages, as a reader would paste them.

    python tools/snippets/run.py README.md docs/*.md

It imports the standard library, torch and the installed dgc alone, so that it also runs where only
the wheel is installed. Under torchrun, every rank executes the snippets. Exit code 1 where one
fails.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

import dgc

# A fenced block, with what may stand in the comment before it.
BLOCK = re.compile(
    r'(?:^ *<!-- not executed: (?P<reason>[^>]+) -->\n+)?'
    r'^(?P<indent> *)```python\n(?P<text>.*?)^(?P=indent)```',
    re.M | re.S,
)
OPTIMIZER = re.compile(r'^optimizer = ', re.M)
FILE = re.compile(r'# \S+\.py\n')  # the first line of a block that is a file of its own


class Snippet(NamedTuple):
    """A block of Python on a page.

    Attributes:
        page: That it is on.
        line: Of its first line of code, from 1.
        text: The code.
        reason: Why it is not executed; '' where it is.
    """

    page: Path
    line: int
    text: str
    reason: str


def snippets(page: Path) -> list[Snippet]:
    """Return all blocks of Python of a page.

    The comment ``<!-- not executed: REASON -->`` before a block excludes it. Blocks that begin with
    the name of a file are modules; the tests of the page write and import them.
    """
    content = page.read_text()
    found = []
    for match in BLOCK.finditer(content):
        text = textwrap.dedent(match['text'])
        reason = (match['reason'] or '').strip()
        if FILE.match(text):
            reason = reason or 'a file'
        line = content.count('\n', 0, match.start('text')) + 1
        found.append(Snippet(page, line, text, reason))
    return found


def names() -> dict[str, Any]:
    """Return what the pages take for granted: both packages, a network, its data and a folder."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    rank = dist.get_rank() if dist.is_initialized() else 0
    draw = torch.Generator().manual_seed(rank)
    loader = [
        (torch.randn(4, 8, generator=draw), torch.randint(3, (4,), generator=draw))
        for _ in range(3)
    ]
    return {
        'dgc': dgc,
        'torch': torch,
        'device': 'cpu',
        'network': model,
        'model': model,
        'loader': loader,
        'criterion': nn.CrossEntropyLoss(),
        'folder': 'distributed-checkpoint',
    }


def wrapped(model: nn.Module) -> tuple[dgc.Engine, dgc.DistributedOptimizer]:
    """Return an engine and a wrapped optimizer, for snippets that go on with theirs."""
    engine = dgc.create()
    optimizer = dgc.DGCSGD(model.parameters(), lr=0.1, momentum=0.9)
    return engine, dgc.DistributedOptimizer(optimizer, model.named_parameters(), engine=engine)


def execute(snippet: Snippet) -> None:
    """Execute a snippet in a namespace of its own; train with the optimizer that it leaves, unless
    it takes steps itself.

    Raises:
        Exception: Whatever the snippet raises; AssertionError where no parameter changed, or one is
            not finite.
    """
    namespace = names()
    if 'DistributedOptimizer(' not in snippet.text and not OPTIMIZER.search(snippet.text):
        namespace['engine'], namespace['optimizer'] = wrapped(namespace['model'])
        train(namespace)
    if 'dcp_to_torch_save' in snippet.text:
        from torch.distributed.checkpoint.state_dict_saver import save

        save({'optimizer': namespace['optimizer']}, checkpoint_id=namespace['folder'])
    code = compile('\n' * (snippet.line - 1) + snippet.text, str(snippet.page), 'exec')
    before = [each.detach().clone() for each in namespace['model'].parameters()]
    exec(code, namespace)
    if '.step(' not in snippet.text:
        before = [each.detach().clone() for each in namespace['model'].parameters()]
        train(namespace)
    after = [each.detach() for each in namespace['model'].parameters()]
    assert all(bool(each.isfinite().all()) for each in after), 'a parameter is not finite'
    changed = any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert changed, 'its optimizer changes no parameter'


def train(namespace: dict[str, Any]) -> None:
    """Take a step for each batch of the loader."""
    for inputs, targets in namespace['loader']:
        namespace['optimizer'].zero_grad()
        namespace['criterion'](namespace['model'](inputs), targets).backward()
        namespace['optimizer'].step()


def failures(pages: Sequence[Path]) -> Iterator[tuple[Snippet, str]]:
    """Execute the snippets of some pages; yield those that fail, with why."""
    for page in pages:
        for snippet in snippets(page.absolute()):
            if snippet.reason:
                continue
            dist.barrier()  # one snippet may read what another wrote
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter('ignore')
                    execute(snippet)
            except Exception:
                yield snippet, traceback.format_exc(limit=-3)


def in_group() -> None:
    """Make the default process group: of torchrun's ranks, or of this process alone."""
    timeout = timedelta(seconds=60)  # where a snippet fails on one rank, the others wait
    if 'RANK' in os.environ:
        dist.init_process_group('gloo', timeout=timeout)
    else:
        dist.init_process_group('gloo', store=HashStore(), rank=0, world_size=1)


@contextmanager
def empty_folder() -> Iterator[None]:
    """Work in an empty folder, the same one on all ranks of a machine."""
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared)
        before = Path.cwd()
        os.chdir(shared[0])
        try:
            yield
            dist.barrier()
        finally:
            os.chdir(before)


def main(arguments: Sequence[str]) -> int:
    """Execute the pages named; return the exit code."""
    if not arguments or arguments[0].startswith('-'):
        print(__doc__)
        return 2
    pages = [Path(each).absolute() for each in arguments]
    count = sum(not each.reason for page in pages for each in snippets(page))
    in_group()
    failed = 0
    with empty_folder():
        for snippet, text in failures(pages):
            failed += 1
            print(f'{snippet.page}:{snippet.line}\n{text}', file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        print(f'{count} snippets executed by {dist.get_world_size()} ranks, {failed} failed '
              f'(dgc {dgc.__version__} from {Path(dgc.__file__).parent})')  # fmt: skip
    dist.destroy_process_group()
    return int(failed > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
