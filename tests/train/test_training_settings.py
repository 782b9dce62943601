"""Settings of training: each does what it says, on two simulated workers, and is refused where it
cannot."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from launching import SIMULATED, Run, assert_same, here
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as schedules

from dgc.memory import Residual
from dgc.wiring import check_momentum, check_second_moment
from utils import sealed
from utils.build import build_optimizer, build_rate
from utils.checks import build_composition, check_settings
from utils.cli import DECLARATIONS
from utils.config import Config, ConfigError, load
from utils.training.saving import Saver

ROOT = Path(__file__).parents[2]
DENSE = ['configs/digits/cnn.py', 'configs/dense/sgd.py']
SHORT = [
    *('--configs.train.batch_size', '64', '--configs.train.num_epochs', '4', '--devices', 'cpu'),
    *('--configs.train.warmup_lr_epochs', '0'),
]
PLAIN = ['--configs.train.optimizer.momentum', '0', '--configs.train.optimizer.weight_decay', '0']
STEPS = 11  # of an epoch
RATE = 0.025 * 2


def train(runs: Path, *more: str | Path, files=DENSE, code: int = 0, size: int = 2) -> Run:
    done = here('--configs', *files, *more, *SHORT, *SIMULATED, str(size), '--runs', runs)
    assert done.code == code, done.output
    return Run(next(iter(runs.glob('*')), runs), done)


def weights(run: Run, key: str = 'model') -> torch.Tensor:
    """All parameters after the first epoch of a run, in one vector."""
    state = run.checkpoint(0, 0)[key]
    parts = [state[name] for name in state if not name.startswith('bn') or 'running' not in name]
    return torch.cat([tensor.double().flatten() for tensor in parts if tensor.dim()])


@pytest.fixture(scope='module')
def after_a_step(tmp_path_factory) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights before and after one plain step of SGD."""
    one = ['--configs.train.num_steps', '1', *PLAIN]
    before, after = map(tmp_path_factory.mktemp, 'ba')
    still = train(before, *one, '--configs.train.optimizer.lr', '0')
    return weights(still), weights(train(after, *one))


class TestClipping:
    def test_the_mean_is_clipped_by_its_norm(self, after_a_step, tmp_path):
        before, after = after_a_step
        files = [*DENSE, 'configs/clip/mean_norm.py']
        clip = ['--configs.train.clip_mean.max_norm', '0.001', '--configs.train.num_steps', '1']
        moved = weights(train(tmp_path, *clip, *PLAIN, files=files)) - before
        assert moved.norm() == pytest.approx(RATE * 0.001, rel=0.01)
        free = after - before
        assert free.norm() > RATE * 0.01
        assert float(moved @ free) == pytest.approx(float(moved.norm() * free.norm()), rel=1e-4)

    def test_the_mean_is_clipped_by_value(self, after_a_step, tmp_path):
        before, after = after_a_step
        files = [*DENSE, 'configs/clip/mean_value.py']
        clip = ['--configs.train.clip_mean.clip_value', '0.001', '--configs.train.num_steps', '1']
        moved = weights(train(tmp_path, *clip, *PLAIN, files=files)) - before
        wanted = (after - before).clamp(-RATE * 0.001, RATE * 0.001)
        torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-7)
        assert float(wanted.abs().max()) == RATE * 0.001

    @pytest.mark.parametrize('memory', ['dgc/wm5', 'gtopk/mc', 'signsgd/signum', 'oktopk/mc'])
    def test_a_mean_of_momenta_is_not_clipped_as_a_gradient(self, memory, tmp_path):
        files = ['configs/digits/cnn.py', f'configs/{memory}.py', 'configs/clip/mean_norm.py']
        done = train(tmp_path, files=files, code=2).done
        assert 'configs.train.clip_mean = clip_grad_norm_' in done.output
        assert 'configs/clip/mean_norm.py' in done.output

    @pytest.mark.parametrize(
        ('function', 'options', 'message'),
        [
            (clip_grad_norm_, {'max_norm': -1.0}, r'\.max_norm must be above 0, got -1.0'),
            (clip_grad_norm_, {'max_norm': 0}, r'\.max_norm must be above 0, got 0'),
            (clip_grad_value_, {'clip_value': -0.1}, r'\.clip_value must be above 0, got -0.1'),
            (clip_grad_norm_, {}, ".*'max_norm'"),
        ],
    )
    def test_a_limit_that_turns_gradients_round_or_is_missing(self, function, options, message):
        configs = loaded(*DENSE)
        configs.train.clip_mean = Config(function, **options)
        with pytest.raises(ConfigError, match=rf'^configs\.train\.clip_mean{message}'):
            check_settings(configs)

    @pytest.mark.parametrize('name', ['local_norm', 'local_value'])
    def test_ranks_clip_before_the_exchange(self, name):
        configs = loaded(*DENSE, f'configs/clip/{name}.py')
        assert build_composition(configs).clipping.limit > 0
        assert configs.train.clip_mean is None

    def test_no_mean_is_clipped_where_there_is_none(self, tmp_path):
        files = ['configs/digits/cnn.py', 'configs/diloco/diloco.py', 'configs/clip/mean_norm.py']
        done = train(tmp_path, files=files, code=2).done
        assert 'configs.train.clip_mean' in done.output and 'OuterSteps' in done.output


