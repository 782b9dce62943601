"""Mutations of a Python module: small changes of its syntax tree, each at one place of its text.

A mutation replaces one span of the source, so that the rest of the file keeps its text and its line
numbers. Docstrings, messages (arguments of `raise`, warnings and logging, f-strings), annotations
and decorators are left alone: a change there is not a fault that a test of behaviour could find.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
MESSAGES = ('warn', 'warning', 'info', 'debug', 'error', 'print')  # functions that take a message


@dataclass(frozen=True)
class Mutation:
    """A span of a file's bytes and the text to put there.

    Attributes:
        file: path relative to the root of the tree.
        line, column: where the span starts, from 1 and from 0, as in Python's own messages.
        kind: comparison, sign, constant, condition, return or deletion.
        start, end: the span, in bytes.
        before, after: the text of the span, and of its replacement.
    """

    file: str
    line: int
    column: int
    kind: str
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f'{self.file}:{self.line}: {self.kind}: {_short(self.before)} → {_short(self.after)}'

    def apply(self, source: bytes) -> bytes:
        """The mutated source.

        Raises:
            ValueError: the source is not the one that the mutation was made for.
        """
        if source[self.start : self.end] != self.before.encode():
            raise ValueError(f'{self.file} has changed since this mutation was drawn')
        return source[: self.start] + self.after.encode() + source[self.end :]


def draw(root: Path, files: Sequence[str], seed: int, count: int) -> list[Mutation]:
    """``count`` mutations of the files, or all where there are fewer, the same for a seed."""
    found = [
        mutation
        for file in sorted(files)
        for mutation in mutations(file, (root / file).read_bytes())
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def mutations(file: str, source: bytes) -> list[Mutation]:
    """All mutations of one module, from its first line to its last."""
    found = _Finder(file, source).found()
    return sorted(found, key=lambda m: (m.start, m.end, m.kind, m.after))


def _short(text: str) -> str:
    """On one line."""
    return ' '.join(text.split())


class _Finder:
    """Walks the syntax tree of one module."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.tree = ast.parse(source)
        self.starts = [0]  # of each line, in bytes
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def found(self) -> Iterator[Mutation]:
        """All mutations, in no particular order."""
        for node in _behaviour(self.tree):
            yield from self._swapped_comparisons(node)
            yield from self._swapped_signs(node)
            yield from self._constants(node)
            yield from self._negated_conditions(node)
            yield from self._returns(node)
            yield from self._deletions(node)

    def _swapped_comparisons(self, node: ast.AST) -> Iterator[Mutation]:
        """a < b → a <= b, a == b → a != b, a in b → a not in b."""
        if isinstance(node, ast.Compare):
            for position, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[position] = COMPARISONS[type(operator)]()
                yield self._mutation('comparison', node, ast.unparse(changed))

    def _swapped_signs(self, node: ast.AST) -> Iterator[Mutation]:
        """a + b → a - b, a += b → a -= b; not where strings are joined."""
        if not isinstance(node, ast.BinOp | ast.AugAssign) or type(node.op) not in SIGNS:
            return
        if any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in ast.walk(node)):
            return
        changed = copy.deepcopy(node)
        changed.op = SIGNS[type(node.op)]()
        text = ast.unparse(changed)
        yield self._mutation('sign', node, text if isinstance(node, ast.AugAssign) else f'({text})')

    def _constants(self, node: ast.AST) -> Iterator[Mutation]:
        """n → n + 1; of a float the same, which is off by as much."""
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
            return
        if isinstance(node.value, int | float):
            yield self._mutation('constant', node, repr(node.value + 1))

    def _negated_conditions(self, node: ast.AST) -> Iterator[Mutation]:
        """if a: → if not (a):"""
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        for test in tests:
            yield self._mutation('condition', test, f'(not ({self._text(test)}))')

    def _returns(self, node: ast.AST) -> Iterator[Mutation]:
        """return a → return None; True and False become each other."""
        if not isinstance(node, ast.Return) or node.value is None:
            return
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        if value is not None:
            after = repr(not value) if isinstance(value, bool) else 'None'
            yield self._mutation('return', node.value, after)

    def _deletions(self, node: ast.AST) -> Iterator[Mutation]:
        """A call, an assignment in place or to a part of an object, or a jump → pass."""
        plain = isinstance(node, ast.Assign) and not any(
            isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
        )
        calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        jumps = ast.Raise | ast.Break | ast.Continue | ast.Delete
        assigns = isinstance(node, ast.Assign | ast.AugAssign) and not plain
        if calls or assigns or isinstance(node, jumps):
            yield self._mutation('deletion', node, 'pass')

    def _mutation(self, kind: str, node: ast.expr | ast.stmt | ast.AST, after: str) -> Mutation:
        start, end = self._span(node)
        before = self.source[start:end].decode()
        line, column = getattr(node, 'lineno', 0), getattr(node, 'col_offset', 0)
        return Mutation(self.file, line, column, kind, start, end, before, after)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """In bytes, as ast counts columns."""
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes under a node that change what the module does."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ('annotation', 'returns', 'decorator_list', 'type_params'):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.Raise) or _is_message(child) or _only_for_types(child):
                # A raise may be deleted; what it says is a message.
                yield from [child] if isinstance(child, ast.Raise) else []
                continue
            yield from _behaviour(child)


def _is_message(node: ast.AST) -> bool:
    """Whether a node is a call that takes a message."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, 'id', '')
    return name in MESSAGES


def _only_for_types(node: ast.AST) -> bool:
    """Whether a node is an `if TYPE_CHECKING:` or an `if __name__ == '__main__':`."""
    if not isinstance(node, ast.If):
        return False
    names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
    return bool(names & {'TYPE_CHECKING', '__name__'})
