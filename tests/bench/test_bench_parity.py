"""Parity: what is trained, that a killed measurement goes on as if unbroken, and the table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bench.parity import measuring
from bench.parity.__main__ import main, parse
from bench.parity.measuring import plan
from bench.parity.rows import ADAPTIVE, GROUPS, PUBLISHED, impossible, rows
from bench.parity.summary import behind, half_width, table
from bench.parity.training import failure, planned
from bench.parity.workloads import ACCURACY, WORKLOADS, Metric
from dgc import Composition
from dgc.algorithms import ALGORITHMS, Kind
from dgc.engines import LocalEngine
from dgc.profile import Profile
from dgc.wiring import check_momentum
from utils.build import build_optimizer
from utils.checks import build_composition, check_settings
from utils.cli import DECLARATIONS
from utils.config import load
from utils.training.averaging import Averaging, Surroundings
from utils.training.parameter_server import Asynchronous

ROOT = Path(__file__).parents[2]
LOSS = Metric('loss/test', higher=False, bound=2.0, relative=True)
SHORT = [
    *('--workload', 'digits', '--workers', '2', '--seeds', '1'),
    *('--configs.train.num_epochs', '2', '--configs.train.batch_size=64'),
]
WARMUP = ('--configs.train.compression.warmup_epochs', '1')  # of rows that compress


@pytest.fixture
def words(tmp_path):
    return [*SHORT, '--results', str(tmp_path / 'results'), '--runs', str(tmp_path / 'runs')]


CELLS = [(name, row) for name in WORKLOADS for row in PUBLISHED]
CELLS += [(name, row) for name in WORKLOADS if 'adamw' in name for row in ADAPTIVE]
LOW = [row for row in GROUPS['low-communication'] if row not in (*PUBLISHED, *ADAPTIVE)]
OTHERS = ['threshold-v', 'chunk', 'random-k', 'sign-sgd', 'signum', 'qsgd', 'mgwfbp', 'asgd']
OTHERS += ['async-diloco']
CELLS += [(name, row) for name in ('digits', 'gpt-adamw') for row in (*LOW, *OTHERS)]
CELLS += [(name, 'dgc-memory16') for name in ('resnet20', 'imdb', 'gpt-adamw')]


@pytest.mark.parametrize(('name', 'row'), CELLS)
def test_every_cell_of_the_table_can_be_built(name, row, tmp_path):
    what, (compared,) = WORKLOADS[name], rows([row])
    if reason := impossible(compared, what):
        pytest.skip(reason)
    run = planned(name, what, compared, 0, 4, 'simulated', 'cpu', tmp_path, {})
    settings = {**run.settings, **run.others}
    overrides = [f'--{name}={value}' for name, value in settings.items()]
    configs = load([ROOT / each for each in run.configs], overrides, root=DECLARATIONS)
    configs.check()
    check_settings(configs)
    composition = build_composition(configs, Asynchronous if compared.has_server else None)
    model = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(configs, model, workers=4)
    if isinstance(composition, Composition):
        check_momentum(optimizer, composition)
    if compared.is_local and not compared.has_server:
        averaging: Averaging = configs.train.averaging.build()
        averaging.wrap(optimizer, Surroundings(model, composition, LocalEngine(), 1, 8, fail))
    if what.optimizer:  # unless the row has a rule of its own
        assert compared.has_own_rule != (type(optimizer) in (torch.optim.Adam, torch.optim.AdamW))
    if row in ADAPTIVE:
        assert composition.schedule.density == float(row.removesuffix('-cold').split('-')[-1])
        memory = type(composition.memory).__name__
        assert memory == ('FirstMoment' if row.startswith('moment') else 'Residual')
        averages = type(configs.train.averaging.build()).__name__
        assert averages == ('OuterSteps' if row.startswith('movement') else 'EveryStep')
        assert not configs.train.scale_lr  # so that the rate is the same with either
    if row == 'dgc-memory16':
        assert composition.memory.dtype == 'bfloat16'


def fail() -> Profile:
    raise AssertionError('no planner of local steps measures a model')


def test_groups_have_the_methods_of_the_table():
    local = {each.name for each in ALGORITHMS.values() if each.kind is Kind.LOCAL_STEPS}
    assert local <= {*GROUPS['local']}
    assert [row.name for row in rows(['all'])] == [*ALGORITHMS]


def test_a_killed_measurement_goes_on_and_ends_as_an_unbroken_one(words, warm_python, tmp_path):
    command = [sys.executable, '-m', 'bench.parity', *words, *WARMUP, '--rows', 'dgc']
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    folder = tmp_path / 'runs'
    deadline = time.monotonic() + 120
    while not any(folder.glob('*/checkpoints/e0000.*')) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    (run,) = folder.glob('*/')
    while is_locked(run) and time.monotonic() < deadline:  # train.py ends with its parent
        time.sleep(0.02)
    assert not (tmp_path / 'results').exists()

    assert main([*words, *WARMUP, '--rows', 'dgc']) == 0
    broken = json.loads((tmp_path / 'results').read_text())
    assert [*folder.glob('*/')] == [run] and not (run / 'checkpoints').exists()
    other = ['--results', str(tmp_path / 'unbroken'), '--runs', str(tmp_path / 'others')]
    assert main([*words, *WARMUP, *other, '--rows', 'dgc']) == 0
    unbroken = json.loads((tmp_path / 'unbroken').read_text())
    assert {**broken, 'seconds': 0} == {**unbroken, 'seconds': 0}
    assert unbroken['epochs'] == len(unbroken['curve']) == 2
    assert 0 < unbroken['bytes_per_step'] < 144_040 / 20


def is_locked(run: Path) -> bool:
    return bool(subprocess.run(['flock', '-n', run / '.lock', 'true'], check=False).returncode)


def iter_of(values):
    """A generator, which can be closed."""
    yield from values


def test_what_is_measured_is_not_trained_again(words, monkeypatch, capsys, tmp_path):
    arguments = parse([*words, '--seeds', '2', '--rows', 'dense,gtopk'])
    lines = [{**run.asked, 'value': 80.0 - run.seed, 'bytes_per_step': 4000, 'density': 0.01}
             for run in plan(arguments)]  # fmt: skip
    text = '\n'.join(map(json.dumps, lines[:2])) + '\n' + json.dumps(lines[2])[:40]
    (tmp_path / 'results').write_text(text)
    asked = []
    monkeypatch.setattr(measuring, 'train', lambda runs, *_: (e for e in asked.extend(runs) or ()))
    assert main([*words, '--seeds', '2', '--rows', 'dense,gtopk']) == 0
    assert [(run.row, run.seed) for run in asked] == [('dense', 43)]
    assert '| dense | 1 | 38.00 |' in capsys.readouterr().out
    complete = {'bytes_per_step': 4000, 'density': 0.01, 'value': 37.0}
    monkeypatch.setattr(measuring, 'train', lambda runs, *_: iter_of([(run, 0) for run in runs]))
    monkeypatch.setattr(measuring, 'result', lambda run, *_: {**run.asked, **complete})
    assert main([*words, '--seeds', '2', '--rows', 'dense,gtopk']) == 0
    monkeypatch.setattr(measuring, 'train', lambda runs, *_: (e for e in asked.extend(runs) or ()))
    asked.clear()  # its line is no part of the cut one
    assert main([*words, '--seeds', '2', '--rows', 'dense,gtopk']) == 0 and not asked
    # another setting is another result
    assert main([*words, '--seeds', '1', '--rows', 'dense', '--configs.train.num_epochs', '3']) == 0
    assert [run.row for run in asked] == ['dense']
    assert main([*words, '--rows', 'dense', '--configs.dataset.root', '/elsewhere']) == 0
    assert len(asked) == 1  # where data lies changes nothing


def test_the_first_seed_of_all_rows_comes_first(words):
    runs = plan(parse([*words, *WARMUP, '--seeds', '2']))
    assert [run.row for run in runs] == [*PUBLISHED, 'dense', 'dgc']
    assert [run.seed for run in runs] == [42] * 7 + [43] * 2
    assert len({run.name for run in runs}) == len(runs)
    dense, dgc, dgs = runs[0], runs[1], runs[6]
    assert 'configs.train.compression.warmup_epochs' not in dense.settings
    assert dgc.settings['configs.train.compression.warmup_epochs'] == '1'
    server, simulated = dgs.command(Path('runs')), dgc.command(Path('runs'))
    assert server[server.index('--nproc-per-node') + 1] == '3'
    assert '--configs.engine.size=2' in simulated and '--configs.engine.size=2' not in server


ROWS = ['dense', 'mgwfbp', 'dgc', 'threshold-v', 'movement-0.01', 'demo']
ROWS += ['diloco', 'streaming-diloco', 'sparse-loco', 'zero-one-adam']
COMPRESS = {'dgc', 'threshold-v', 'movement-0.01'}
ARE_LOCAL = {'diloco', 'streaming-diloco', 'sparse-loco', 'zero-one-adam'}
HAVE = {
    'compression.compress_ratio': COMPRESS,
    'compression.topk': {'demo', 'sparse-loco'},
    'compression.nonfinite': {*ROWS},
    'compression.compressor.threshold': {'threshold-v'},
    'averaging.every': {'movement-0.01', *ARE_LOCAL},
    'averaging.momentum': {'movement-0.01', *ARE_LOCAL} - {'zero-one-adam'},
    'averaging.delay': {'streaming-diloco'},
    'optimizer.lr': {*ROWS},
    'compression.nosuch': set(),
}


@pytest.mark.parametrize('setting', HAVE)
def test_settings_of_the_command_line_go_to_the_rows_that_have_them(words, setting):
    what, name = WORKLOADS['gpt-adamw'], f'configs.train.{setting}'
    runs = [planned('gpt-adamw', what, row, 0, 2, 'simulated', 'cpu', ROOT, {name: '3'})
            for row in rows(ROWS)]  # fmt: skip
    assert {run.row for run in runs if run.settings.get(name) == '3'} == HAVE[setting]


@pytest.mark.parametrize('name', ['resnet20', 'vgg16'])
def test_settings_of_a_workload_go_to_the_rows_that_have_them(name):
    setting = 'configs.train.compression.memory.momentum_masking'
    chosen = rows(['dense', 'dgc', 'dgc-memory16', 'chunk', 'gtopk', 'dgs', 'signum', 'diloco'])
    plans = [planned(name, WORKLOADS[name], row, 0, 2, 'simulated', 'cpu', ROOT, {})
             for row in chosen]  # fmt: skip
    having = {plan.row for plan in plans if plan.settings.get(setting) == 'False'}
    assert having == {'dgc', 'dgc-memory16', 'chunk'}
    (overridden,) = rows(['dgc'])
    again = planned(name, WORKLOADS[name], overridden, 0, 2, 'simulated', 'cpu', ROOT,
                    {setting: 'True'})  # fmt: skip
    assert again.settings[setting] == 'True'


def test_real_launchers_start_a_process_for_each_worker(words):
    (run,) = plan(parse([*words, '--rows', 'gtopk', '--engine', 'torchrun', '--workers', '3']))
    command = run.command(Path('runs'))
    assert command[1:3] == ['-m', 'torch.distributed.run']
    assert command[command.index('--nproc-per-node') + 1] == '3'
    assert not any('engine' in word for word in command)


def test_a_failed_run_is_named_and_the_others_go_on(words, monkeypatch, capsys, tmp_path):
    def ends(runs, folder, jobs):
        for run in runs:
            (folder / f'{run.name}.log').write_text('epoch 0\ntrain.py: there is no data\n')
            yield run, 2

    monkeypatch.setattr(measuring, 'train', ends)
    assert main([*words, '--rows', 'dense,gtopk']) == 1
    output = capsys.readouterr().out
    assert output.count('| 0 | train.py: there is no data |') == 2
    assert not (tmp_path / 'results').exists()
    (run,) = plan(parse([*words, '--rows', 'dense']))
    (tmp_path / 'runs' / f'{run.name}.log').write_text('')
    assert failure(run, tmp_path / 'runs', -signal.SIGKILL).startswith('ended with status -9: see ')


def test_a_run_of_an_earlier_version_is_named_and_the_others_go_on(words, monkeypatch, capsys):
    """One whose epochs lack what a line of the results has."""

    def ends(runs, folder, jobs):
        for run in runs:
            own = folder / run.name
            own.mkdir(parents=True)
            (own / 'run.json').write_text('{"epochs": 1, "engine": "simulated"}')
            epoch = {'epoch': 0, 'acc/test_top1': 9.0, 'bytes/sent': 1, 'bytes/received': 1}
            (own / 'metrics.jsonl').write_text(json.dumps(epoch) + '\n')
            yield run, 0

    monkeypatch.setattr(measuring, 'train', ends)
    assert main([*words, '--rows', 'dense,gtopk']) == 1
    output = capsys.readouterr().out
    assert output.count('was begun by an earlier version: metrics.jsonl has no steps,') == 2
    assert output.count('remove the folder to train anew |') == 2


def test_another_device_is_another_run(words):
    (here,), (there,) = (
        plan(parse([*words, '--rows', 'dense', '--device', name])) for name in ('cpu', 'gpu')
    )
    assert there.name == f'{here.name}.gpu'
    assert here.asked == there.asked
    assert '--devices gpu' in ' '.join(there.command(Path('runs')))


def test_a_line_of_another_device_is_not_this_run(words, tmp_path):
    (run,) = plan(parse([*words, '--rows', 'dense', '--device', 'gpu']))
    file = tmp_path / 'lines.jsonl'
    for device, count in [('cpu', 0), ('gpu', 1)]:
        file.write_text(json.dumps({**run.asked, 'device': device}) + '\n')
        assert len(measuring.known([run], file)) == count
    file.write_text(json.dumps(run.asked) + '\n')  # of an earlier version, which had the CPU only
    assert not measuring.known([run], file)


def test_intervals_are_those_of_student():
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert half_width([5.0, 5.0]) == 0


def test_rows_are_compared_with_dense_of_the_same_seed():
    assert behind({1: 79.0, 3: 60.0}, {1: 80.0, 2: 90.0}, ACCURACY) == [pytest.approx(1.0)]
    assert behind({1: 1.1}, {1: 1.0}, LOSS) == [pytest.approx(10.0)]
    assert behind({1: 0.9}, {1: 1.0}, LOSS) == [pytest.approx(-10.0)]


def test_the_table_says_what_is_within_the_bound_and_why_a_row_is_empty():
    results = [
        {'row': row, 'seed': seed, 'value': value, 'bytes_per_step': size, 'density': size / 9000}
        for row, seed, value, size in [
            ('dense', 1, 2.0, 9000), ('dense', 2, 2.0, 9000), ('dgc', 1, 2.0, 90),
            ('dgc', 2, 2.06, 90), ('gtopk', 1, 2.2, 45),
        ]
    ]  # fmt: skip
    lines = table(results, LOSS, {'dgs': 'needs SGD'}, ['dense', 'dgc', 'gtopk', 'dgs', 'omgs'])
    head, _, dense, dgc, gtopk, dgs, omgs = lines.splitlines()
    assert 'loss/test (lower is better) | behind dense, % | within 2 %' in head
    assert dense == '| dense | 2 | 2.00 ± 0.00 |  |  | 9,000 | 100.000% |'
    assert dgc == '| dgc | 2 | 2.03 ± 0.38 | +1.50 ± 19.06 | yes | 90 | 1.000% |'
    assert gtopk == '| gtopk | 1 | 2.20 | +10.00 | no | 45 | 0.500% |'
    assert dgs == '| dgs | 0 | needs SGD |  |  |  |  |'
    assert omgs == '| omgs | 0 | not trained yet |  |  |  |  |'


@pytest.mark.parametrize(
    ('more', 'message'),
    [
        (['--workload', 'mnist'], "--workload: there is no workload 'mnist': there are digits"),
        (
            ['--rows', 'dense,dcg'],
            "--rows: there is no row 'dcg': there are all, published, adaptive,",
        ),
        (['--results', '/nowhere/x'], '--results: there is no folder /nowhere'),
        (['--sead', '1'], '--sead'),
    ],
)
def test_bad_input_is_refused_in_one_line(words, more, message, capsys):
    with pytest.raises(SystemExit, match='2'):
        parse([*words, *more])
    errors = capsys.readouterr().err
    assert message in errors and errors.count('\n') == 1


@pytest.mark.parametrize(
    ('compared', 'setting'),
    [('dense,sparse-loco', 'compression.compress_ratio'), ('dense,dgc', 'averaging.every')],
)
def test_a_setting_that_no_row_has_is_refused(words, compared, setting, capsys):
    name = f'--configs.train.{setting}'
    assert main([*words, '--rows', compared, name, '5']) == 2
    assert capsys.readouterr().err == f'bench.parity: {name}: none of the rows has this setting\n'