class TestNumSteps:
    def test_training_ends_within_an_epoch(self, tmp_path):
        limit = ['--configs.train.num_steps', str(STEPS + 4)]
        run = train(tmp_path, *limit)
        assert [line['steps'] for line in run.metrics] == [STEPS, 4]
        again = train(tmp_path, *limit, '--resume')
        assert 'there is nothing left to train' in again.done.output
        assert [line['steps'] for line in again.metrics] == [STEPS, 4]

    def test_a_resumed_run_ends_at_the_same_step(self, tmp_path):
        limit = ['--configs.train.num_steps', str(STEPS + 4)]
        straight = train(tmp_path / 'straight', *limit)
        more = ['--configs.checkpoint.every_steps', '13', '--name', 'x']
        run = train(tmp_path / 'cut', *limit, *more)
        (run.folder / 'checkpoints' / 'e0001.r0of2.pth').unlink()  # killed before it was written
        assert 'e0001.s000002.r1of2.pth' in run.checkpoints
        run = train(tmp_path / 'cut', *limit, *more, '--resume')
        assert run.metrics[-1]['steps'] == 4
        assert_same(run.checkpoint(1, 0)['model'], straight.checkpoint(1, 0)['model'])

    @pytest.mark.parametrize(('cut', 'steps'), [(4, 6), (4, STEPS + 4), (STEPS + 1, 2 * STEPS)])
    @pytest.mark.parametrize('mode', ['dense', 'diloco', 'dropout'])
    def test_a_longer_run_goes_on_within_the_epoch_that_was_cut(self, tmp_path, cut, steps, mode):
        """As if it had not been cut, whatever was evaluated there."""
        files, more = DENSE, ['--name', 'x']
        if mode == 'diloco':
            files = ['configs/digits/cnn.py', 'configs/diloco/diloco.py']
            more += ['--configs.train.averaging.every', '3']
        if mode == 'dropout':
            files = [*DENSE, dropping_out(tmp_path / 'dropout.py')]
        straight = train(
            tmp_path / 's', *more, '--configs.train.num_steps', str(steps), files=files
        )
        runs = tmp_path / 'cut'
        first = train(runs, *more, '--configs.train.num_steps', str(cut), files=files)
        assert first.metrics[-1]['samples'] == cut * 2 * 64
        more += ['--resume', 'auto', '--configs.train.num_steps', str(steps)]
        run = train(runs, *more, files=files)
        at = f'e{cut // STEPS:04d}.s{cut % STEPS:06d}'
        assert f'continues from {at} in ' in run.done.output
        for name in ('epoch', 'steps', 'samples', 'loss/train', 'bytes/sent'):
            assert [e[name] for e in run.metrics] == [e[name] for e in straight.metrics]
        assert run.curve('loss/train') == straight.curve('loss/train')
        assert list(run.curve('acc/test_top1'))[-1] == steps * 2 * 64
        state, wanted = (each.checkpoint((steps - 1) // STEPS, 1) for each in (run, straight))
        for name, value in wanted['model'].items():
            assert 'running' in name or torch.equal(value, state['model'][name]), name
        assert state['optimizer']['steps'] == steps
        assert ('cut' in state) is ('cut' in wanted) is (steps % STEPS > 0)
        done = train(runs, *more, files=files).done
        has = f'{steps} steps' if steps % STEPS else '2 epochs'
        assert f'has {has} already: there is nothing left to train' in done.output

    def test_the_best_so_far_is_that_of_before_an_epoch_that_goes_on(self, tmp_path):
        words = ['--name', 'x', '--resume', 'auto', '--configs.train.num_steps']
        cut = train(tmp_path, *words, str(STEPS + 1))
        for path in (cut.folder / 'checkpoints').glob('e0001.*'):
            state = sealed.read(path)
            sealed.write({**state, 'best': 1000.0, 'best_epoch': 1}, state.pop('manifest'), path)
        run = train(tmp_path, *words, str(2 * STEPS))
        assert run.checkpoint(1, 0)['best'] == max(line['acc/test_top1'] for line in run.metrics)

    def test_other_workers_go_on_at_the_same_sample(self, tmp_path):
        cut = train(tmp_path / 'two', '--configs.train.num_steps', '4')
        words = ['--resume', cut.folder, '--configs.train.num_steps', '10']
        run = train(tmp_path / 'one', *words, size=1)
        assert [line['steps'] for line in run.metrics] == [2]
        assert run.metrics[0]['samples'] == 10 * 64
        words = ['--resume', 'auto', '--name', run.folder.name, '--configs.train.num_steps', '12']
        run = train(tmp_path / 'one', *words, size=1)  # which knows of the steps before, too
        assert [line['steps'] for line in run.metrics] == [4]
        assert list(run.curve('loss/train')) == [64 * step for step in (9, 10, 11, 12)]
        (line,) = run.metrics
        assert line['speed/samples'] * line['seconds/train'] == pytest.approx(4 * 64)

    def test_a_signal_at_the_last_step_is_followed_by_the_evaluation(self, tmp_path, monkeypatch):
        """And then, too, a longer run goes on from there."""
        words = ['--name', 'x', '--resume', 'auto', '--configs.train.num_steps']
        monkeypatch.setattr(Saver, '_agree', lambda saver: (15 * (saver.step == 4), False))
        assert 'e0000.s000004' in train(tmp_path, *words, '4', code=143).checkpoints[0]
        monkeypatch.undo()
        assert [line['steps'] for line in train(tmp_path, *words, '4').metrics] == [4]
        assert [line['steps'] for line in train(tmp_path, *words, '6').metrics] == [6]


def dropping_out(file: Path) -> Path:
    """A config file with a model that draws random numbers."""
    file.write_text(
        'import torch\n'
        'from models.digits import DigitsCNN\n'
        'from utils.config import Config, configs\n'
        'class Dropping(DigitsCNN):\n'
        '    def forward(self, inputs):\n'
        '        return torch.dropout(super().forward(inputs), 0.2, self.training)\n'
        'configs.model = Config(Dropping)\n'
    )
    return file


def infinite_at_first(file: Path) -> Path:
    """A config file with a loss that is infinite, until its factor is set."""
    file.write_text(
        'import math\n'
        'from torch import nn\n'
        'from utils.config import Config, configs\n'
        'class Scaled(nn.CrossEntropyLoss):\n'
        '    def __init__(self, factor):\n'
        '        super().__init__()\n'
        '        self.factor = factor\n'
        '    def forward(self, outputs, targets):\n'
        '        return self.factor * super().forward(outputs, targets)\n'
        'configs.train.criterion = Config(Scaled, factor=math.inf)\n'
    )
    return file


class TestAveragedWeights:
    EMA = ('--configs.train.ema', '0.9')

    def test_it_is_the_average_of_the_weights_of_all_steps(self, after_a_step, tmp_path):
        _, first = after_a_step
        averaged, weight = first, None
        for steps in (2, 3):
            words = [*self.EMA, *PLAIN, '--configs.train.num_steps', str(steps)]
            run = train(tmp_path / str(steps), *words)
            weight = weights(run)
            averaged = 0.9 * averaged + 0.1 * weight
        found = weights(run, 'ema')
        torch.testing.assert_close(found, averaged, rtol=1e-5, atol=1e-7)
        assert not torch.allclose(found, weight)

    def test_it_is_evaluated_saved_and_gone_on_with(self, tmp_path):
        words = [*self.EMA, '--name', 'x']
        straight = train(tmp_path / 'straight', *words, '--configs.train.num_steps', '16')
        without = train(tmp_path / 'without', '--configs.train.num_steps', '16')
        assert_same(straight.checkpoint(1, 0)['model'], without.checkpoint(1, 0)['model'])
        assert straight.metrics[-1]['acc/test_top1'] != without.metrics[-1]['acc/test_top1']

        train(tmp_path / 'cut', *words, '--configs.train.num_steps', str(STEPS))
        resumed = train(tmp_path / 'cut', *words, '--configs.train.num_steps', '16', '--resume')
        assert_same(resumed.checkpoint(1, 0)['ema'], straight.checkpoint(1, 0)['ema'])

        output = train(tmp_path / 'straight', *words, '--evaluate').done.output
        best = max(line['acc/test_top1'] for line in straight.metrics)
        assert f'[acc/test_top1] = {best:.2f}' in output

    def test_it_begins_with_the_first_step_that_is_not_skipped(self, tmp_path):
        """Also where all steps before a checkpoint were."""
        words = ['--name', 'x', '--configs.train.compression.nonfinite', 'skip', *self.EMA]
        words += ['--configs.train.num_steps']
        files = [*DENSE, infinite_at_first(tmp_path / 'loss.py')]
        skipped = train(tmp_path / 'r', *words, '2', files=files)
        assert 'ema' not in skipped.checkpoint(0, 0)
        words = ['--configs.train.criterion.factor', '1.0', '--resume', *words]
        resumed = train(tmp_path / 'r', *words, '3', files=files).checkpoint(0, 0)
        assert_same(resumed['ema'], resumed['model'])


class TestPrecision:
    def test_bf16_is_computed_and_everything_else_is_float32(self, tmp_path, dtypes):
        run = train(tmp_path, '--configs.train.precision', 'bf16', '--configs.train.num_steps', '2')
        assert dtypes == {(True, torch.bfloat16), (False, torch.bfloat16)}
        state = run.checkpoint(0, 0)
        assert {t.dtype for t in state['model'].values() if t.dim()} == {torch.float32}

    def test_fp32_is_the_default(self, tmp_path, dtypes):
        train(tmp_path, '--configs.train.num_steps', '1')
        assert {dtype for _, dtype in dtypes} == {torch.float32}

    @pytest.fixture
    def dtypes(self):
        """Filled with (is training, type) of what linear layers return."""
        found = set()

        def look(module, _, output):
            if isinstance(module, nn.Linear):
                found.add((module.training, output.dtype))

        handle = nn.modules.module.register_module_forward_hook(look)
        yield found
        handle.remove()


class TestPretrained:
    def test_training_begins_with_the_weights_of_a_checkpoint(self, tmp_path):
        first = train(tmp_path / 'first', '--configs.train.num_steps', '2', '--configs.seed', '7')
        file = first.folder / 'checkpoints' / 'e0000.r0of2.pth'
        still = ['--configs.train.optimizer.lr', '0', '--configs.train.num_steps', '1']
        second = train(tmp_path / 'second', *still, '--configs.pretrained.file', str(file))
        assert weights(second).equal(weights(first))

    def test_a_file_that_does_not_fit_is_refused(self, tmp_path):
        torch.save({'conv.weight': torch.zeros(3)}, tmp_path / 'w.pth')
        done = train(
            tmp_path / 'r', '--configs.pretrained.file', str(tmp_path / 'w.pth'), code=2
        ).done
        assert done.complaints and 'does not fit the model' in done.complaints[0]
        assert len(done.complaints) == 1


def test_a_compiled_network_trains_alike(tmp_path):
    from torch._dynamo import register_backend

    graphs = []
    register_backend(name='counted', compiler_fn=lambda graph, _: graphs.append(graph) or graph)
    words = ['--configs.train.num_steps', '3']
    compiled = train(tmp_path / 'c', *words, '--configs.train.compile', 'counted')
    assert graphs
    plain = train(tmp_path / 'p', *words)
    assert_same(compiled.checkpoint(0, 0)['model'], plain.checkpoint(0, 0)['model'])


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['precision', 'fp16'], "configs.train.precision = 'fp16', which needs a loss"),
        (['compile', 'indutor'], "configs.train.compile = 'indutor': this torch has"),
        (['recompute', 'True'], 'DigitsCNN has no method gradient_checkpointing_enable()'),
        (['ema', '1.0'], 'configs.train.ema = 1.0: it is above 0 and below 1'),
        (['num_steps', '0'], 'configs.train.num_steps must be at least 1, got 0'),
        (['scale_lr', '2'], 'configs.train.scale_lr = 2: expected bool'),
    ],
)
def test_values_that_cannot_be_meant_are_refused(words, message, tmp_path):
    name, value = words
    done = train(tmp_path, f'--configs.train.{name}', value, code=2).done
    assert len(done.complaints) == 1 and message in done.complaints[0]


