"""A run whose steps are traced, whose selections are measured and whose checkpoints all stay."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from launching import SIMULATED, Done, Run, assert_same, here

STACK = ['--configs', 'configs/digits/cnn.py', 'configs/dgc/wm0.py', '--devices', 'cpu']
SHORT = [
    *('--configs.train.batch_size', '180', '--configs.train.num_epochs', '5'),  # of 3 steps each
    *('--configs.train.warmup_lr_epochs', '0', '--name', 'x'),
]
MEASURED = [
    *('--configs.log.trace_steps', '(4, 5)', '--configs.log.selection_steps', '4'),
    *('--configs.checkpoint.keep_epochs', 'None'),
]


def start(runs, *more, code: int = 0) -> Done:
    done = here(*STACK, *SHORT, *more, *SIMULATED, '2', '--runs', runs)
    assert done.code == code, done.output
    return done


@pytest.fixture(scope='module')
def measured(tmp_path_factory) -> Run:
    runs = tmp_path_factory.mktemp('runs')
    done = start(runs, *MEASURED)
    return Run(runs / 'x', done)


def numbers(run: Run) -> list[dict]:
    """The lines of metrics.jsonl without seconds, and without what measuring adds."""
    return [
        {k: v for k, v in line.items() if not k.startswith(('seconds/', 'speed/', 'sel', 'ranks'))}
        for line in run.metrics
    ]


def test_measuring_changes_nothing_of_what_is_trained(measured, tmp_path):
    start(tmp_path)
    plain = Run(tmp_path / 'x', measured.done)
    assert numbers(measured) == numbers(plain)
    assert_same(measured.checkpoint(4, 1)['optimizer'], plain.checkpoint(4, 1)['optimizer'])
    files = {path.name for path in plain.folder.iterdir()}
    assert not files & {'trace.json', 'trace.txt', 'layers.jsonl'}
    assert not any('selection' in name for line in plain.metrics for name in line)


def test_the_trace_has_both_ranks_and_the_steps_asked_for(measured):
    trace = json.loads((measured.folder / 'trace.json').read_text())
    spans = [event for event in trace['traceEvents'] if event['ph'] == 'X']
    assert {span['pid'] for span in spans} == {0, 1}
    applied = [span for span in spans if span['cat'] == 'apply']
    assert len(applied) == 2 * 2
    buckets = json.loads((measured.folder / 'plan.json').read_text())['buckets']
    table = (measured.folder / 'trace.txt').read_text().splitlines()
    assert len(table) == 1 + len(buckets) + 2
    assert 'trace.txt; trace.json is for' in measured.done.output


@pytest.mark.parametrize('more', [[], ['--resume']])
def test_a_trace_ends_with_the_epoch_of_its_first_step(tmp_path, more):
    """It was replaced by one of the steps that are in the next epoch."""
    words = ['--configs.log.trace_steps', '(4, 7)', '--configs.train.num_steps', '8']
    if more:
        start(tmp_path, '--configs.train.num_steps', '4')
    done = start(tmp_path, *words, *more)
    trace = json.loads((tmp_path / 'x/trace.json').read_text())
    applied = [event for event in trace['traceEvents'] if event.get('cat') == 'apply']
    assert len(applied) == 2 * 2  # of steps 4 and 5, on both ranks
    assert done.output.count('trace.txt; trace.json is for') == 1


def test_errors_of_selections_are_curves_lines_and_means(measured):
    lines = [json.loads(line) for line in (measured.folder / 'layers.jsonl').open()]
    assert [line['step'] for line in lines] == [0, 4, 8, 12]
    layer, found = next(iter(lines[1]['layers'].items()))
    points = measured.curve(f'topk_over_randomk/{layer}')
    assert points[5 * 360] == pytest.approx(found['topk'])  # after step 4 of 2 × 180 samples
    weights = [(each['topk'], each['random']) for each in lines[1]['layers'].values()]
    mean = sum(a * b for a, b in weights) / sum(b for _, b in weights)
    assert measured.metrics[1]['selection/topk'] == pytest.approx(mean)
    assert 'selection/topk' in measured.metrics[0] and 0 < mean < 1


def test_lines_of_steps_that_are_made_again_are_replaced(measured, tmp_path):
    """By a run that is continued within an epoch, right before a step that is measured."""
    words = [*MEASURED, '--configs.checkpoint.every_steps', '2']
    start(tmp_path, *words, '--configs.train.num_steps', '10')
    for position in ('e0003', 'e0003.s000001', 'e0002'):  # so that it goes on before step 8
        (tmp_path / f'x/checkpoints/{position}.r0of2.pth').unlink()
    start(tmp_path, *words, '--resume')
    found = []
    for run in (Run(tmp_path / 'x', measured.done), measured):
        lines = (run.folder / 'layers.jsonl').read_text()
        found.append((lines, [line.get('selection/topk') for line in run.metrics]))
    assert found[0] == found[1]


# ---------------------------------------------------------------- several checkpoints


def test_every_epochs_checkpoint_is_evaluated_in_one_table(measured):
    done = start(measured.folder.parent, '--evaluate', 'epochs')
    rows = re.findall(r'^ +(\d+) ([ *])  +(\S+)  +(\S+)$', done.output, re.MULTILINE)
    accuracies = [line['acc/test_top1'] for line in measured.metrics]
    assert [int(epoch) for epoch, *_ in rows] == [0, 1, 2, 3, 4]
    assert [float(top1) for *_, top1, _ in rows] == pytest.approx(accuracies, abs=0.006)
    (best,) = (int(epoch) for epoch, star, *_ in rows if star == '*')
    assert accuracies[best] == max(accuracies)


def test_an_epoch_that_cannot_be_read_is_named_and_left_out(measured, tmp_path):
    shutil.copytree(measured.folder, tmp_path / 'x')
    (tmp_path / 'x/checkpoints/e0001.r1of2.pth').write_bytes(b'damaged')
    done = start(tmp_path, '--evaluate', 'epochs')
    assert 'epoch 1 is left out' in done.output and 'e0001.r1of2.pth' in done.output
    assert re.findall(r'^ +(\d+) [ *]', done.output, re.MULTILINE) == ['0', '2', '3', '4']


@pytest.mark.parametrize(
    ('gap', 'count', 'there'), [(1, 4, 3), (1, 5, 3), (3, 2, 1), (0, 5, 4), (None, 6, 5)]
)
def test_an_average_is_of_epochs_that_follow_each_other(measured, tmp_path, gap, count, there):
    """As where the best epoch, which is kept beside the last ones, is long before them."""
    shutil.copytree(measured.folder, tmp_path / 'x')
    for path in (tmp_path / 'x/checkpoints').glob(f'e{gap:04d}.*' if gap is not None else 'none'):
        path.unlink()
    done = start(tmp_path, '--evaluate', f'average:{count}', code=2)
    assert f'ends with checkpoints of {there} epochs' in done.output
    assert 'keep_epochs' in done.output and not [*(tmp_path / 'x').glob('average*')]
    if there > 1:
        done = start(tmp_path, '--evaluate', f'average:{there}')
        assert f'epochs {5 - there} to 4' in done.output


def test_the_average_of_the_last_epochs_is_their_mean_and_can_be_trained_on(measured):
    done = start(measured.folder.parent, '--evaluate', 'average:3')
    path = measured.folder / 'average.e0002-e0004.pth'
    found = torch.load(path, weights_only=True)['model']
    states = [measured.checkpoint(epoch, 0)['model'] for epoch in (2, 3, 4)]
    for name, parameter in found.items():
        if not name.endswith('num_batches_tracked') and 'running' not in name:
            mean = sum(state[name].double() for state in states) / 3
            assert torch.equal(parameter, mean.float()), name
    assert 'epochs 2 to 4' in done.output
    value = float(re.search(r'\[acc/test_top1\] = (\S+)', done.output)[1])
    used = ['--configs.pretrained.file', path, '--configs.train.optimizer.lr', '0']
    again = here(
        *STACK, *SHORT, *used, '--configs.train.num_steps', '1', '--runs', path.parent / 'again'
    )
    assert again.code == 0, again.output
    assert 0 <= value <= 100
    line = (path.parent / 'again/x/metrics.jsonl').read_text()
    assert abs(json.loads(line)['acc/test_top1'] - value) < 15  # one batch moved the statistics


@pytest.mark.parametrize(
    'words, said',
    [
        (['--evaluate', 'mean'], "'mean': it is best, epochs, or average:N"),
        (['--evaluate', 'average:1'], 'at least 2'),
        (['--configs.log.trace_steps', '(15, 20)'], 'the run has 15 steps'),
        (['--configs.log.trace_steps', '7'], 'the first and the last step'),
        (['--configs.log.trace_steps', '(5, 4)'], 'the first and the last step'),
        (['--configs.log.selection_steps', '0'], 'must be at least 1'),
        (['--configs.checkpoint.keep_epochs', '0'], 'must be at least 1'),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, words, said):
    done = start(tmp_path, *words, code=2)
    assert said in done.output


def test_dense_training_has_no_selection_to_measure(tmp_path):
    stack = ['--configs', 'configs/digits/cnn.py', 'configs/dense/sgd.py', '--devices', 'cpu']
    done = here(*stack, *SHORT, '--configs.log.selection_steps', '4', '--runs', tmp_path)
    assert done.code == 2 and not any(tmp_path.iterdir())
    assert 'has no effect, since every gradient is sent uncompressed' in done.output
