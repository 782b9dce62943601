"""Mutation testing: which mutations are drawn, which tests are run first, and what is recorded."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tools.mutate import __main__ as command
from tools.mutate.mutations import Mutation, draw, mutations
from tools.mutate.relevance import FEW, Relevance
from tools.mutate.trial import BaselineError, Outcome, Record, Suite, Trial, copied

ROOT = Path(__file__).parents[2]


def changes(source: str) -> dict[str, set[str]]:
    """The mutated sources, by kind."""
    found: dict[str, set[str]] = {}
    for mutation in mutations('dgc/a.py', source.encode()):
        found.setdefault(mutation.kind, set()).add(mutation.apply(source.encode()).decode())
    return found


class TestMutations:
    def test_comparisons_are_swapped_one_at_a_time(self):
        assert changes('x = a < b <= c\n') == {
            'comparison': {'x = a <= b <= c\n', 'x = a < b < c\n'}
        }

    @pytest.mark.parametrize(
        ('before', 'after'),
        [('==', '!='), ('>', '>='), ('>=', '>'), ('is', 'is not'), ('not in', 'in')],
    )
    def test_each_operator_has_its_opposite_or_its_neighbour(self, before, after):
        assert changes(f'x = a {before} b\n') == {'comparison': {f'x = a {after} b\n'}}

    def test_signs_are_swapped_and_keep_their_precedence(self):
        assert changes('x = a - b + c\n')['sign'] == {'x = (a - b - c)\n', 'x = (a + b) + c\n'}
        assert 'x -= y\n' in changes('x += y\n')['sign']

    def test_joined_strings_keep_their_sign(self):
        assert changes("x = 'a' + b\ny = f'{c}' + d\n") == {}

    def test_numbers_are_off_by_one(self):
        assert changes('x = 3\n') == {'constant': {'x = 4\n'}}
        assert changes('x = 0.5\n') == {'constant': {'x = 1.5\n'}}
        assert changes('x = True\n') == {}

    @pytest.mark.parametrize(
        ('before', 'after'),
        [
            ('if a or b:\n    c = d\n', 'if (not (a or b)):\n    c = d\n'),
            ('while a:\n    c = d\n', 'while (not (a)):\n    c = d\n'),
            ('x = b if a else c\n', 'x = b if (not (a)) else c\n'),
            ('x = [b for b in c if b]\n', 'x = [b for b in c if (not (b))]\n'),
        ],
    )
    def test_conditions_are_negated(self, before, after):
        assert changes(before) == {'condition': {after}}

    def test_return_values_are_replaced(self):
        def function(value: str) -> str:
            return f'def f(a):\n    return {value}\n'

        assert changes(function('a')) == {'return': {function('None')}}
        assert changes(function('False')) == {'return': {function('True')}}
        assert changes(function('None')) == {}

    @pytest.mark.parametrize('statement', ['f(a)', 'a.b = c', 'a[b] = c', 'raise E(1)', 'del a'])
    def test_statements_are_deleted(self, statement):
        source = 'def f(a):\n    {}\n'
        assert source.format('pass') in changes(source.format(statement))['deletion']

    def test_an_assignment_to_a_name_is_not_deleted(self):
        """What reads the name would fail at once."""
        assert changes('x = y\n') == {}

    def test_what_is_no_behaviour_is_left_alone(self):
        source = (
            '"""Of 1 < 2."""\n'
            'if TYPE_CHECKING:\n    from a import b\n'
            '@decorated(3)\n'
            'def f(a: Literal[1]) -> Literal[2]:\n'
            '    """Of 1 + 2."""\n'
            '    warnings.warn(message, stacklevel=2)\n'
            "    x: Literal[4] = f'{y + 1}'\n"
            "if __name__ == '__main__':\n    pass\n"
        )
        (deletion,) = changes(source).pop('deletion')
        assert changes(source).keys() == {'deletion'}
        assert deletion == source.replace('warnings.warn(message, stacklevel=2)', 'pass')

    def test_a_raise_is_deleted_and_its_message_kept(self):
        source = "def f(a):\n    raise ValueError(a + 1, 'b')\n"
        assert changes(source) == {'deletion': {'def f(a):\n    pass\n'}}

    def test_columns_count_bytes(self):
        assert changes("x = 'θ·λ', a < b\n") == {'comparison': {"x = 'θ·λ', a <= b\n"}}

    def test_a_mutation_of_another_source_is_refused(self):
        (mutation,) = mutations('dgc/a.py', b'x = 3\n')
        with pytest.raises(ValueError, match=r'dgc/a.py has changed'):
            mutation.apply(b'x = 5\n')

    def test_mutations_of_this_tree_are_different_programs(self):
        files = command.files(ROOT, 'dgc')
        drawn = draw(ROOT, files, seed=0, count=100_000)
        assert len(drawn) == len(set(drawn)) > 1000
        assert {mutation.file for mutation in drawn} >= {'dgc/buckets.py', 'dgc/ops/native.py'}
        assert 'dgc/ops/cuda.py' not in files
        for mutation in drawn[:60]:
            source = (ROOT / mutation.file).read_bytes()
            mutated = ast.parse(mutation.apply(source))
            assert ast.dump(mutated) != ast.dump(ast.parse(source)), mutation

    def test_a_seed_draws_the_same_and_another_seed_others(self):
        files = command.files(ROOT, 'dgc/planner')
        first = draw(ROOT, files, 14, 20)
        assert draw(ROOT, files[::-1], 14, 20) == first
        assert len(first) == len(set(first)) == 20
        assert draw(ROOT, files, 15, 20) != first


@pytest.fixture
def tree(tmp_path) -> Path:
    """A repository with a package dgc of three modules, and tests of two of them."""
    root = tmp_path / 'root'
    texts = {
        'dgc/__init__.py': 'from dgc.parts.one import first\n',
        'dgc/parts/__init__.py': 'from dgc.parts.two import second\n',
        'dgc/parts/one.py': 'from dgc.parts.deep import least\n\n\n'
        'def first(a):\n    return least(a, 5)\n',
        'dgc/parts/two.py': 'def second(a):\n    return a\n',
        'dgc/parts/deep.py': 'def least(a, b):\n    if a < b:\n        return a\n    return b\n',
        'tests/helpers.py': 'from dgc.parts import second\n',
        'tests/worker.py': 'from dgc.parts.deep import least\n',
        'tests/test_first.py': 'import dgc\n\n\ndef test_it():\n    assert dgc.first(3) == 3\n',
        'tests/test_helped.py': 'import helpers\n\n\ndef test_it():\n'
        '    assert helpers.second(2)\n',
        'pytest.ini': '[pytest]\npythonpath = . tests\n',
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    identity = ['-c', 'user.name=a', '-c', 'user.email=a@b']
    for words in (['init', '-q'], ['add', '.'], [*identity, 'commit', '-qm', 'first']):
        subprocess.run(['git', *words], cwd=root, check=True)
    return root


class TestRelevance:
    def test_names_that_a_package_takes_from_its_modules_lead_there(self, tree):
        assert Relevance(tree).tests_of('dgc/parts/one.py') == ['tests/test_first.py']

    def test_helpers_count_for_the_tests_that_import_them(self, tree):
        assert Relevance(tree).tests_of('dgc/parts/two.py') == ['tests/test_helped.py']

    def test_a_module_that_no_test_names_has_the_tests_of_its_importers(self, tree):
        assert Relevance(tree).tests_of('dgc/parts/deep.py') == ['tests/test_first.py']

    def test_a_worker_that_a_test_starts_counts_as_its_helper(self, tree):
        (tree / 'tests/test_started.py').write_text("WORKER = 'worker.py'\n")
        assert Relevance(tree).tests_of('dgc/parts/deep.py') == ['tests/test_started.py']

    def test_a_test_of_that_name_comes_first(self, tree):
        (tree / 'tests/test_deep.py').write_text('from dgc.parts.deep import least\n')
        (tree / 'tests/test_a.py').write_text('from dgc.parts.deep import least\n')
        tests = ['tests/test_deep.py', 'tests/test_a.py']
        assert Relevance(tree).tests_of('dgc/parts/deep.py') == tests

    def test_of_this_tree(self):
        relevance = Relevance(ROOT)
        assert relevance.tests_of('dgc/hooks.py')[0] == 'tests/dgc/test_hooks.py'
        assert relevance.tests_of('dgc/local_steps.py')[0] == 'tests/dgc/test_local_steps.py'
        for file in command.files(ROOT, 'dgc'):
            if not file.endswith('__init__.py'):
                assert 1 <= len(relevance.tests_of(file)) <= FEW, file


def of(tree: Path, file: str, kind: str) -> Mutation:
    """The only mutation of a kind in a file."""
    found = mutations(file, (tree / file).read_bytes())
    return next(mutation for mutation in found if mutation.kind == kind)


class Finding(Suite):
    """A suite without processes: each of its test files finds one text in one file.

    Args:
        finds: test file to (file, text).
    """

    def __init__(self, tree: Path, finds: dict[str, tuple[str, str]]) -> None:
        super().__init__(tree, [], 60)
        self.finds, self.runs = finds, []

    def run(self, tests=()) -> Outcome:
        self.runs.append(tuple(tests))
        for test in tests or self.finds:
            file, text = self.finds.get(test, ('pytest.ini', 'never'))
            if text in (self.tree / file).read_text():
                return Outcome(False, f'{test}::test_it', 1.0)
        return Outcome(True, '', 1.0)


class TestTrial:
    FILE = 'dgc/parts/two.py'
    FINDS = ('dgc/parts/two.py', 'return None')
    NAMED = ('tests/test_helped.py',)

    @pytest.fixture
    def mutation(self, tree) -> Mutation:
        return of(tree, self.FILE, 'return')

    @pytest.fixture
    def record(self, tmp_path) -> Record:
        return Record(tmp_path / 'results.jsonl')

    def test_what_the_named_tests_find_ends_there(self, tree, record, mutation):
        suite = Finding(tree, {'tests/test_helped.py': self.FINDS})
        found = Trial(suite, record).result(mutation)
        assert (found['result'], found['stage']) == ('killed', 'tests/test_helped.py')
        assert found['test'] == 'tests/test_helped.py::test_it' and found['seconds'] == 1.0
        assert suite.runs == [self.NAMED, self.NAMED]  # first without the mutation
        assert subprocess.run(['git', 'diff', '--quiet'], cwd=tree).returncode == 0

    def test_what_others_find_is_killed_by_the_whole_suite(self, tree, record, mutation):
        suite = Finding(tree, {'tests/test_first.py': self.FINDS})
        found = Trial(suite, record).result(mutation)
        assert (found['result'], found['stage']) == ('killed', 'the whole suite')
        assert suite.runs == [self.NAMED, self.NAMED, (), ()]

    def test_the_fast_tests_may_be_all(self, tree, record, mutation):
        suite = Finding(tree, {'tests/test_first.py': self.FINDS})
        assert Trial(suite, record, fast_only=True).result(mutation)['result'] == 'survived'
        assert suite.runs == [self.NAMED, self.NAMED]

    def test_a_result_is_recorded_once_and_read_by_a_later_run(self, tree, record, mutation):
        found = Trial(Finding(tree, {}), record).result(mutation)
        assert found['result'] == 'survived'
        again = Finding(tree, {})
        assert Trial(again, Record(record.file)).result(mutation) == found
        assert again.runs == []
        results = [json.loads(line)['result'] for line in record.file.read_text().splitlines()]
        assert results == ['baseline', 'baseline', 'survived']

    def test_a_result_of_another_tree_is_not_used(self, tree, record, mutation):
        Trial(Finding(tree, {}), record).result(mutation)
        (tree / 'tests/test_helped.py').write_text('import helpers\n')
        again = Finding(tree, {'tests/test_helped.py': self.FINDS})
        assert Trial(again, record).result(mutation)['result'] == 'killed'

    def test_a_test_that_fails_without_a_mutation_is_named(self, tree, record, mutation):
        suite = Finding(tree, {'tests/test_helped.py': ('dgc/parts/two.py', 'second')})
        with pytest.raises(
            BaselineError, match=r'without a mutation tests/test_helped.py::test_it'
        ):
            Trial(suite, record).result(mutation)
        assert not record.file.exists()


class TestSuite:
    """With pytest itself, which takes a second to start."""

    PLAIN = ('-p', 'no:cacheprovider', '-p', 'no:xdist', '-p', 'no:hypothesispytest')

    def test_tests_pass_fail_by_name_or_hang(self, tree):
        suite = Suite(tree, self.PLAIN, 60)
        assert suite.run(['tests/test_helped.py']).passed
        (tree / 'dgc/parts/two.py').write_text('def second(a):\n    return 0\n')
        outcome = suite.run()
        assert not outcome.passed and outcome.test == 'tests/test_helped.py::test_it'
        (tree / 'dgc/parts/two.py').write_text('while True:\n    pass\n')
        outcome = Suite(tree, self.PLAIN, 2).run()
        assert not outcome.passed and outcome.test == 'timeout'


def test_a_copy_has_what_is_not_committed_and_is_gone_afterwards(tree, tmp_path):
    (tree / 'tests/test_new.py').write_text('new')
    (tree / 'dgc/parts/two.py').write_text('changed')
    (tree / 'tests/test_helped.py').unlink()
    with copied(tree, tmp_path) as copy:
        assert (copy / 'tests/test_new.py').read_text() == 'new'
        assert (copy / 'dgc/parts/two.py').read_text() == 'changed'
        assert not (copy / 'tests/test_helped.py').exists()
        assert (copy / 'dgc/parts/one.py').read_text() == (tree / 'dgc/parts/one.py').read_text()
    assert not copy.exists()


class TestCommand:
    @pytest.fixture
    def here(self, monkeypatch, tree, tmp_path) -> Path:
        monkeypatch.setattr(command, 'ROOT', tree)
        monkeypatch.chdir(tmp_path)
        return tree

    def test_lists_by_number(self, here, capsys):
        assert command.main(['--seed', '3', '--count', '4']) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ['0', '1', '2', '3']
        assert command.main(['--seed', '3', '--count', '4', '--list']) == 0
        assert capsys.readouterr().out.splitlines() == lines

    def test_applies_one(self, here, capsys):
        assert command.main(['--count', '1', '--only', 'dgc/parts/two.py', '--apply', '0']) == 0
        assert (here / 'dgc/parts/two.py').read_text() == 'def second(a):\n    return None\n'
        assert capsys.readouterr().out == 'dgc/parts/two.py:2: return: a → None\n'

    def test_runs_each_and_reports_the_survivors(self, here, capsys, monkeypatch):
        finds = {'tests/test_first.py': ('dgc/parts/deep.py', 'None')}
        monkeypatch.setattr(command, 'Suite', lambda tree, *_: Finding(tree, finds))
        assert command.main(['--only', 'dgc/parts/deep.py', '--run']) == 1
        out = capsys.readouterr().out
        assert 'survived  dgc/parts/deep.py:2: comparison: a < b → a <= b' in out
        assert 'killed    dgc/parts/deep.py:3: return: a → None' in out
        assert out.endswith('2 of 4 killed\n')
        assert (here / 'dgc/parts/deep.py').read_text().count('None') == 0
        assert command.main(['--only', 'dgc/parts/deep.py', '--run']) == 1
        assert capsys.readouterr().out == out

    @pytest.mark.parametrize(
        ('words', 'message'),
        [
            (['--count', '5', '--apply', '5'], 'the mutations are numbered from 0 to 4'),
            (['--only', 'nowhere'], 'there is no module under nowhere'),
            (['--count', '0'], '0 is less than 1'),
            (['--list', '--run'], 'not allowed with argument'),
        ],
    )
    def test_bad_input_is_one_line_and_code_2(self, here, capsys, words, message):
        with pytest.raises(SystemExit, match='2'):
            command.main(words)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('tools.mutate: ') and message in line