# ---------------------------------------------------------------- config files


def loaded(*files: str, overrides=()):
    configs = load([ROOT / file for file in files], overrides, root=DECLARATIONS)
    configs.check()
    check_settings(configs)
    return configs


@pytest.mark.parametrize('composition', ['dense/sgd', 'dgc/wm5', 'gtopk/tree', 'oktopk/periodic'])
@pytest.mark.parametrize('name', ['adam', 'adamw', 'muon'])
def test_other_optimizers_have_a_residual_and_a_rate_that_no_number_of_workers_changes(
    composition, name
):
    files = 'configs/digits/cnn.py', f'configs/{composition}.py', f'configs/optim/{name}.py'
    configs = loaded(*files, 'configs/rate/cosine.py')
    memory = build_composition(configs).memory
    assert isinstance(memory, Residual) or composition == 'dense/sgd'
    if name == 'muon' and not hasattr(torch.optim, 'Muon'):
        return
    model = configs.model.build()
    optimizer = build_optimizer(configs, model, workers=4)
    assert {group['lr'] for group in optimizer.param_groups} == {1e-3}
    assert len(optimizer.param_groups) == (2 if name == 'muon' else 1)
    rate = build_rate(configs, optimizer, 10, workers=4)
    rates = []
    for step in range(250):
        rate.before_step(step)
        rates.append({group['lr'] for group in optimizer.param_groups})
    assert all(len(each) == 1 for each in rates)
    values = [each.pop() for each in rates]
    assert values[:11] == pytest.approx([1e-3 * (step + 1) / 11 for step in range(11)])
    cosine = [1e-4 + 9e-4 * (1 + math.cos(math.pi * step / 240)) / 2 for step in range(240)]
    assert values[10:] == pytest.approx(cosine)


