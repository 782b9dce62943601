"""Running the tests on a mutated copy of the tree, and the record of what they found."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.mutate.mutations import Mutation
from tools.mutate.relevance import Relevance
from utils.files import append_line
from utils.lines import json_lines

PASSED, NO_TESTS = 0, 5  # exit codes of pytest
WHOLE = 'the whole suite'
FAILED = re.compile(r'^(?:FAILED|ERROR) (\S+(?: \S+\])?)', re.M)


class BaselineError(RuntimeError):
    """The tests fail without a mutation, so that a failure would say nothing of one."""


@dataclass(frozen=True)
class Outcome:
    """How the tests ended.

    Attributes:
        passed: whether all did.
        test: the test that failed, or why there is none: 'timeout', 'collection'.
        seconds: wall-clock time.
    """

    passed: bool
    test: str
    seconds: float


@contextlib.contextmanager
def copied(root: Path, folder: Path) -> Iterator[Path]:
    """A clone of the repository at ``root`` under ``folder``, with its uncommitted changes.

    The clone shares git's objects, and has the files that git does not ignore.
    """
    target = folder / 'tree'
    _git(folder, 'clone', '-q', '--shared', str(root), str(target))
    for name in _listed(root, '--modified', '--others', '--exclude-standard'):
        if (source := root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for name in _listed(root, '--deleted'):
        (target / name).unlink()
    try:
        yield target
    finally:
        shutil.rmtree(target)


def _listed(root: Path, *which: str) -> list[str]:
    return [name for name in _git(root, 'ls-files', '-z', *which).split('\0') if name]


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(['git', *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


class Suite:
    """The test suite of a copied tree.

    Args:
        tree: the root of the copy.
        arguments: of pytest, before the test files.
        limit: seconds after which a run counts as failed.
    """

    def __init__(self, tree: Path, arguments: Sequence[str], limit: float) -> None:
        self.tree, self.arguments, self.limit = tree, list(arguments), limit

    def run(self, tests: Sequence[str] = ()) -> Outcome:
        """Run some test files, or all of them, until the first failure."""
        started = time.monotonic()
        # Bytecode is not written: a mutation may leave a file's size and time as they were.
        process = subprocess.Popen(
            [sys.executable, '-m', 'pytest', '-x', '-q', *self.arguments, *tests],
            cwd=self.tree,
            env=os.environ | {'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONPATH': str(self.tree)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return Outcome(False, 'timeout', time.monotonic() - started)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        passed = process.returncode in (PASSED, NO_TESTS)
        first = FAILED.search(output)
        test = '' if passed else first[1] if first else 'collection'
        return Outcome(passed, test, time.monotonic() - started)


class Record:
    """Results in a file of JSON lines, which a later run goes on with."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.results = {line['key']: line for line in json_lines(file)}

    def add(self, key: str, **what: Any) -> dict[str, Any]:
        """Write one result at once."""
        line = {'key': key, **what}
        append_line(self.file, json.dumps(line))
        self.results[key] = line
        return line


class Trial:
    """Tries mutations one by one, first on the tests that name the module.

    Args:
        suite: of the copied tree, which a mutation changes and which is put back afterwards.
        record: where results are looked up and written.
        fast_only: whether the tests that name the module are all that is run.
    """

    def __init__(self, suite: Suite, record: Record, fast_only: bool = False) -> None:
        self.suite, self.record, self.fast_only = suite, record, fast_only
        self.relevance = Relevance(suite.tree)
        self.state = _digest(suite.tree)

    def result(self, mutation: Mutation) -> dict[str, Any]:
        """Whether the tests find a mutation, from the record where it has been tried.

        Returns:
            The mutation, result ('killed' or 'survived'), stage (the tests that named the module,
            or the whole suite), test (the one that failed) and seconds.

        Raises:
            BaselineError: a test fails without the mutation.
        """
        key = f'{self.state}:{mutation.file}:{mutation.start}:{mutation.kind}:{mutation.after}'
        if key in self.record.results:
            return self.record.results[key]
        seconds, found = 0.0, {'result': 'survived', 'stage': '', 'test': ''}
        for stage, tests in self._stages(mutation.file):
            self._check_baseline(tests)
            outcome = self._mutated(mutation, tests)
            seconds += outcome.seconds
            if not outcome.passed:
                found = {'result': 'killed', 'stage': stage, 'test': outcome.test}
                break
        return self.record.add(key, **found, seconds=round(seconds, 1), **asdict(mutation))

    def _stages(self, file: str) -> Iterator[tuple[str, list[str]]]:
        """Names of the stages, and the test files of each."""
        if named := self.relevance.tests_of(file):
            yield ' '.join(named), named
        if not self.fast_only:
            yield WHOLE, []

    def _mutated(self, mutation: Mutation, tests: Sequence[str]) -> Outcome:
        path = self.suite.tree / mutation.file
        source = path.read_bytes()
        path.write_bytes(mutation.apply(source))
        try:
            return self.suite.run(tests)
        finally:
            path.write_bytes(source)

    def _check_baseline(self, tests: Sequence[str]) -> None:
        key = f'{self.state}:baseline:{" ".join(tests) or WHOLE}'
        if key not in self.record.results:
            outcome = self.suite.run(tests)
            if not outcome.passed:
                raise BaselineError(f'without a mutation {outcome.test} fails: mend it first')
            self.record.add(key, result='baseline', seconds=round(outcome.seconds, 1))


def _digest(tree: Path) -> str:
    """Of all Python files: results of another state of the tree are not used."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob('*.py')):
        digest.update(str(path.relative_to(tree)).encode() + b'\0' + path.read_bytes())
    return digest.hexdigest()[:12]
