"""Texts, trained by train.py: state that is carried, checkpoints within an epoch, evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from launching import SIMULATED, Done, Run, assert_same, here, only_run

TEXT = 'To be, or not to be, that is the question. ' * 60
LSTM = ['configs/text/lstm.py', '--configs.model.width', '16', '--configs.dataset.length', '16']
GPT = ['configs/text/gpt_1m.py', '--configs.model.layers', '1', '--configs.dataset.length', '16']
FEW = ['--configs.train.batch_size', '4', '--configs.train.num_epochs', '1']
EVERY = ['--configs.checkpoint.every_steps', '3']


def train(runs: Path, *words: str | Path, size: int = 2) -> Done:
    path = runs.parent / 'text.txt'
    path.write_text(TEXT)
    settings = ['--configs.dataset.path', path, '--devices', 'cpu', '--runs', runs]
    return here('--configs', *words, *settings, *SIMULATED, str(size))


@pytest.fixture(scope='module', params=['lstm', 'accumulating', 'gpt'])
def stack(request) -> list[str]:
    stacks = {
        'lstm': [*LSTM, *FEW],
        'accumulating': [*LSTM, *FEW, '--configs.train.num_batches_per_step', '2'],
        'gpt': [*GPT, *FEW],
    }
    return [*stacks[request.param], *EVERY]


@pytest.fixture(scope='module')
def straight(stack, tmp_path_factory) -> Run:
    runs = tmp_path_factory.mktemp('straight') / 'runs'
    return only_run(runs, train(runs, *stack))


def test_an_epoch_that_goes_on_within_ends_with_the_same_bits(straight, stack, tmp_path):
    """The hidden state is that of each rank, and so is the order of the data."""
    runs = tmp_path / 'runs'
    folder = shutil.copytree(straight.folder, runs / straight.folder.name)
    for path in (folder / 'checkpoints').glob('e0000.r*'):  # the end of the epoch
        path.unlink()
    (within,) = sorted((folder / 'checkpoints').glob('e0000.s*.r0of2.pth'))[-1:]
    run = only_run(runs, train(runs, *stack, '--resume'))
    assert f'continues from {within.name.removesuffix(".r0of2.pth")}' in run.done.output
    for rank in range(2):
        assert_same(straight.checkpoint(0, rank), run.checkpoint(0, rank))
    assert run.results == straight.results


def test_a_checkpoint_within_an_epoch_has_the_state_of_its_rank(tmp_path):
    runs = tmp_path / 'runs'
    run = only_run(runs, train(runs, *LSTM, *FEW, *EVERY))
    states = [
        torch.load(path, weights_only=True)['meters']['carried']
        for path in sorted(run.folder.glob('checkpoints/e0000.s000015.r*'))
    ]
    (mine,), (theirs,) = states
    assert [tuple(part.shape) for part in mine] == [(2, 4, 16)] * 2
    assert not torch.equal(mine[0], theirs[0])


@pytest.mark.parametrize('words', [LSTM, GPT], ids=['lstm', 'gpt'])
def test_an_evaluation_measures_the_same_at_any_number_of_ranks(tmp_path, words):
    runs = tmp_path / 'runs'
    run = only_run(runs, train(runs, *words, *FEW, size=1))
    values = {}
    for size in (1, 3):
        # Sizes are part of a run's name: another folder, with the checkpoints of one worker.
        folder = runs / run.folder.name.replace('.np1', f'.np{size}')
        if size > 1:
            shutil.copytree(run.folder, folder)
        done = train(runs, *words, *FEW, '--evaluate', size=size)
        assert done.code == 0, done.output
        values[size] = [line for line in done.lines if line.startswith('[')]
    assert values[1] == values[3] and len(values[1]) == 2
    loss = float(values[1][0].split(' = ')[1])
    assert loss == pytest.approx(run.metrics[0]['loss/test'], rel=1e-3)


def test_state_that_would_go_on_to_other_samples_is_refused(tmp_path):
    done = train(tmp_path / 'runs', *LSTM, *FEW, '--configs.dataset.reading', 'windows')
    (line,) = done.complaints
    assert done.code == 2 and "the samples of 'train' do not continue each other" in line


def test_the_best_checkpoint_is_that_with_the_lowest_loss(tmp_path):
    runs = tmp_path / 'runs'
    more = ['--configs.train.num_epochs', '3', '--configs.train.warmup_lr_epochs', '0']
    run = only_run(runs, train(runs, *LSTM, *FEW, *more))
    losses = [line['loss/test'] for line in run.metrics]
    best = int((run.folder / 'checkpoints/best.txt').read_text())
    assert losses[best] == min(losses) < losses[0]
    assert 'bits_per_byte/test' in run.done.output
    assert run.metrics[0]['speed/tokens'] == pytest.approx(16 * run.metrics[0]['speed/samples'])


def test_reviews_and_words_of_tones_are_trained_and_measured(tmp_path):
    """Three ranks share what three do not divide, in training and in evaluation."""
    for split in ('train', 'test'):
        for kind in ('neg', 'pos'):
            folder = tmp_path / 'aclImdb' / split / kind
            folder.mkdir(parents=True)
            for number in range(5):
                (folder / f'{number}_1.txt').write_text(f'{kind} ' * (number + 1))
    root, cache = f'{tmp_path}/aclImdb', f'{tmp_path}/cache'
    stacks = {
        'imdb/lstm': ['--configs.dataset.cache', cache, '--configs.dataset.length', '4'],
        'synthesised/small': [
            '--configs.dataset.num_train',
            '7',
            '--configs.dataset.num_test',
            '5',
        ],
    }
    few = ['--configs.train.batch_size', '2', '--configs.train.num_epochs', '1']
    for name, words in stacks.items():
        runs = tmp_path / name.replace('/', '.')
        stack = ['--configs', f'configs/{name}.py', *words, *few, '--runs', runs]
        done = here(*stack, '--configs.dataset.root', root, '--devices', 'cpu', *SIMULATED, '3')
        (line,) = only_run(runs, done).metrics
        if name == 'imdb/lstm':
            assert line['acc/test_top1'] in {10.0 * right for right in range(11)}
            assert line['speed/tokens'] == pytest.approx(4 * line['speed/samples'])
        else:
            assert 0 < line['error/test_words'] and 'error/test_characters' in line