@pytest.mark.parametrize('per_epoch', [True, False])
@pytest.mark.parametrize('workers', [1, 4])
def test_a_cosine_ends_at_a_tenth_of_the_rate_of_all_workers(workers, per_epoch):
    overrides = [
        *('--configs.train.num_batches_per_step', '2', '--configs.train.num_epochs', '6'),
        *('--configs.train.schedule_lr_per_epoch', str(per_epoch)),
    ]
    configs = loaded('configs/digits/cnn.py', 'configs/rate/cosine.py', overrides=overrides)
    optimizer = build_optimizer(configs, configs.model.build(), workers)
    rate = build_rate(configs, optimizer, 10, workers)
    full = configs.train.optimizer.lr * 2 * workers
    assert rate.current == pytest.approx(full)
    rate.before_step(10 * 6)  # one warm-up epoch, and five of the cosine
    assert rate.current == pytest.approx(full / 10)


def rates_of(scheduler, per_epoch, workers, options):
    """Of each step of six epochs of 10 steps; none warms up."""
    overrides = [
        *('--configs.train.schedule_lr_per_epoch', str(per_epoch)),
        *('--configs.train.warmup_lr_epochs', '0', '--configs.train.num_epochs', '6'),
    ]
    configs = loaded('configs/digits/cnn.py', overrides=overrides)
    configs.train.scheduler = Config(scheduler, **options)
    check_settings(configs)
    optimizer = build_optimizer(configs, configs.model.build(), workers)
    rate = build_rate(configs, optimizer, 10, workers)
    found = []
    for step in range(60):
        rate.before_step(step)
        found.append(rate.current)
    return found


