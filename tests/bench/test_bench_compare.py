"""The comparison on a link: seconds on the virtual clock, the table, the figures, a real run."""

from __future__ import annotations

import json
import math

import pytest

from bench.compare import __main__ as compare
from bench.compare.__main__ import main, parse
from bench.compare.curves import Clock, Curve, Pace, measured_compute
from bench.parity.measuring import plan
from bench.parity.workloads import ACCURACY, Metric
from dgc.costmodel import Network
from tools.harness.pages import marks

CLOCK = Clock(Network(alpha=0.01, beta=1e-6), compute=0.1)
LOSS = Metric('loss/test', higher=False, bound=1.0, relative=True, digits=3)
SHORT = ['--workload', 'digits', '--workers', '2', '--seeds', '1']


def line(run, values, sent=1000, messages=2, path=1000, **more):
    """A line of the results of a run of 10 steps an epoch, each of which sends as much."""
    each = {'steps': 10, 'bytes/sent': 10 * sent, 'bytes/received': 20 * sent}
    each |= {'bytes/dense': 10 * 4000, 'path/messages': 10 * messages, 'path/bytes': 10 * path}
    epochs = {name: [value] * len(values) for name, value in each.items()}
    return {
        **(run if isinstance(run, dict) else run.asked),
        'engine': 'simulated',
        'curve': values,
        'value': values[-1],
        'of_epochs': epochs,
        'seconds': 40,
        'samples_per_step': 64,
        'tokens_per_sample': None,
        'parameters': 1000,
        'steps_per_exchange': 1,
        'fragments': 1,
        'steps_hidden': 0,
        **more,
    }


@pytest.fixture
def words(tmp_path):
    return [*SHORT, '--results', str(tmp_path / 'results'), '--runs', str(tmp_path / 'runs')]


@pytest.fixture
def measured(words, tmp_path):
    """Arguments under which everything is measured."""
    words = [*words, '--rows', 'dense,gtopk,sparse-loco,residual-0.01,omgs', '--table']
    runs = {run.row: run for run in plan(parse(words))}
    assert [*runs] == ['dense', 'gtopk', 'sparse-loco', 'omgs']
    lines = [
        line(runs['dense'], [60.0, 90.0], sent=4000, path=6000),
        line(runs['gtopk'], [50.0, 94.0], sent=100, messages=1, path=200),
        line(runs['sparse-loco'], [30.0, 80.0], sent=2, messages=0.2, path=3),
    ]
    (tmp_path / 'results').write_text(''.join(f'{json.dumps(each)}\n' for each in lines))
    return words


class TestClock:
    def test_steps_and_messages_follow_one_another(self):
        assert CLOCK.seconds(10, 20, 5000, Pace()) == pytest.approx(10 * 0.1 + 0.2 + 0.005)

    def test_local_steps_pay_for_what_they_send(self):
        assert CLOCK.seconds(30, 6, 5000, Pace(1 / 30)) == pytest.approx(3 + 0.06 + 0.005)

    @pytest.mark.parametrize(
        ('hidden', 'waits'),
        [(1, 4 * 0.15), (2, 4 * 0.05), (3, 0.0)],  # a fragment takes 0.25 s
    )
    def test_a_fragment_travels_while_further_steps_are_computed(self, hidden, waits):
        pace = Pace(exchanges=4 / 20, hidden=hidden)
        assert CLOCK.seconds(20, 8, 920_000, pace) == pytest.approx(2 + waits)

    def test_a_link_carries_no_more_than_its_rate(self):
        pace = Pace(exchanges=1.0, hidden=9)
        assert CLOCK.seconds(10, 0, 50e6, pace) == pytest.approx(50)

    def test_computing_is_the_time_of_one_of_the_workers_who_take_turns(self):
        dense = {'row': 'dense', 'workers': 4}
        lines = [line(dense, [1.0]), line(dense, [1.0], seconds=80),
                 line({'row': 'dgc', 'workers': 4}, [1.0], seconds=8),
                 line(dense, [1.0], seconds=4, engine='torch')]  # fmt: skip
        assert measured_compute(lines) == 1.0
        assert measured_compute(lines[2:]) is None


class TestCurve:
    def test_it_adds_up_bytes_and_seconds(self):
        curve = Curve.of(line({'row': 'dense'}, [3.0, 2.0], sent=4000), CLOCK)
        assert curve.megabytes == pytest.approx([0.04, 0.08])
        assert curve.seconds == pytest.approx([1.21, 2.42])

    @pytest.mark.parametrize(
        ('values', 'target', 'seconds'),
        [
            ([3.0, 2.0, 1.0], 1.5, 2.5),
            ([3.0, 2.0, 1.0], 3.5, 1.0),  # within the first epoch: at its end
            ([3.0, 2.0, 2.5], 2.0, 2.0),  # the first time
            ([3.0, 2.0, 1.0], 0.9, None),
        ],
    )
    def test_a_quality_is_reached_between_two_evaluations(self, values, target, seconds):
        assert Curve(values, values, [1.0, 2.0, 3.0]).seconds_to(target, LOSS) == seconds

    @pytest.mark.parametrize('before', [math.nan, math.inf])
    def test_a_value_that_is_not_finite_has_no_share(self, before):
        values = [before, 1.0]
        assert Curve(values, values, [1.0, 2.0]).seconds_to(1.5, LOSS) == 2.0

    def test_higher_may_be_better(self):
        assert Curve([50.0, 90.0], [1, 2], [1.0, 2.0]).seconds_to(80.0, ACCURACY) == 1.75


