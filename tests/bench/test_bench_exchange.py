"""What `python -m bench.exchange` measures, simulates, draws and refuses."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import warm

from bench import exchange
from bench.exchange_worker import Case, is_upper_bound, summarize
from dgc.costmodel import Network
from tools.harness import figures
from tools.harness.algorithms import ALIASES, exchanges
from tools.harness.exchange_probe import Step

KEYS = {'exchange', 'engine', 'workers', 'messages', 'bytes', 'predicted_bytes', 'matches'}
SMALL = ['--numel', '4096', '--k', '64']
ROOT = Path(__file__).parents[2]
PNG = b'\x89PNG\r\n'


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope='module')
def simulated(tmp_path_factory):
    """The rows of all exchanges, and the figure."""
    folder = tmp_path_factory.mktemp('exchange')
    rows, figure = folder / 'rows.json', folder / 'scaling.png'
    sizes = ['--workers', '2', '3', '8', '--rates', '1gbit', '10gbit']
    words = ['--simulate', *SMALL, *sizes, '--json', str(rows), '--figure', str(figure)]
    assert exchange.main(words) == 0
    return json.loads(rows.read_text()), figure.read_bytes()


def test_every_exchange_is_simulated_for_the_workers_that_it_can_serve(simulated):
    rows, _ = simulated
    cells = [(row['exchange'], row['workers'], row['rate']) for row in rows]
    unfit = {('spardl 4 teams', 2), ('spardl 4 teams', 3), ('hierarchical 2', 3)}
    unfit |= {('spardl 4 teams bruck', 2), ('spardl 4 teams bruck', 3)}
    unfit |= {('spardl-teams', 3), ('spardl-bruck', 3)}
    assert cells == [
        (name, workers, rate)
        for name in exchanges()
        for workers in (2, 3, 8)
        for rate in ('1gbit', '10gbit')
        if (name, workers) not in unfit
    ]
    assert all(row.keys() >= {*KEYS, 'rate', 'virtual_ms', 'latency_us'} for row in rows)


def test_closed_forms_are_what_was_counted(simulated):
    rows, _ = simulated
    assert [row['exchange'] for row in rows if row['matches'] is not True] == []
    for row in rows:
        if not is_upper_bound(row['exchange']):
            assert row['bytes'] == pytest.approx(row['predicted_bytes'], abs=1)


@pytest.mark.parametrize('workers', [2, 3, 8])
def test_the_virtual_clock_goes_by_the_network(simulated, workers):
    rows, _ = simulated
    network = Network.of(1e9, 50e-6)
    expected = {
        'all-reduce': network.all_reduce(4 * 4096, workers),
        'all-gather': network.all_gather(32 + 8 * 64, workers),
    }
    for row in rows:
        if row['rate'] == '1gbit' and row['workers'] == workers and row['exchange'] in expected:
            assert row['virtual_ms'] == pytest.approx(1e3 * expected[row['exchange']])


def test_bounds_are_of_exchanges_whose_bytes_depend_on_the_data():
    assert [name for name in exchanges() if is_upper_bound(name)] == [
        'spardl 4 teams bruck',
        'spardl-bruck',
        'oktopk',
    ]


def test_a_figure_is_drawn(simulated):
    assert simulated[1].startswith(PNG)


def test_simulations_that_take_too_long_are_left_out(capsys):
    words = ['--simulate', *SMALL, '--workers', '2', '4', '--only', 'all-gather']
    assert exchange.main([*words, '--patience', '0']) == 0
    printed, logged = capsys.readouterr()
    assert printed.count('all-gather  ') == 1
    assert 'all-gather is left out from 4 workers on: see --patience' in logged


@pytest.mark.slow
def test_real_processes_send_what_the_closed_forms_say(tmp_path):
    file = tmp_path / 'rows.json'
    words = ['--workers', '2', '--steps', '2', *SMALL, '--json', str(file)]
    command = warm.warmed([sys.executable, '-m', 'bench.exchange', *words])
    variables = os.environ | warm.environment()
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [row['exchange'] for row in rows] == [
        name for name in exchanges() if not name.startswith('spardl 4')
    ]
    for row in rows:
        assert row.keys() >= {*KEYS, 'ms'}
        assert (row['engine'], row['workers'], row['matches']) == ('torch', 2, True)
        assert row['ms'] > 0
    assert 'hierarchical 2' in done.stdout
    assert 'spardl 4 teams is left out with 2 workers: teams=4 does not divide' in done.stderr


def test_workers_that_fail_leave_what_they_had_measured(monkeypatch, capsys):
    def run_workers(launcher, workers, module, folder, timeout):
        spec = json.loads((folder / 'spec.json').read_text())
        row = {'ms': 1.0, 'messages': 1, 'bytes': 544}
        answer = {'measured': {'all-gather': row}, 'unfit': {}}
        (folder / 'answer.json').write_text(json.dumps(answer))
        assert spec['case'] == {'numel': 4096, 'k': 64, 'steps': 10}
        return 137

    monkeypatch.setattr(exchange, 'run_workers', run_workers)
    monkeypatch.setattr(exchange, 'exit_on_signals', lambda: None)  # signals are pytest's
    assert exchange.main([*SMALL, '--workers', '2', '--only', 'all-gather,gtopk']) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ['all-gather', '2', '1.000', '1', '544', '544']
    assert lines[3].split(maxsplit=2) == ['gtopk', '2', 'failed: a worker was ended by SIGKILL']


def test_bytes_that_do_not_match_are_marked_and_fail():
    row = {'exchange': 'all-gather', 'workers': 2, 'ms': 1.0, 'messages': 1, 'bytes': 500}
    case = Case(4096, 64, 1)
    checked = exchange.expected('all-gather', case, 2, {'bytes': 500})
    assert checked['matches'] is False
    assert exchange.table([{**row, **checked}], case).endswith('!')
    assert exchange.expected('oktopk', case, 2, {'bytes': 500})['matches'] is True
    assert exchange.expected('oktopk', case, 2, {'bytes': 5000})['matches'] is False
    assert exchange.expected('all-gather', case, 128, {'bytes': 500})['matches'] is None


def test_times_are_the_slowest_workers_and_bytes_the_busiest_ones():
    fast, slow = [Step(0.1, 3, 10), Step(0.4, 3, 20)], [Step(0.2, 1, 30), Step(0.2, 2, 30)]
    assert summarize([fast, slow]) == {'ms': pytest.approx(300), 'messages': 1.5, 'bytes': 30}


def test_names_in_a_figure_keep_their_distance():
    places = figures.spread([0.99, 0.5, 0.5, 1.0])
    heights = [height for height, _ in places]
    assert [index for _, index in places] == [1, 2, 0, 3]
    assert heights[-1] <= 1
    assert min(b - a for a, b in pairwise(heights)) > 0.99 * figures.LINE


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (['--only', 'topk'], "--only: there is no exchange 'topk': there are all-reduce, "),
        (['--k', '9', '--numel', '8'], '--k: there are only 8 elements, not 9'),
        (['--figure', 'x.png'], '--figure: only simulated rows are drawn'),
        (['--json', 'nowhere/x.json'], 'there is no folder '),
        (['--simulate', '--rates', '1gbits'], "'1gbits' is not a rate"),
        (['--workers', '0'], '0 is less than 1'),
        (
            ['--simulate', '--workers', '3', '--only', 'hierarchical 2'],
            'can serve these numbers',
        ),
    ],
)
def test_bad_input_ends_with_2_and_says_why(given, message, capsys):
    try:
        code = exchange.main(given)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_names_of_earlier_versions_stay_valid():
    earlier = exchange.parse(['--only', ','.join(ALIASES)])
    assert earlier.names == list(dict.fromkeys(ALIASES.values()))
    assert {*earlier.names} < {*exchanges()}