@pytest.mark.parametrize(
    ('scheduler', 'options'),
    [
        (schedules.StepLR, {'step_size': 2}),
        (schedules.MultiStepLR, {'milestones': [1, 3]}),
        (schedules.ConstantLR, {'total_iters': 3}),
        (schedules.LinearLR, {'total_iters': 4}),
        (schedules.PolynomialLR, {'total_iters': 5, 'power': 1}),
        (schedules.CosineAnnealingLR, {'T_max': 5, 'eta_min': 0.01}),
        (schedules.CosineAnnealingWarmRestarts, {'T_0': 2, 'T_mult': 2, 'eta_min': 0.01}),
        (
            schedules.CyclicLR,
            {'base_lr': 0.01, 'max_lr': 0.1, 'step_size_up': 2, 'step_size_down': 4},
        ),
        (schedules.OneCycleLR, {'max_lr': 0.1, 'total_steps': 6}),
    ],
)
def test_schedulers_count_epochs_and_have_rates_of_one_worker(scheduler, options):
    options = {**options, **({'cycle_momentum': False} if 'max_lr' in options else {})}
    by_epoch = rates_of(scheduler, True, 1, options)
    assert len(set(by_epoch)) > 1
    assert rates_of(scheduler, True, 4, options) == pytest.approx([4 * each for each in by_epoch])
    by_step = rates_of(scheduler, False, 1, options)
    assert rates_of(scheduler, False, 4, options) == pytest.approx([4 * each for each in by_step])
    if scheduler is schedules.OneCycleLR:  # its last call ends the cycle, not the one after it
        assert by_step[-1] == pytest.approx(by_epoch[-1]) and by_step[-1] == min(by_step)
    else:
        assert by_step[::10] == pytest.approx(by_epoch[::10])


