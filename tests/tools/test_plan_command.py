"""The command: invalid input, reports, figures and comparisons with tables."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.exchanges import GTopKDoubling
from dgc.planner import Plan, PlanRequest
from dgc.schedule import DensitySchedule
from tools.harness.algorithms import compositions, training_exchanges
from tools.plan import __main__ as command
from tools.plan import check, report, run
from tools.plan.compositions import comparison
from tools.plan.measure import Bench
from tools.plan.report import Prediction
from tools.plan.subject import Subject
from utils.cli import DECLARATIONS, Refused
from utils.config import load

STACK = ['--configs', 'configs/digits/cnn.py']

CELLS = [
    Prediction('10mbit', 4, 'dense', 800.0, 0.1),
    Prediction('10mbit', 4, 'yours', 100.0, 0.8),
    Prediction('10mbit', 16, 'dense', 900.0, 0.1),
    Prediction('10gbit', 4, 'dense', 90.0, 0.9),
    Prediction('10gbit', 4, 'yours', 99.0, 0.8),
    Prediction('10gbit', 16, 'dense', 95.0, 0.9),
]


def subject_of(*words: str) -> Subject:
    """What a command line trains."""
    subject, _ = run.stack(load([*STACK[1:]], words, (), DECLARATIONS))
    return subject


class TestStack:
    def test_the_model_and_the_optimizer_are_those_of_train_py(self):
        """docs/planner.md: one measured step of the stack."""
        words = ('--configs.data.channels_last', 'True', '--configs.train.compile', 'eager')
        model = subject_of(*words).model
        assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
        assert model._compiled_call_impl is not None

    @pytest.mark.parametrize(
        ('words', 'message'),
        [
            (['--configs.train.precision', 'bf61'], "precision = 'bf61'"),
            (['--configs.train.batch_size', '0'], 'batch_size must be at least 1, got 0'),
            (['--configs.train.recompute', 'True'], 'DigitsCNN has no method'),
            (['--configs.pretrained.file', '/nowhere/x'], 'there is no such file'),
        ],
    )
    def test_settings_that_train_py_refuses_are_refused(self, words, message):
        with pytest.raises(Refused, match=message):
            subject_of(*words)


class TestReport:
    def test_a_table_says_who_wins_and_by_how_much(self):
        lines = [line.split('  ') for line in report.table(CELLS[:3])]
        cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        assert cells == [
            ['10mbit', '4 workers', '16 workers'],
            ['dense', '800.0 (10%)', '900.0 (10%)'],
            ['yours', '100.0 (80%)', '-'],
            ['wins', 'yours', 'dense'],
            ['rival takes', 'dense ×8.00', '-'],
        ]

    def test_it_is_plain_where_dense_wins(self):
        assert report.closing(CELLS) == [
            'dense wins at 10mbit with 16 workers: compression is not worth it there',
            'dense wins at 10gbit with 4, 16 workers: compression is not worth it there',
        ]
        assert report.closing(CELLS[:2]) == ['dense wins nowhere']
        assert report.closing(CELLS[3:]) == [
            'dense wins everywhere: compression is not worth it on these networks'
        ]

    def test_of_equally_fast_ones_dense_wins(self):
        tied = [Prediction('1gbit', 4, 'yours', 5.0, 1.0), Prediction('1gbit', 4, 'dense', 5.0, 1)]
        assert report.first(tied, 4).composition == 'dense'

    def test_no_winner_is_named_that_the_calibrations_error_cannot_tell(self):
        """docs/failures.md, row 25: an error of 58 %, and still winners were named."""
        near = [*CELLS, Prediction('10mbit', 4, 'gtopk', 140.0, 0.6)]
        cells = [line.split() for line in report.table([*near[:3], near[-1]], error=0.58)]
        assert cells[4] == ['wins', 'yours', 'or', 'gtopk', 'dense']
        assert [line.split()[:4] for line in report.table(CELLS[3:], error=0.58)][3] == [
            'wins', 'cannot', 'tell', 'dense',
        ]  # fmt: skip
        assert report.closing(near, error=0.58)[1:] == [
            'dense wins at 10gbit with 16 workers: compression is not worth it there',
            'cannot tell at 10gbit with 4 workers: dense and compressed training differ by less '
            "than the calibration's error of 58% (calibrate again, without other load on this "
            'host)',
        ]
        wins = {(r['bandwidth'], r['workers'], r['composition']): r['wins']
                for r in report.rows(near, error=0.58)}  # fmt: skip
        assert wins['10mbit', 4, 'yours'] is wins['10gbit', 4, 'dense'] is None
        assert wins['10mbit', 4, 'dense'] is False and wins['10gbit', 16, 'dense'] is True

    def test_many_compositions_that_cannot_be_told_apart_are_counted(self):
        tied = [Prediction('1gbit', 4, name, 5.0 + n, 1.0) for n, name in enumerate('abc')]
        assert report.winner(report.contenders(tied, 4, 0.5)) == 'a or 2 others'

    def test_rows_say_which_wins(self):
        assert [row['composition'] for row in report.rows(CELLS) if row['wins']] == [
            'yours', 'dense', 'dense', 'dense',
        ]  # fmt: skip


def row(base, ms, rate='100mbit', engine='torch', low=None, high=None, **changes):
    """A row of bench.cluster's file, as far as it is read."""
    spread = {'min': low or ms, 'median': ms, 'max': high or ms}
    about = {'model': 'digits', 'batch': 4, 'nodes': 2, 'threads': 1}
    name = f'{base} ({engine})'
    common = {'name': name, 'row': base, 'engine': engine, 'rate': rate, **about, **changes}
    return {**common, 'median_ms': ms, 'spread': spread}


