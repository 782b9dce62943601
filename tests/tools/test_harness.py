"""What benchmarks and tools share: imports, command lines, tables, the list of algorithms."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dgc.algorithms import ALGORITHMS, Kind
from dgc.composition import describe
from dgc.memory import Residual
from tools.harness import algorithms, cli, machine, tables
from tools.harness.workloads import is_trained_by_sgd

ROOT = Path(__file__).parents[2]


def imported(folder: str) -> set[str]:
    """The modules that the files of a folder import, anywhere in them."""
    found = set()
    for file in (ROOT / folder).rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module)
    return found


def test_tools_import_no_benchmark_and_the_harness_no_tool():
    assert not [name for name in imported('tools') if name.split('.')[0] == 'bench']
    ours = {name for name in imported('tools/harness') if name.split('.')[0] == 'tools'}
    assert {name.split('.')[1] for name in ours} == {'harness'}


def test_command_lines_and_names_need_no_torch():
    program = 'import sys, bench.options, tools.harness.algorithms; print("torch" in sys.modules)'
    done = subprocess.run(
        [sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == 'False\n'


class TestCommandLine:
    def test_an_error_is_one_line_with_exit_code_2(self, capsys):
        parser = cli.Parser('tools.example', 'An example.')
        parser.add_argument('--count', type=cli.positive)
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(['--count', '0'])
        assert ended.value.code == 2
        message = 'argument --count: 0 is less than 1'
        assert capsys.readouterr().err == f'tools.example: {message}\n'

    def test_a_list_of_names_may_have_spaces(self):
        assert cli.names('dgc, dgc 1 %,,ddp ') == ['dgc', 'dgc 1 %', 'ddp']

    def test_the_folder_of_a_file_must_exist(self, tmp_path):
        cli.check_folder('--json', None)
        cli.check_folder('--json', tmp_path / 'rows.json')
        with pytest.raises(ValueError, match='--json: there is no folder'):
            cli.check_folder('--json', tmp_path / 'nowhere' / 'rows.json')


class TestAlgorithms:
    def test_every_name_makes_something_new_each_time(self):
        for makers in (
            algorithms.compositions(),
            algorithms.exchanges(),
            algorithms.training_exchanges(),
            algorithms.asynchronous(),
        ):
            assert all(make() is not make() for make in makers.values())
        made = algorithms.compositions()['dgc whole']
        assert made().planner is not made().planner

    def test_settings_are_of_algorithms_of_the_table(self):
        for rows in (algorithms.STEP_ROWS, algorithms.EXCHANGE_ROWS):
            assert {*rows} <= {*ALGORITHMS}
        assert {name for rows in algorithms.STEP_ROWS.values() for name in rows} <= {
            *algorithms.compositions()
        }
        assert {name for rows in algorithms.EXCHANGE_ROWS.values() for name in rows} <= {
            *algorithms.exchanges()
        }

    def test_every_algorithm_that_a_step_can_run_has_a_row(self):
        left_out = {*ALGORITHMS} - {*algorithms.compositions()}
        for name in left_out:
            if ALGORITHMS[name].kind is Kind.SYNCHRONOUS:
                made = ALGORITHMS[name].composition()
                assert made.exchange.loses or not is_trained_by_sgd(made), name
        assert {'demo', 'one-bit-adam', 'diloco', 'spardl-pres'} <= left_out

    def test_an_algorithm_that_is_added_to_the_table_has_a_row(self, monkeypatch):
        added = replace(ALGORITHMS['gtopk'], name='added')
        makers = algorithms.compositions, algorithms.exchanges
        for each in makers:
            each.cache_clear()
        monkeypatch.setitem(ALGORITHMS, 'added', added)
        monkeypatch.setitem(ALGORITHMS, 'local', replace(added, kind=Kind.LOCAL_STEPS))
        try:
            made = algorithms.compositions(0.02)
            assert isinstance(made['added']().memory, Residual)
            assert made['added']().codec.indices == 'packed' and 'local' not in made
            assert 'added' not in algorithms.exchanges()  # gtopk has that exchange
        finally:
            for each in makers:
                each.cache_clear()

    def test_algorithms_with_a_parameter_server_are_those_of_the_table(self):
        made = algorithms.asynchronous(0.02)
        assert {*made} == {n for n, each in ALGORITHMS.items() if each.kind is Kind.ASYNCHRONOUS}
        assert {'dgs', 'asgd'} <= {*made}
        assert made['dgs']().schedule.density == 0.02 and made['dgs']().codec.indices == 'packed'
        assert made['asgd']().schedule.density is None

    def test_compositions_have_the_density(self):
        made = {name: make() for name, make in algorithms.compositions(0.02).items()}
        own = {name for name in made if name not in ALGORITHMS or ALGORITHMS[name].has_density}
        assert {made[name].schedule.density for name in own} == {0.02}
        assert {made[name].schedule.density for name in made.keys() - own} == {None, 1.0}

    def test_rows_of_exchanges_differ_from_deep_gradient_compression_by_the_exchange(self):
        reference = algorithms.compositions()['dgc packed int8']()
        for name in ('gtopk', 'gtopk-doubling', 'spardl', 'oktopk', 'chunk'):
            made = algorithms.compositions()[name]()
            assert describe(made.memory) == describe(reference.memory)
            assert describe(made.codec) == describe(reference.codec)
            if not made.exchange.selects:
                assert describe(made.compressor) == describe(reference.compressor)
            assert type(made.exchange) is not type(reference.exchange)

    def test_an_exchange_has_one_name_in_all_tables(self):
        training = algorithms.training_exchanges()
        assert {*training} <= {*algorithms.exchanges()}
        for name in {*training} & {*algorithms.compositions()}:
            used = type(algorithms.compositions()[name]().exchange)
            alone = algorithms.exchanges()[name]().exchange
            assert used is type(training[name]()) is type(alone)

    def test_aliases_are_names_that_no_table_has(self):
        for alias, name in algorithms.ALIASES.items():
            assert alias not in {*algorithms.exchanges(), *algorithms.compositions()}
            assert name in algorithms.exchanges() and name in algorithms.compositions()
            assert algorithms.canonical(alias) == name == algorithms.canonical(name)


class TestTables:
    def test_columns_are_aligned(self):
        rows = [('a', 'bb'), ('ccc', 'd')]
        assert tables.align(rows) == ['a    bb', 'ccc  d']
        assert tables.align(rows, right=True) == ['a    bb', 'ccc   d']

    def test_large_numbers_have_no_decimals(self):
        assert [tables.number(x) for x in (None, 1.25, 1234.5)] == ['', '1.2', '1,234']


class TestMachine:
    def test_free_memory_is_read_or_unlimited(self, tmp_path, monkeypatch):
        file = tmp_path / 'meminfo'
        monkeypatch.setattr(machine, 'MEMORY', file)
        assert machine.free_memory() == float('inf')
        file.write_text('MemTotal: 9 kB\nMemAvailable:    5 kB\n')
        assert machine.free_memory() == 5 * 1024