def test_parts_of_epochs_are_counted_in_steps():
    options = {'milestones': [1.5, 3.26], 'gamma': 0.5}
    found = rates_of(schedules.MultiStepLR, False, 1, options)
    assert found == [found[0]] * 15 + [found[0] / 2] * 18 + [found[0] / 4] * 27


@pytest.mark.parametrize(
    ('scheduler', 'options', 'per_epoch'),
    [
        (schedules.StepLR, {'step_size': 0}, True),  # divided by zero after the first epoch
        (schedules.StepLR, {'step_size': 2.5}, True),  # at epochs 5, 10, …
        (schedules.StepLR, {'step_size': 0.01}, False),
        (schedules.MultiStepLR, {'milestones': [1.5, 3]}, True),  # 1.5 never came
        (schedules.MultiStepLR, {'milestones': [-10, 20]}, True),
        (schedules.MultiStepLR, {'milestones': ['1']}, False),
        (schedules.CosineAnnealingLR, {'T_max': 0}, True),
        (schedules.CosineAnnealingLR, {'T_max': 0.01}, False),
        (schedules.ConstantLR, {'total_iters': 0}, True),  # stayed at its first rate
        (schedules.LinearLR, {'total_iters': 2.5}, True),
        (schedules.CyclicLR, {'base_lr': 0.1, 'max_lr': 1.0, 'step_size_up': 0}, True),
    ],
)
def test_epochs_that_a_scheduler_cannot_count_are_refused(scheduler, options, per_epoch):
    name = list(options)[-1]
    value = re.escape(repr(options[name]))
    with pytest.raises(ConfigError, match=f'^configs.train.scheduler.{name} = {value}: it is in'):
        rates_of(scheduler, per_epoch, 1, options)


def test_a_scheduler_without_a_setting_that_it_needs_is_named():
    with pytest.raises(ConfigError, match=r'^configs\.train\.scheduler: .*step_size'):
        rates_of(schedules.StepLR, True, 1, {})


def test_a_cosine_of_parts_of_epochs_is_kept():
    found = rates_of(schedules.CosineAnnealingLR, True, 1, {'T_max': 2.5})
    assert found[20] == pytest.approx(found[0] * (1 + math.cos(math.pi * 2 / 2.5)) / 2)


def test_a_scheduler_that_follows_a_metric_is_refused():
    with pytest.raises(ConfigError, match='ReduceLROnPlateau follows a metric'):
        rates_of(schedules.ReduceLROnPlateau, True, 1, {})


@pytest.mark.parametrize('seed', [2**70, -(2**64)])
def test_a_seed_that_torch_cannot_take_is_named(seed):
    with pytest.raises(ConfigError, match=rf'^configs\.seed = {seed}: choose from '):
        loaded(*DENSE, overrides=['--configs.seed', str(seed)])


LONG = 0.9999