def test_what_counts_as_equal_to_dense():
    assert ACCURACY.as_good_as(90.0) == 89.0
    assert LOSS.as_good_as(2.0) == pytest.approx(2.02)


def test_the_table_has_the_fastest_to_the_quality_first(measured, capsys):
    assert main([*measured, '--latency', '10', '--link', '8mbit', '--compute', '0.1']) == 0
    title, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert '2 workers; links of 8mbit with 10 ms per message; 100.0 ms of computing' in title
    assert head.endswith('| fewer bytes than dense fp32 | seconds | seconds to ≥ 89.00 |')
    assert [row.split(' | ')[0] for row in rows] == [
        *('| gtopk', '| dense', '| sparse-loco', '| residual-0.01', '| omgs')
    ]
    gtopk, dense, loco, residual, omgs = rows
    # 20 steps of 0.1 s, with a message of 10 ms and 200 bytes at 1 MB/s; 1 + 39/44 epochs.
    assert gtopk == '| gtopk | 1 | 94.00 | -4.00 | 0.10 | 0.20 | 40.0× | 2.2 | 2.1 |'
    assert dense == '| dense | 1 | 90.00 |  | 4.00 | 8.00 | 1.0× | 2.5 | 2.5 |'
    assert loco.endswith('| 2,000× | 2.0 | not reached |')
    assert '| 0 | for optimizers with two moments' in residual
    assert omgs.startswith('| omgs | 0 | not trained yet |')


def test_a_text_has_bytes_per_token_and_a_server_has_no_seconds(measured, tmp_path, capsys):
    arguments = [*measured[:-3], '--rows', 'dense,dgs', '--table', '--target', '85']
    dense, dgs = plan(parse(arguments))
    text = line(dense, [60.0, 90.0], sent=4000, tokens_per_sample=25)
    server = {**dgs.asked, 'engine': 'torch', 'value': 88.0, 'bytes_per_step': 500}
    lines = [text, {**server, 'received_per_step': 250}]
    (tmp_path / 'results').write_text(''.join(f'{json.dumps(each)}\n' for each in lines))
    assert main(arguments) == 0
    *_, dense, dgs = capsys.readouterr().out.splitlines()
    assert dense.split(' | ')[4:7] == ['4.00', '8.00', '5.00']  # 4,000 bytes, 32 · 25 tokens
    assert dgs == (
        '| dgs | 1 | 88.00 | +2.00 | 0.50 | 0.25 |  |  | '
        'asynchronous: its workers do not wait for one another |  |'
    )


@pytest.mark.parametrize(
    ('more', 'message'),
    [([], 'give --compute SECONDS, or train the row dense'),
     (['--compute', '1', '--write'], '--figures, --write: nothing is measured yet')],
)  # fmt: skip
def test_what_is_not_measured_is_named(words, more, message, capsys):
    assert main([*words, '--rows', 'gtopk', '--table', *more]) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count('\n') == 1


def test_figures_and_page_are_written(measured, tmp_path, monkeypatch, capsys):
    page, (begin, end) = tmp_path / 'page.md', marks('digits')
    page.write_text(f'above\n{begin}\nold\n{end}\nbelow\n')
    (tmp_path / 'again').mkdir()
    monkeypatch.setattr(compare, 'PAGE', page)
    monkeypatch.setattr(compare, 'FIGURES', tmp_path)
    assert main([*measured, '--write', '--figures', str(tmp_path / 'again')]) == 0
    table = capsys.readouterr().out.strip()
    text = page.read_text()
    assert text.startswith(f'above\n{begin}\n{table}\n\n![')
    assert text.endswith(f'(figures/compare_digits_seconds.svg)\n{end}\nbelow\n')
    for name in ('compare_digits_bytes.svg', 'compare_digits_seconds.svg'):
        drawn = (tmp_path / name).read_bytes()
        assert drawn == (tmp_path / 'again' / name).read_bytes()
        assert b'sparse-loco' in drawn and b'omgs' not in drawn


def test_two_methods_are_trained_and_compared(words, warm_python, tmp_path, capsys):
    words = [*words, '--rows', 'dense,diloco', '--configs.train.num_epochs', '1']
    words += ['--configs.train.batch_size=64', '--compute', '0.01']
    assert main(words) == 0
    dense, diloco = map(json.loads, (tmp_path / 'results').read_text().splitlines())
    (steps,) = dense['of_epochs']['steps']
    assert (steps, diloco['steps_per_exchange']) == (11, 10)
    for run, exchanges in ((dense, steps), (diloco, 1)):
        each = run['of_epochs']
        assert each['bytes/sent'] == each['path/bytes'] == [exchanges * 4 * run['parameters']]
        assert each['bytes/dense'] == [steps * 4 * run['parameters']]
        assert each['path/messages'][0] % (2 * exchanges) == 0
    assert '| 11.0× |' in next(r for r in capsys.readouterr().out.splitlines() if 'diloco' in r)


@pytest.mark.parametrize(
    ('more', 'message'),
    [
        (['--link', '10mb'], "'10mb' is not a rate"),
        (['--latency', '-1'], '--latency is from 0 on, got -1.0'),
        (['--compute', 'inf'], '--compute is from 0 on, got inf'),
        (['--figures', '/nowhere'], '--figures: there is no folder /nowhere'),
    ],
)
def test_bad_input_is_refused_in_one_line(words, more, message, capsys):
    with pytest.raises(SystemExit, match='2'):
        parse([*words, *more])
    errors = capsys.readouterr().err
    assert message in errors and errors.count('\n') == 1
