"""Compare trained parameters and memories with those of another commit, bit for bit.

    git worktree add ../before COMMIT
    cd ../before && python HERE/tests/dgc/same_bits.py write /tmp/digests.json
    cd HERE && python tests/dgc/same_bits.py compare /tmp/digests.json

Both commands use the ``dgc`` and the property table of the checkout that is the working folder; the
second one compares the cases that the file has.
Digests are of one machine: torch rounds by the instruction set of the processor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

ROOT = Path.cwd()
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'tests' / 'dgc')]

import torch  # noqa: E402
from dgc_helpers import loss, parameters, wrap  # noqa: E402
from test_properties import CASES, MOMENTA, TABLE, Case  # noqa: E402
from torch import Tensor  # noqa: E402

import dgc  # noqa: E402

STEPS = 50
# More than one block of the kernels; several parameters in a bucket, and some that are not sparse.
SHAPES = {'wide.weight': (64, 20), 'narrow.weight': (16, 10), 'bias': (10,), 'scale': (),
          'square.weight': (40, 41)}  # fmt: skip
DECAYS = (0.01, 0.0)


def tensors_of(state: object) -> Iterator[Tensor]:
    """Yield all tensors in nested dictionaries, in the order of their keys as text."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from tensors_of(state[key])


def digest(case: Case, weight_decay: float, engine: dgc.Engine) -> str:
    """Train as the property tests do; hash this rank's parameters, gradients and memories.

    In every fifth step the loop calls ``synchronize()`` itself.
    """
    named = parameters(SHAPES)
    optimizer = wrap(
        named,
        TABLE[case.row].make(),
        engine,
        momentum=case.momentum,
        nesterov=case.nesterov,
        weight_decay=weight_decay,
        steps_per_epoch=3,
    )
    found = hashlib.sha256()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(named, engine.rank, step).backward()
        if step % 5 == 4:
            optimizer.synchronize()
        optimizer.step()
        for _, parameter in named:
            found.update(parameter.detach().numpy().tobytes())
            found.update(parameter.grad.detach().clone().numpy().tobytes())
    for tensor in tensors_of(optimizer.state_dict()):
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def all_cases(cases: Iterable[Case]) -> dict[str, tuple[Case, float]]:
    """Return cases, with each weight decay, by name."""
    pairs = [(case, decay) for case in cases for decay in DECAYS]
    return {f'{case}, decay {decay:g}': (case, decay) for case, decay in pairs}


def possible() -> Iterator[Case]:
    """Yield every row with every kind of momentum: tables of two commits need not pair them alike.

    The rows of another commit that are not here are left out.
    """
    for row, workers, (momentum, nesterov) in product(TABLE, range(1, 65), MOMENTA):
        yield Case(row, workers, momentum, nesterov)


def digests(chosen: Mapping[str, tuple[Case, float]]) -> dict[str, list[str]]:
    """Return the digests of cases, one a rank."""
    found: dict[str, list[str]] = {}
    for name, (case, decay) in chosen.items():
        try:
            found[name] = dgc.simulate(case.workers, partial(digest, case, decay))
        except Exception as error:
            found[name] = [f'{type(error).__name__}: {error}'.splitlines()[0]]
        print(f'\r{len(found)} of {len(chosen)}', end='', file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def main() -> int:
    """Write, or compare and print what differs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('command', choices=['write', 'compare'])
    parser.add_argument('file', type=Path)
    parser.add_argument('--first', type=int, default=0, help='number of the first case (0)')
    parser.add_argument('--every', type=int, default=1, help='of so many, take one (1)')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == 'write':
        chosen = list(all_cases(CASES).items())[arguments.first :: arguments.every]
        arguments.file.write_text(json.dumps(digests(dict(chosen)), indent=1))
        return 0
    wanted = json.loads(arguments.file.read_text())
    known = all_cases(possible())
    found = digests({name: known[name] for name in wanted if name in known})
    differ = [name for name in found if found[name] != wanted.get(name)]
    for name in differ:
        print(f'differs: {name}')
    if missing := len(wanted) - len(found):
        print(f'{missing} cases of the file are not there any more')
    print(f'{len(found) - len(differ)} of {len(found)} cases are the same, bit for bit')
    return int(bool(differ))


if __name__ == '__main__':
    sys.exit(main())