@pytest.mark.parametrize(
    ('files', 'betas'),
    [
        ('dense/sgd optim/adamw', (0.9, 0.95)),
        ('dense/sgd optim/adam', (0.9, 0.999)),
        ('dense/sgd optim/muon', (0.9, 0.95)),
        ('dgc/wm5 optim/muon', (0.9, LONG)),
        ('dgc/wm5 optim/adamw', (0.9, LONG)),
        ('gtopk/wm4 optim/adam', (0.9, LONG)),
        ('spardl/gres optim/adamw', (0.9, LONG)),
        ('oktopk/periodic optim/adamw', (0.9, LONG)),
        ('omgs/merged optim/adamw', (0.9, LONG)),
        ('dgc/wm5 optim/adamw optim/first_moment', (0.0, LONG)),
        ('dgc/wm5 optim/adamw optim/movement', (0.9, 0.95)),  # of gradients that are not sparse
        ('randomk/residual optim/adamw', (0.9, LONG)),
        ('powersgd/rank4 optim/adamw', (0.9, 0.95)),
        ('qsgd/bits4 optim/adamw', (0.9, 0.95)),
        ('diloco/diloco optim/adamw', (0.9, 0.95)),
    ],
)
def test_the_second_moment_of_adam_follows_what_is_sparsified(files, betas, caplog):
    """No combination is refused or warned of, by the config files or by the library."""
    configs = loaded('configs/digits/cnn.py', *(f'configs/{each}.py' for each in files.split()))
    assert not caplog.records
    assert configs.train.optimizer.betas == betas
    if 'muon' in files and not hasattr(torch.optim, 'Muon'):
        return
    optimizer = build_optimizer(configs, configs.model.build(), workers=4)
    if 'diloco' in files or 'movement' in files:
        return
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        composition = build_composition(configs)
        check_momentum(optimizer, composition)
        check_second_moment(optimizer, composition)


def test_the_first_moment_is_that_of_a_model_s_own_file():
    files = 'digits/cnn', 'dgc/wm5', 'text/gpt_1m', 'optim/first_moment'
    configs = loaded(*(f'configs/{each}.py' for each in files))
    assert configs.train.optimizer.betas == (0.0, 0.99)
    assert configs.train.compression.memory.beta1 == 0.9


def test_going_on_with_other_decay_rates_is_said(tmp_path):
    files = [*DENSE, 'configs/optim/adamw.py']
    words = ['--name', 'x', '--configs.train.num_steps']
    train(tmp_path, *words, '1', files=files)
    same = train(tmp_path, *words, '2', '--resume', files=files)
    assert 'betas' not in same.done.output
    other = ['--configs.train.optimizer.betas', '(0.9, 0.99)']
    told = train(tmp_path, *words, '3', '--resume', *other, files=files).done.output
    assert "give --configs.train.optimizer.betas '(0.9, 0.95)'" in told
    assert told.count('betas is (0.9, 0.99), and') == 1


@pytest.mark.parametrize(
    ('ratio', 'beta2'),
    [(1.0, 0.95), (0.5, LONG), (1000, LONG), (1 / 2**14, 1 - 1 / 2**14), (2**14, 1 - 1 / 2**14)],
)
def test_the_second_moment_of_adam_follows_the_density(ratio, beta2):
    files = 'configs/digits/cnn.py', 'configs/dgc/wm5.py', 'configs/optim/adamw.py'
    configs = loaded(*files)
    configs.train.compression.compress_ratio = ratio
    assert configs.train.optimizer.betas == (0.9, beta2)


@pytest.mark.parametrize(
    ('name', 'published'),
    [
        ('steps', lambda epoch: 0.1 ** sum(epoch >= each for each in (81, 122, 155))),
        ('an4', lambda epoch: 1.01**-epoch),
        ('ptb', lambda epoch: 0.97**epoch),
    ],
)
def test_rates_are_those_of_the_published_trainers(name, published):
    configs = loaded('configs/digits/cnn.py', f'configs/rate/{name}.py')
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rate = build_rate(configs, optimizer, 2, workers=4)
    warmup = configs.train.warmup_lr_epochs
    found = []
    for step in range(2 * 160):
        rate.before_step(step)
        optimizer.step()
        found.append(rate.current)
    assert found[2 * warmup :: 2] == pytest.approx([published(e) for e in range(warmup, 160)])
    linear = [(1 + 3 * step / (2 * warmup)) / 4 for step in range(2 * warmup)]
    assert found[: 2 * warmup] == pytest.approx(linear)


def test_labels_are_smoothed():
    configs = loaded(*DENSE, overrides=['--configs.train.criterion.label_smoothing', '0.1'])
    criterion, scores = configs.train.criterion.build(), torch.tensor([[4.0, 1.0]])
    log = scores.log_softmax(1)[0]
    assert float(criterion(scores, torch.tensor([0]))) == pytest.approx(
        -float(0.95 * log[0] + 0.05 * log[1])
    )
