"""Seconds to a quality: the command line, the schedule, the tasks, the rows, and the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

import dgc
from bench.accuracy import parse, recipe, seconds_to, table
from bench.accuracy_rows import ROWS, Compressed, Epochs, Hooked, suits
from bench.accuracy_tasks import TASKS
from bench.accuracy_worker import Recipe, Training
from tools.harness.workloads import WORKLOADS, make_model

CURVE = [
    {'steps': 5, 'seconds': 10.0, 'quality': 30.0},
    {'steps': 10, 'seconds': 20.0, 'quality': 47.0},
    {'steps': 15, 'seconds': 30.0, 'quality': 44.0},
]
SAMPLES = 40
COMPRESSED = [name for name, row in ROWS.items() if isinstance(row, Compressed)]
OURS = [name for name, row in ROWS.items() if not isinstance(row, Hooked)]


@pytest.mark.parametrize(
    ('task', 'target', 'expected'),
    [
        ('resnet20', 25, 10.0),
        ('resnet20', 45, 20.0),
        ('resnet20', 47, 20.0),
        ('resnet20', 50, None),
        ('gpt', 45, 10.0),  # a loss
        ('gpt', 29, None),
    ],
)
def test_the_first_evaluation_at_the_target_counts(task, target, expected):
    assert seconds_to(task, target, CURVE) == expected


def test_without_evaluations_there_is_no_time():
    assert seconds_to('vgg16', 10, []) is None


@pytest.mark.parametrize('name', TASKS)
def test_the_rate_warms_up_for_an_epoch_and_ends_at_zero(name):
    task, steps, epochs = TASKS[name], 10, 4
    rates = [task.rate_at(step, steps, epochs) for step in range(steps * epochs + 1)]
    assert rates[0] == pytest.approx(task.lr / steps)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(task.lr)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)


def test_the_table_has_never_and_why_a_row_failed():
    about = {'rate': '100mbit', 'nodes': 4, 'target': 45.0, 'task': 'vgg16', 'curve': CURVE}
    rows = [
        {'name': 'ddp', 'seconds': 20.0, 'megabytes': 12.5, **about},
        {'name': 'powersgd', 'seconds': None, 'megabytes': None, **about},
        {'name': 'gtopk', 'error': 'the workers did not end in time'},
    ]
    title, ddp, never, failed = table(rows).splitlines()
    assert title.startswith('seconds to 45 % at 100mbit, 4 nodes')
    assert ddp.split()[:5] == ['ddp', '20', 's', '12.50', 'MB'] and ddp.endswith('30/44')
    assert never.split()[1] == 'never' and 'MB' not in never
    assert 'failed: the workers did not end in time' in failed


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--only', 'dcg'], "no row 'dcg'"),
        (['--task', 'resnet'], "no task 'resnet'"),
        (['--root', '/nowhere'], 'does not hold cifar-10-batches-py'),
        (['--task', 'gpt'], 'does not hold tinyshakespeare/input.txt'),
        (['--rate', 'fast'], 'fast'),
        (['--lr', '0'], 'a learning rate is above 0'),
        (['--samples', '100'], 'a step of all workers takes 128'),
    ],
)
def test_invalid_input_is_refused(tmp_path, capsys, words, message):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    with pytest.raises(SystemExit) as ended:
        parse(['--root', str(tmp_path), *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_rows_end_at_the_target_only_where_they_are_looked_at_often(tmp_path):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    arguments = parse(['--root', str(tmp_path), '--samples', '1280', '--target', '60'])
    whole = recipe('dgc', arguments)
    assert (whole.every, whole.target) == (1280 // 4 // 32, None)
    arguments.every = 3
    assert (recipe('dgc', arguments).every, recipe('dgc', arguments).target) == (3, 60.0)


@pytest.mark.parametrize(
    ('name', 'task'),
    [
        (name, task)
        for name, row in ROWS.items()
        for task in ('vgg16', 'gpt')  # SGD, AdamW
        if isinstance(row, Compressed) and suits(name, TASKS[task])
    ],
)
def test_densities_fall_for_two_epochs(name, task):
    def make(engine):
        network = make_model(WORKLOADS['digits'])
        return ROWS[name].trained(TASKS[task], network, engine, Epochs(5, warmup=2)).optimizer

    (ours,) = dgc.simulate(1, make)
    densities = {
        bucket.spec.schedule.at(step, 5)
        for bucket in ours.reducer.buckets
        for step in (0, 5, 10, 100)
        if bucket.spec.schedule is not None
    }
    assert len(densities) == 3 and min(densities) == pytest.approx(ROWS[name].density)


def test_only_rows_that_send_the_same_bytes_are_continued_without_a_limit(tmp_path):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    arguments = parse(['--root', str(tmp_path), '--limited', '7'])
    limited = {name: recipe(name, arguments).limited for name in ROWS}
    assert {name for name, steps in limited.items() if steps} == {'ddp', 'ddp fp16'}


class Digits(type(TASKS['vgg16'])):
    """A task of a few digits, in place of images that tests must not need."""

    def network(self):
        return make_model(WORKLOADS['digits'])

    def data(self, root, samples):
        generator = torch.Generator().manual_seed(0)
        targets = torch.arange(SAMPLES) % 10
        images = torch.randn(10, 1, 8, 8, generator=generator)[targets]
        data = TensorDataset(images, targets)
        return {'train': data, 'test': data}


@pytest.mark.parametrize(
    ('name', 'is_adaptive'),
    [
        (name, TASKS[task].is_adaptive)
        for name, row in ROWS.items()
        for task in ('vgg16', 'gpt')
        if not isinstance(row, Hooked) and suits(name, TASKS[task])
    ],
)
def test_every_row_trains_and_all_ranks_see_the_same_quality(monkeypatch, name, is_adaptive):
    fields = {**vars(TASKS['vgg16']), 'is_adaptive': is_adaptive, 'lr': 0.01}
    monkeypatch.setitem(TASKS, 'vgg16', Digits(**fields))
    of_row = Recipe(name, 'vgg16', '', SAMPLES, 5, 0.02, epochs=16, warmup=2, every=16, test=100)

    def work(engine):
        training = Training(of_row, engine)
        return list(training.curve()), training.megabytes()

    (curve, sent), (other, _) = dgc.simulate(2, work)
    assert [each['quality'] for each in curve] == [each['quality'] for each in other]
    assert [each['steps'] for each in curve] == [16, 32, 48, 64]
    assert curve[-1]['quality'] > 50 and sent > 0
    early = replace(of_row, target=curve[-1]['quality'])
    stopped = dgc.simulate(2, lambda engine: list(Training(early, engine).curve()))[0]
    assert len(stopped) <= 4 and stopped[-1]['quality'] >= early.target


def test_steps_after_the_limited_ones_count_as_long_as_those(monkeypatch):
    monkeypatch.setitem(TASKS, 'vgg16', Digits(**{**vars(TASKS['vgg16']), 'lr': 0.01}))
    of_row = Recipe('dgc', 'vgg16', '', SAMPLES, 5, 0.01, 6, 1, every=4, test=100, limited=6)
    lifted: list[int] = []

    def work(engine):
        training = Training(of_row, engine, lambda: lifted.append(training.steps))
        return list(training.curve())

    (curve,) = dgc.simulate(1, work)
    assert lifted == [6]
    assert [each['steps'] for each in curve[:2]] == [4, 8]
    pace = curve[1]['seconds'] / 8
    assert [each['seconds'] for each in curve[1:]] == pytest.approx(
        [pace * each['steps'] for each in curve[1:]]
    )
    assert curve[0]['seconds'] != pytest.approx(4 * pace, rel=1e-9)


@pytest.mark.parametrize('limited', [None, 24, 100])
def test_without_later_steps_the_limit_stays(monkeypatch, limited):
    monkeypatch.setitem(TASKS, 'vgg16', Digits(**{**vars(TASKS['vgg16']), 'lr': 0.01}))
    of_row = Recipe('dgc', 'vgg16', '', SAMPLES, 5, 0.01, 3, 1, every=12, test=100, limited=limited)
    lifted: list[int] = []

    def work(engine):
        training = Training(of_row, engine, lambda: lifted.append(training.steps))
        return [each['steps'] for each in training.curve()], training.per_step

    assert dgc.simulate(1, work) == [([12, 24], None)]
    assert not lifted


def test_the_rate_and_the_warm_up_of_the_command_line_are_trained(monkeypatch, tmp_path):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    words = ['--root', str(tmp_path), '--task', 'vgg16', '--lr', '0.3', '--warmup', '1']
    asked = recipe('dgc', parse(words))
    monkeypatch.setitem(TASKS, 'vgg16', Digits(**{**vars(TASKS['vgg16']), 'lr': 0.01}))

    def work(engine):
        training = Training(replace(asked, root='', samples=SAMPLES, batch=5), engine)
        (bucket, *_) = training.trained.optimizer.reducer.buckets
        schedule = bucket.spec.schedule
        steps = len(training.loader)
        return (training.task.lr, schedule.at(steps - 1, steps), schedule.at(steps, steps))

    ((lr, before, after),) = dgc.simulate(1, work)
    assert lr == 0.3
    assert before > after == pytest.approx(0.001)


def test_the_table_marks_seconds_that_were_continued():
    about = {'rate': '10mbit', 'nodes': 4, 'target': 45.0, 'task': 'vgg16', 'curve': CURVE}
    rows = [{'name': 'ddp', 'seconds': 20.0, 'megabytes': 12.5, 'limited': 7, **about}]
    _, ddp, note = table(rows).splitlines()
    assert ddp.split()[:3] == ['ddp', '20', 's*']
    assert note == '* ddp: 7 steps at the rate, its later steps counted as long'


def test_a_row_that_is_another_s_twin_is_left_out_and_refused(tmp_path, capsys):
    (tmp_path / 'cifar-10-batches-py').mkdir()
    words = ['--task', 'vgg16', '--root', str(tmp_path)]
    assert set(ROWS) - set(parse(words).names) == {'moment 1 %'}
    with pytest.raises(SystemExit) as ended:
        parse([*words, '--only', 'dgc,moment 1 %'])
    assert ended.value.code == 2
    assert 'moment 1 %' in capsys.readouterr().err