def table_file(tmp_path, rows):
    file = tmp_path / 'table.json'
    file.write_text(json.dumps(rows))
    return file


def test_predictions_are_drawn(tmp_path):
    pytest.importorskip('matplotlib')
    from tools.plan.figure import draw

    draw(CELLS, 0.05, tmp_path / 'plan.png')
    drawn = (tmp_path / 'plan.png').read_bytes()
    assert drawn.startswith(b'\x89PNG') and len(drawn) > 10_000


def planned(**numel) -> BucketSpec:
    """A bucket of parameters of these numbers of elements, at the benchmarks' density."""
    parameters = [ParameterSpec(name, (n, 1)) for name, n in numel.items()]
    return BucketSpec.of(parameters, DensitySchedule(0.001))


class TestTable:
    def test_rows_that_are_known_are_those_of_ours_with_compute_beside_them(self):
        table = check.parse(
            [
                row('compute', 10.0),
                row('dgc', 20.0),
                row('gtopk', 30.0, rate='1gbit'),
                row('dgc', 20.0, engine='horovod'),
                {**row('ddp', 40.0), 'name': 'ddp'},
                {'name': 'chunk (torch)', 'error': 'not measured'},
            ]
        )
        assert [each['name'] for each in table.rows] == ['dgc (torch)']
        assert table.compute == {'100mbit': 10.0} and list(table.subjects) == ['dgc']
        assert table.others == ['gtopk (torch)', 'dgc (horovod)', 'ddp']

    def test_rows_of_other_buckets_are_other_subjects(self):
        plans = [
            Plan([planned(w=numel)], {'Merged': seconds}).to_json()
            for numel, seconds in ((1, 1.0), (1, 2.0), (2, 1.0))
        ]
        rows = [{**row('dgc merged', 20.0), 'plan': plan} for plan in plans]
        table = check.parse([row('compute', 10.0), row('dgc', 20.0), *rows])
        names = list(map(check.subject, table.rows))
        assert names[0] == 'dgc' and names[1] == names[2] != names[3]
        assert list(table.subjects) == [names[0], names[1], names[3]]

    def test_a_row_is_predicted_with_the_buckets_that_it_had(self):
        plan = Plan([planned(w=6, v=4)])
        found = check.candidate('x', {**row('dgc merged', 20.0), 'plan': plan.to_json()})
        made, parameters = found.make(), [ParameterSpec('v', (4, 1)), ParameterSpec('w', (6, 1))]
        request = PlanRequest(parameters, made.rules, made.schedule, saved=found.plan)
        (bucket,) = made.planner.plan(request)
        assert bucket.names == ('w', 'v')

    def test_every_composition_of_the_benchmarks_can_be_made(self):
        for base in compositions():
            make = check.candidate(base, row(base, 20.0)).make
            assert make().exchange is not make().exchange

    def test_rows_have_names_of_earlier_versions(self):
        earlier = row('gtopk doubling', 20.0)
        table = check.parse([row('compute', 10.0), earlier])
        assert table.rows == [earlier]
        made = check.candidate('x', earlier).make()
        assert isinstance(made.exchange, GTopKDoubling)

    @pytest.mark.parametrize(
        ('rows', 'message'),
        [
            ({'name': 'x'}, 'is no table of `python -m bench.cluster --json`'),
            ([{'name': 'x'}], 'is no table'),
            ([], 'should be of one model'),
            ([row('compute', 1.0), row('dgc', 2.0, batch=8)], 'should be of one model'),
            ([row('compute', 1.0, rate='x'), row('dgc', 1.0, rate='x')], 'is not a rate'),
            ([row('dgc', 2.0)], 'has nothing to predict'),
            (
                [row('compute', 1.0), row('dgc', 2.0, plan={'version': 1})],
                'a plan of version 1, and version 2 is needed',
            ),
            (
                [row('compute', 1.0, model='vgg99'), row('dgc', 2.0, model='vgg99')],
                "is of the model 'vgg99': tools/harness/workloads.py has",
            ),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, tmp_path, capsys, rows, message):
        assert command.main(['--check', str(table_file(tmp_path, rows))]) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and said[0].startswith('tools.plan: --check: ') and message in said[0]

    def test_the_comparison_is_reported(self):
        table = check.parse([row('compute', 10.0), row('dense', 90.0), row('dgc', 20.0)])
        cells = [check.cell(row('dense', 90.0), 45.0), check.cell(row('dgc', 20.0), 22.0)]
        lines = check.report(table, cells).splitlines()
        assert lines[0] == 'digits, batch 4, 2 nodes: predicted and measured ms per step'
        assert lines[2].split() == ['100mbit', 'dense', '(torch)', '45.0', '90.0', '-50%']
        assert lines[-2:] == [
            '1 of 2 within 25%',
            '100mbit: dgc (torch) is predicted to win, and does',
        ]

    @pytest.mark.parametrize(
        ('high', 'message'),
        [
            (25.0, 'and is as good: dgc (torch) does, 20.0 to 23.0 ms, but takes up to 25.0'),
            (22.0, 'which is wrong: dgc (torch) does, 20.0 to 23.0 ms'),
        ],
    )
    def test_another_winner_may_be_as_good(self, high, message):
        cells = [
            check.cell(row('dgc', 20.0, high=high), 30.0),
            check.cell(row('gtopk', 23.0), 25.0),
        ]
        assert check.winner(cells) == f'100mbit: gtopk (torch) is predicted to win, {message}'


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A calibration file; what a command changes in its process is restored."""
    monkeypatch.setattr(command, 'exit_on_signals', lambda: None)
    threads = torch.get_num_threads()
    file = tmp_path / 'host.json'
    a_line = {'alpha': 1e-5, 'beta': 1e-10}
    numbers = {'network': a_line, 'processor': a_line, 'error': 0.0}
    file.write_text(json.dumps(numbers))
    yield str(file)
    torch.set_num_threads(threads)


class TestCommand:
    @pytest.mark.parametrize(
        ('words', 'message'),
        [
            ([], 'nothing to plan: give a stack (--configs FILE ...), or --check TABLE'),
            (['--configs', 'configs/digits/cn.py'], 'did you mean configs/digits/cnn.py?'),
            ([*STACK, '--worker', '4'], 'unknown argument --worker; did you mean --workers?'),
            ([*STACK, '--workers', '1'], 'a single worker exchanges no gradients'),
            ([*STACK, '--workers', 'few'], "--workers: invalid positive value: 'few'"),
            ([*STACK, '--bandwidths', 'fast'], "'fast' is not a rate"),
            ([*STACK, '--latency', '-1'], '--latency is in ms, from 0 on, got -1.0'),
            ([*STACK, '--latency', 'nan'], '--latency is in ms, from 0 on, got nan'),
            (
                [*STACK, '--sharing', '0.5'],
                'workers that share a core, from 1 on, got 0.5',
            ),
            ([*STACK, '--png', 'nowhere/plan.png'], '--png: there is no folder'),
            ([*STACK, '--json', 'nowhere/plan.json'], '--json: there is no folder'),
            ([*STACK, '--configs.train.batch_sizes', '4'], 'did you mean'),
            ([*STACK, '--configs.train.batch_size', 'x'], 'expected int, got str'),
            ([*STACK, '--configs.train.batch_size', '5000'], 'fewer than one step of 5000'),
            (
                [*STACK, 'configs/spardl/teams2.py', '--workers', '3', '--timeline'],
                '--timeline is of 3 workers, the fewest of --workers: teams=2 does not divide',
            ),
            ([*STACK, 'configs/dgs/dgs.py'], 'asynchronous training is not predicted'),
            ([*STACK, 'configs/zeroone/adam.py'], 'steps of ZeroOneAdam are not predicted'),
            ([*STACK, 'configs/diloco/desloc.py'], 'averages of moments are not predicted'),
            ([*STACK, 'configs/diloco/diloco.py', '--timeline'], 'your stack has local steps'),
            (
                [*STACK, 'configs/streaming/diloco.py', '--configs.train.averaging.fragments', '9'],
                'fragments must be 1 to',
            ),
            ([*STACK, '--check', 'nowhere.json'], '--check: nowhere.json is no table'),
            (['--check', 'x', '--workers', '4'], '--workers has no effect without a stack'),
            (
                ['--check', 'x', '--configs.seed', '4'],
                '--configs.seed has no effect without a stack',
            ),
        ],
    )
    def test_bad_input_is_refused_in_one_line(self, host, capsys, words, message):
        try:
            code = command.main([*words, '--calibration', host])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr().err.splitlines()
        assert code == 2 and len(said) == 1, said
        assert said[0].startswith('tools.plan: ') and message in said[0]

    def test_a_damaged_calibration_is_refused_with_the_remedy(self, host, tmp_path, capsys):
        (tmp_path / 'host.json').write_text('{"network": 3}')
        assert command.main([*STACK, '--calibration', host]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert 'holds no calibration' in said and 'delete it, and it is measured' in said

    def test_help_has_examples(self, capsys):
        with pytest.raises(SystemExit) as end:
            command.parse(['--help'])
        said = capsys.readouterr().out
        assert end.value.code == 0 and '--configs configs/digits/cnn.py' in said
        assert 'efficiency' in said

    def test_a_stack_is_planned(self, host, tmp_path, capsys, monkeypatch):
        # All optimizers alike: between two of them a busy machine may decide.
        monkeypatch.setattr(Bench, 'update', lambda bench, composition: 1e-3)
        words = [*STACK, 'configs/dgc/wm5.py', '--workers', '2', '1024', '--calibration', host]
        words += ['--bandwidths', '1mbit', '100gbit', '--latency', '0']
        out, png = tmp_path / 'plan.json', tmp_path / 'plan.png'
        draws = importlib.util.find_spec('matplotlib') is not None
        assert command.main([*words, '--json', str(out), *(['--png', str(png)] * draws)]) == 0
        assert png.exists() == draws
        said = capsys.readouterr().out
        assert '36,010 parameters' in said and '2 workers' in said and '1,024 workers' in said
        plan = json.loads(out.read_text())
        cells = {(c['bandwidth'], c['workers'], c['composition']): c for c in plan['predictions']}
        compared = ['dense', 'yours', *(n for n in training_exchanges() if n != 'all-gather')]
        assert (
            len(cells) == 2 * 2 * len(compared) and plan['calibration']['network']['alpha'] == 1e-5
        )
        assert all(0 < cell['efficiency'] <= 1 + 1e-9 for cell in cells.values())
        # 36,010 float32 numbers take longer than a step on a slow link, and nothing on a fast one.
        assert cells['1mbit', 2, 'yours']['ms'] < cells['1mbit', 2, 'dense']['ms']
        assert cells['1mbit', 2, 'dense']['ms'] > 4 * 36_010 * 8 / 1e3
        assert cells['100gbit', 2, 'dense']['wins']
        assert 'dense wins at 100gbit with 2' in said and 'compression is not worth it' in said

    def test_matplotlib_is_needed_only_for_figures(self, host, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
        with pytest.raises(SystemExit):
            command.parse([*STACK, '--png', str(tmp_path / 'plan.png')])
        assert '--png needs matplotlib' in capsys.readouterr().err

    def test_a_table_is_checked(self, host, tmp_path, capsys):
        rows = [
            row('compute', 5.0, rate='1mbit'),
            row('dense', 1200.0, rate='1mbit'),
            row('dgc packed int8', 40.0, rate='1mbit'),
            row('compute', 5.0, rate='none'),
            row('dense', 6.0, rate='none'),
        ]
        out, file = tmp_path / 'check.json', str(table_file(tmp_path, rows))
        words = ['--check', file, '--calibration', host, '--json', str(out)]
        assert command.main(words) == 0
        said = capsys.readouterr().out
        assert '1mbit: dgc packed int8 (torch) is predicted to win, and does' in said
        assert 'none: dense (torch) is predicted to win, and does' in said
        cells = json.loads(out.read_text())['check']
        assert [cell['name'] for cell in cells] == [
            'dense (torch)',
            'dgc packed int8 (torch)',
            'dense (torch)',
        ]
        assert cells[0]['predicted'] == pytest.approx(1155, rel=0.1)  # 144,040 bytes, and 5 ms
        assert cells[0]['error'] == pytest.approx(cells[0]['predicted'] / 1200 - 1)
        assert cells[2]['predicted'] > 5

    def test_local_steps_are_planned(self, host, tmp_path, monkeypatch):
        """36,010 elements in a round of 30 steps, at 1 Mbit/s."""
        monkeypatch.setattr(run, 'comparison', alone)
        words = [*STACK, '--workers', '2', '--bandwidths', '1mbit', '--calibration', host]
        words += ['--latency', '0', '--json', str(tmp_path / 'plan.json')]
        ms = {}
        for file in ('diloco/diloco', 'streaming/diloco', 'sparseloco/sparseloco'):
            assert command.main([*words, f'--configs=configs/{file}.py']) == 0
            plan = json.loads((tmp_path / 'plan.json').read_text())
            (cell,) = plan['predictions']
            inner = plan['backward_ms'] + plan['optimizer_ms']['yours']
            assert plan['outer_ms']['yours'] > 0
            ms[file] = cell['ms'] - inner
        sent = 1e3 * 36_010 * 32 / 1e6 / 30  # ms of a step, by a ring of two
        assert sent < ms['diloco/diloco'] < 1.5 * sent
        assert ms['streaming/diloco'] < ms['diloco/diloco']
        assert ms['sparseloco/sparseloco'] < ms['diloco/diloco'] / 5


def alone(stack, rounds):
    """Only the composition of the stack is compared."""
    found = comparison(stack, rounds)
    return found._replace(candidates=[each for each in found.candidates if each.name == 'yours'])
