"""Going on from a checkpoint: to the bit, with other workers, after a cut save, in evaluation."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from launching import (
    DIGITS,
    ROOT,
    SIMULATED,
    Done,
    Run,
    assert_same,
    here,
    only_run,
)

from utils import sealed
from utils.checkpoint import Checkpoints, Position
from utils.cli import DECLARATIONS
from utils.config import load
from utils.search import Saved
from utils.training.best import recorded

BATCH = ['--configs.train.batch_size', '64']  # few steps, so that the tests are quick


def train(runs: Path, epochs: int, *more: str | Path, size: int = 2, code: int = 0) -> Run:
    """Train under ``size`` simulated workers; the run whose folder is printed, or is there."""
    words = [*DIGITS, *BATCH, '--configs.train.num_epochs', str(epochs), '--runs', runs]
    done = here(*words, *SIMULATED, str(size), *more)
    assert done.code == code, done.output
    printed = [Path(line) for line in done.lines if line.startswith(f'{runs}/')]
    printed = [path for path in printed if path.is_dir()]
    return Run((printed or sorted(runs.glob('*')) or [runs])[0], done)


@pytest.fixture(scope='module')
def straight(tmp_path_factory) -> Run:
    """Four epochs of two workers, unbroken."""
    return train(tmp_path_factory.mktemp('straight'), 4)


@pytest.fixture(scope='module')
def half(tmp_path_factory) -> Run:
    """Two epochs of two workers. Nothing changes it."""
    return train(tmp_path_factory.mktemp('half'), 2)


@pytest.fixture
def copied(half, tmp_path) -> Run:
    """A copy of ``half``, alone under its runs folder."""
    target = tmp_path / 'runs' / half.folder.name
    shutil.copytree(half.folder, target)
    return Run(target, half.done)


@pytest.fixture(scope='module')
def resumed(half, tmp_path_factory) -> Run:
    """``half``, gone on with to four epochs."""
    runs = tmp_path_factory.mktemp('resumed')
    shutil.copytree(half.folder, runs / half.folder.name)
    return train(runs, 4, '--resume')


@pytest.fixture(scope='module')
def four(tmp_path_factory) -> Run:
    """One epoch of four workers."""
    return train(tmp_path_factory.mktemp('four'), 1, size=4)


@pytest.mark.parametrize('rank', [0, 1])
def test_four_epochs_are_two_and_two_more_to_the_bit(straight, resumed, rank):
    """Although the schedule of two epochs is shorter: settings are those of now."""
    assert_same(straight.checkpoint(3, rank), resumed.checkpoint(3, rank))


def test_metrics_and_curves_go_on_where_they_stopped(straight, resumed, half):
    assert [line['epoch'] for line in resumed.metrics] == [0, 1, 2, 3]
    assert resumed.results == straight.results
    assert resumed.results[:2] == half.results
    for tag in ('loss/train', 'acc/test_top1', 'lr', 'ratio'):
        assert resumed.curve(tag) == straight.curve(tag)
    assert not resumed.folder.with_name(f'{resumed.folder.name}~1').exists()


def test_the_last_three_epochs_and_the_best_are_kept(straight):
    epochs = {int(name[1:5]) for name in straight.checkpoints if name.endswith('.pth')}
    best = int((straight.folder / 'checkpoints/best.txt').read_text())
    accuracy = [line['acc/test_top1'] for line in straight.metrics]
    assert epochs == {1, 2, 3, best}
    assert accuracy[best] == max(accuracy)


@pytest.mark.parametrize('cut', ['partial', 'missing', 'both missing'])
def test_a_cut_save_falls_back_to_the_epoch_before(copied, straight, cut):
    last = [copied.folder / f'checkpoints/e0001.r{rank}of2.pth' for rank in range(2)]
    if cut == 'partial':
        raw = last[1].read_bytes()
        last[1].with_suffix('.partial').write_bytes(raw[: len(raw) // 2])
    last[1].unlink()
    if cut == 'both missing':
        last[0].unlink()
    run = train(copied.folder.parent, 2, '--resume')
    assert [line['epoch'] for line in run.metrics] == [0, 1]
    assert run.results == straight.results[:2]
    assert list(run.curve('loss/train')) == list(straight.curve('loss/train'))[:22]
    assert_same(run.checkpoint(1, 1)['model'], straight.checkpoint(1, 1)['model'])
    if cut == 'partial':  # the next save wrote over it
        assert not last[1].with_suffix('.partial').exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(copied, straight):
    path = copied.folder / 'checkpoints/e0001.r1of2.pth'
    path.write_bytes(path.read_bytes()[:1000])
    run = train(copied.folder.parent, 2, '--resume')
    assert f'rank 1: {path} is damaged: going on from e0000' in run.done.lines
    assert run.results == straight.results[:2]
    assert_same(run.checkpoint(1, 1)['model'], straight.checkpoint(1, 1)['model'])


def test_checkpoints_of_earlier_versions_are_read(copied, straight):
    """They have no manifest, no seal, and no plan."""
    for path in (copied.folder / 'checkpoints').glob('*.pth'):
        state = torch.load(path, weights_only=True)
        torch.save({k: state[k] for k in ('model', 'optimizer', 'epoch', 'best')}, path)
    last, before = (copied.folder / f'checkpoints/e000{n}.r0of2.pth' for n in (1, 0))
    kept = last.read_bytes()
    last.write_bytes(before.read_bytes())
    run = train(copied.folder.parent, 1, '--resume')
    reason = f'{last} holds the state of e0000, and not what its name says: going on from e0000'
    assert reason in run.done.lines
    last.write_bytes(kept)
    run = train(copied.folder.parent, 4, '--resume')
    assert run.results == straight.results
    assert_same(run.checkpoint(3, 1), straight.checkpoint(3, 1))


def test_another_model_is_refused_in_a_line(copied, tmp_path):
    file = tmp_path / 'wide.py'
    file.write_text(
        'from models.digits import DigitsCNN\n'
        'from utils.config import Config, configs\n'
        'configs.model = Config(DigitsCNN, channels=16)\n'
    )
    words = ['--configs', *DIGITS[1:-2], file, *DIGITS[-2:], *BATCH, '--runs', tmp_path / 'other']
    done = here(*words, *SIMULATED, '2', '--resume', copied.folder)
    assert done.code == 2
    (line,) = done.complaints
    assert line.startswith(f'train.py: {copied.folder} does not fit this configuration: ')
    assert 'conv1.weight' in line


def test_what_was_kept_back_is_not_lost_by_training_densely(copied, tmp_path):
    words = [
        '--configs',
        'configs/digits/cnn.py',
        *DIGITS[-2:],
        *BATCH,
        '--runs',
        tmp_path / 'other',
    ]
    done = here(*words, *SIMULATED, '2', '--resume', copied.folder)
    assert done.code == 2
    (line,) = done.complaints
    assert 'would be lost' in line


def test_nothing_left_to_train_is_no_error(copied):
    before = copied.metrics
    run = train(copied.folder.parent, 2, '--resume')
    assert run.metrics == before
    assert '2 at the end' not in run.done.output


def test_settings_of_now_hold_after_resuming(copied):
    words = [
        '--configs.train.optimizer.weight_decay',
        '0.5',
        '--configs.train.optimizer.lr',
        '0.01',
    ]
    run = train(copied.folder.parent, 3, '--resume', *words)
    (group,) = run.checkpoint(2, 0)['optimizer']['param_groups']
    assert group['weight_decay'] == 0.5
    assert group['lr'] == pytest.approx(2 * 0.01)


# ---------------------------------------------------------------- the best epoch

TOP1, TOP5 = 'acc/test_top1', 'acc/test_top5'


def saved_with(run: Run, **values: object) -> None:
    """Change what the last checkpoints of a run say about its best epoch."""
    for path in (run.folder / 'checkpoints').glob('e0001.*'):
        state = sealed.read(path)
        manifest = state.pop('manifest')
        state = {name: value for name, value in state.items() if name != 'best_metric'}
        sealed.write({**state, **values}, manifest, path)


@pytest.mark.parametrize('before', [TOP5, None])
@pytest.mark.parametrize('is_recorded', [True, False])
def test_the_best_of_another_metric_is_not_compared_with(copied, before, is_recorded):
    """No epoch of this metric reaches what another one had."""
    saved_with(copied, best=1000.0, best_epoch=0, best_metric=before)
    (copied.folder / 'checkpoints/best.txt').write_text('0\n')
    earlier = [line[TOP1] for line in copied.metrics] if is_recorded else []
    if not is_recorded:
        (copied.folder / 'metrics.jsonl').unlink()
    run = train(copied.folder.parent, 3, '--resume')
    (said,) = (line for line in run.done.lines if f"configs.train.metric = '{TOP1}', and" in line)
    assert f'and was {before!r}: ' in said
    assert ('the best is 1' if is_recorded else 'there is no best epoch yet') in said
    values = [*earlier, run.metrics[-1][TOP1]]
    best = values.index(max(values)) if is_recorded else 2
    assert (run.folder / 'checkpoints/best.txt').read_text() == f'{best}\n'
    state = run.checkpoint(2, 0)
    assert (state['best'], state['best_epoch'], state['best_metric']) == (max(values), best, TOP1)


def test_without_a_metric_the_last_epoch_is_the_best_also_after_one_with(copied):
    saved_with(copied, best=1000.0, best_epoch=0, best_metric=TOP1)
    run = train(copied.folder.parent, 3, '--resume', '--configs.train.metric', 'None')
    assert f"configs.train.metric = None, and was '{TOP1}'" in run.done.output
    assert (run.folder / 'checkpoints/best.txt').read_text() == '2\n'


@pytest.mark.parametrize('values', [{'best_metric': TOP1}, {}], ids=['same', 'earlier version'])
def test_the_best_of_the_same_metric_is_gone_on_with(copied, values):
    saved_with(copied, best=1000.0, best_epoch=0, **values)
    run = train(copied.folder.parent, 3, '--resume')
    assert 'and was' not in run.done.output
    assert (run.folder / 'checkpoints/best.txt').read_text() == '0\n'


def test_the_best_is_one_of_the_epochs_before_that_are_kept(tmp_path):
    """Which of them is better, the meter says."""
    configs = load([ROOT / 'configs/text/gpt_1m.py'], root=DECLARATIONS)
    checkpoints = Checkpoints(tmp_path / 'checkpoints')
    for epoch in (1, 2, 3, 4):
        checkpoints.save(Position(epoch + 1), {})
    losses = [0.1, 5.0, math.nan, 3.0, 4.0, 0.2]  # of which those of epochs 0 and 5 have no file
    lines = [{'epoch': epoch, 'loss/test': loss} for epoch, loss in enumerate(losses)]
    lines += [{'epoch': 4, 'bits_per_byte/test': 0.0}]
    (tmp_path / 'metrics.jsonl').write_text(''.join(f'{json.dumps(each)}\n' for each in lines))
    configs.train.metric = 'loss/test'
    for position, best in (
        (Position(5), (3.0, 3)),
        (Position(3), (5.0, 1)),
        (Position(1), (None,) * 2),
    ):
        assert recorded(Saved(tmp_path, position, 1, {}), configs) == best


# ---------------------------------------------------------------- other numbers of workers


def test_two_workers_go_on_from_four(four, tmp_path):
    run = train(tmp_path, 2, '--resume', four.folder, size=2)
    assert [line['epoch'] for line in run.metrics] == [1]
    assert run.checkpoints[-2:] == ['e0001.r0of2.pth', 'e0001.r1of2.pth']
    steps = 1437 // 2 // 64
    state = run.checkpoint(1, 0)
    assert state['optimizer']['steps'] == 2 * steps  # the second epoch of the ratio's warm-up
    assert run.metrics[0]['ratio'] == pytest.approx(0.1, rel=0.3)
    assert run.metrics[0]['lr'] < 2 * 0.025  # the rate of two workers, in the warm-up
    assert run.metrics[0]['loss/train'] < four.metrics[0]['loss/train']
    assert list(run.curve('loss/train')) == [128 * (steps + step + 1) for step in range(steps)]


@pytest.mark.parametrize('size', [1, 3, 5])
def test_any_number_of_workers_takes_all_that_was_kept(four, tmp_path, size):
    """Summed over the workers and divided by their number, it is the same mean."""
    from dgc.saved_state import share_of

    folder = four.folder / 'checkpoints'
    saved = [four.checkpoint(0, rank, 4)['optimizer'] for rank in range(4)]
    before = [saved[rank]['ranks'][f'rank {rank} of 4']['memory'] for rank in range(4)]
    after = []
    for rank in range(size):
        loaded = Checkpoints(folder, rank, size).load(Position(1), 4)['optimizer']
        after.append(share_of(loaded, rank, size)['memory'])
    for name, buffers in before[0].items():
        for buffer in buffers:
            ours = sum(memory[name][buffer] for memory in after if name in memory) / size
            theirs = sum(memory[name][buffer] for memory in before) / 4
            torch.testing.assert_close(ours, theirs)


def test_four_files_are_needed_by_another_number_of_workers(four, tmp_path):
    folder = tmp_path / 'lacking' / four.folder.name
    shutil.copytree(four.folder, folder)
    (folder / 'checkpoints/e0000.r3of4.pth').unlink()
    run = train(tmp_path / 'runs', 2, '--resume', folder, code=2)
    assert 'no checkpoint' in run.done.complaints[0]


def test_an_older_run_of_the_same_name_does_not_mix_with_one_resumed_elsewhere(copied, four):
    runs, before = copied.folder.parent, copied.metrics
    run = train(runs, 2, '--resume', four.folder)
    assert [line['epoch'] for line in run.metrics] == [1]
    assert Run(runs / f'{run.folder.name}~1').metrics == before


@pytest.mark.parametrize('inside', [False, True])
def test_naming_ones_own_folder_is_resuming(copied, inside):
    named = copied.folder / 'checkpoints' if inside else copied.folder
    run = train(copied.folder.parent, 3, '--resume', named)
    assert [line['epoch'] for line in run.metrics] == [0, 1, 2]
    assert len(list(copied.folder.parent.iterdir())) == 1


def test_a_second_run_of_the_same_name_moves_the_first_aside(copied):
    runs, name = copied.folder.parent, copied.folder.name
    before = copied.metrics
    train(runs, 2)
    assert Run(runs / f'{name}~1').metrics == before
    assert len(Run(runs / name).metrics) == 2
    train(runs, 2)
    assert sorted(path.name for path in runs.iterdir()) == [name, f'{name}~1', f'{name}~2']
    assert Run(runs / f'{name}~1').metrics == before


# ---------------------------------------------------------------- evaluation


def evaluated(done: Done) -> dict[str, float]:
    """[acc/test_top1] = 97.22"""
    assert done.code == 0, done.output
    lines = [line for line in done.lines if line.startswith('[')]
    return {line[1 : line.index(']')]: float(line.split(' = ')[1]) for line in lines}


def best_of(run: Run) -> dict[str, float]:
    best = max(run.metrics, key=lambda line: line['acc/test_top1'])
    return {k: pytest.approx(best[k], abs=0.01) for k in ('acc/test_top1', 'acc/test_top5')}


def test_a_run_evaluates_itself(straight):
    words = [*DIGITS, *BATCH, '--runs', straight.folder.parent, '--evaluate']
    before = straight.checkpoints
    done = here(*words, *SIMULATED, '2')
    assert evaluated(done) == best_of(straight)
    best = max(straight.metrics, key=lambda line: line['acc/test_top1'])['epoch']
    said = f'evaluates {straight.folder}, epoch {best}, the best so far ('
    assert said in done.output and f'/checkpoints/e{best:04d}.r0of2.pth)' in done.output
    assert straight.checkpoints == before
    assert len(list(straight.folder.parent.iterdir())) == 1  # it leaves nothing


@pytest.mark.parametrize('configs', [DIGITS, [*DIGITS[:2], *DIGITS[-2:]]], ids=['dgc', 'dense'])
def test_one_process_evaluates_what_two_saved(straight, tmp_path, configs):
    """Whatever carried the gradients then."""
    done = here(*configs, '--runs', tmp_path, '--evaluate', '--resume', straight.folder)
    assert evaluated(done) == best_of(straight)
    assert not list(tmp_path.iterdir())


def test_three_workers_evaluate_what_two_saved(straight, tmp_path):
    words = [*DIGITS, *BATCH, '--runs', tmp_path, '--evaluate', '--resume', straight.folder]
    assert evaluated(here(*words, *SIMULATED, '3')) == best_of(straight)


def test_the_best_epoch_is_evaluated_not_the_last(copied, tmp_path):
    (copied.folder / 'checkpoints/best.txt').write_text('0\n')
    done = here(*DIGITS, '--runs', tmp_path, '--evaluate', '--resume', copied.folder)
    assert evaluated(done)['acc/test_top1'] == pytest.approx(
        copied.metrics[0]['acc/test_top1'], abs=0.01
    )


def test_rank_0s_file_is_enough_to_evaluate(copied, tmp_path):
    for path in copied.folder.glob('checkpoints/*.r1of2.pth'):
        path.unlink()
    done = here(*DIGITS, '--runs', tmp_path, '--evaluate', '--resume', copied.folder)
    assert evaluated(done) == best_of(copied)


# ---------------------------------------------------------------- a launcher


@pytest.mark.slow
@pytest.mark.xdist_group('torchrun 2')
def test_resuming_under_torchrun_is_an_unbroken_run(worlds, tmp_path):
    """Three epochs at once, and two and one more, all inside one torchrun."""

    def ends(runs: Path, *words: str | Path) -> list[Done]:
        words = (*DIGITS, '--runs', runs, *BATCH, '--configs.train.num_epochs', *words)
        return worlds('torchrun', 2).run('launching:in_world', *words)

    unbroken, resumed = tmp_path / 'unbroken', tmp_path / 'resumed'
    results = [ends(unbroken, '3'), ends(resumed, '2'), ends(resumed, '3', '--resume')]
    assert [[done.code for done in ranks] for ranks in results] == [[0, 0]] * 3
    straight, run = only_run(unbroken, results[0][0]), only_run(resumed, results[2][0])
    assert run.results == straight.results
    for rank in range(2):
        assert_same(run.checkpoint(2, rank), straight.checkpoint(2, rank))


# ---------------------------------------------------------------- batches per step


def test_two_batches_a_step_are_the_rate_and_the_data_of_twice_the_workers(tmp_path):
    words = ['--configs.train.num_batches_per_step', '2', '--configs.train.batch_size', '32']
    run = train(tmp_path, 3, *words)
    (group,) = run.checkpoint(2, 0)['optimizer']['param_groups']
    assert group['lr'] == pytest.approx(0.025 * 2 * 2)
    steps = 1437 // 2 // 64
    assert run.checkpoint(2, 0)['optimizer']['steps'] == 3 * steps
    assert list(run.curve('loss/train')) == [128 * (step + 1) for step in range(3 * steps)]
    assert run.metrics[-1]['loss/train'] < run.metrics[0]['loss/train']


@pytest.mark.parametrize(
    ('more', 'size'),
    [([*SIMULATED, '2'], 2), (['--configs.train.num_batches_per_step=2'], 1)],
    ids=['workers', 'batches'],
)
def test_the_rate_is_times_workers_and_batches_a_step(tmp_path, more, size):
    words = ['num_epochs=1', 'batch_size=32', 'warmup_lr_epochs=0', 'optimizer.lr=0.02']
    dense = ['--configs', 'configs/digits/cnn.py', *DIGITS[-2:], '--runs', tmp_path]
    run = only_run(tmp_path, here(*dense, *(f'--configs.train.{word}' for word in words), *more))
    assert run.metrics[0]['lr'] == pytest.approx(0.04)
    assert run.metrics[0]['ratio'] == 1.0
    assert len(run.curve('loss/train')) == 22


def test_another_number_of_workers_is_told_which_run_there_is(copied, tmp_path):
    done = train(tmp_path / 'runs', 3, '--resume', size=3, code=2).done
    (line,) = done.complaints
    assert line.endswith(f'--resume RUN names a run, such as {copied.folder}')
    assert [each.name for each in (tmp_path / 'runs').iterdir()] == [copied.folder.name]


@pytest.mark.parametrize('size', [2, 3])
def test_where_nothing_is_left_to_train_that_is_all_that_happens(copied, tmp_path, size):
    before = sorted(path.name for path in copied.folder.rglob('*'))
    done = train(tmp_path / 'runs', 2, '--resume', copied.folder, size=size).done
    assert f'{copied.folder} has 2 epochs already: there is nothing left to train' in done.output
    assert sorted(path.name for path in copied.folder.rglob('*')) == before
    assert [each.name for each in (tmp_path / 'runs').iterdir()] == [copied.folder.name]
