"""The same training under every launcher: what it leaves, and that the engine does not matter."""

from __future__ import annotations

import pytest
from launching import BATCH, EPOCHS, LAUNCHERS, Run

STEPS = 11  # an epoch: 1437 samples, 2 workers, 64 in a batch

TWO = {  # launcher: the engine that fits it, and the name that environment.txt gives the launcher
    'horovodrun --gloo': ('horovod', 'horovodrun'),
    'horovodrun --mpi': ('horovod', 'mpirun'),
    'mpirun': ('horovod', 'mpirun'),
    'torchrun': ('torch', 'torchrun'),
    'simulated': ('simulated', 'none'),
}
MARKS = {
    'horovodrun --gloo': [pytest.mark.horovod],
    'horovodrun --mpi': [pytest.mark.horovod, pytest.mark.mpi],
    'mpirun': [pytest.mark.horovod, pytest.mark.mpi],
}
KEYS = {
    *('epoch', 'samples', 'steps', 'lr', 'ratio', 'loss/train', 'acc/test_top1', 'acc/test_top5'),
    *('norm/residual', 'ranks', 'speed/samples'),
    *(
        f'seconds/{phase}'
        for phase in ('train', 'compute', 'compress', 'communicate', 'wait', 'save')
    ),
    *(f'bytes/{what}' for what in ('sent', 'received', 'dense')),
    *('path/messages', 'path/bytes'),
}


def marked(names) -> list:
    return [pytest.param(name, marks=[*MARKS.get(name, []), pytest.mark.slow]) for name in names]


@pytest.fixture(scope='module', params=marked(TWO))
def pair(request, trained) -> tuple[str, Run]:
    """A launcher of two workers, and the run that it left."""
    return request.param, trained(request.param)


@pytest.fixture(scope='module', params=marked(LAUNCHERS))
def any_run(request, trained) -> Run:
    return trained(request.param)


def test_a_run_has_the_published_name_and_nothing_is_wrong(pair):
    _, run = pair
    assert run.folder.name == 'digits.cnn+dgc.wm5,fp16,int32.x@batch_size=64,num_epochs=3.np2'
    assert run.done.complaints == []
    assert not [line for line in run.done.lines if 'Traceback' in line or 'Warning' in line]


def test_one_process_is_a_world_of_its_own(trained):
    run = trained('python')
    assert run.folder.name == 'digits.cnn+dgc.wm5,fp16,int32.x@batch_size=64,num_epochs=3.np1'
    assert run.environment['engine'] == 'local'
    assert all(line['bytes/sent'] == 0 < line['ratio'] for line in run.metrics)


def test_rank_0_alone_tells_what_the_run_costs_and_came_to(any_run):
    lines = any_run.done.lines
    assert lines.count(str(any_run.folder)) == 1
    assert sum('of memory for compression' in line for line in lines) == 1
    for epoch in range(EPOCHS):
        assert sum(line.startswith(f'epoch {epoch}: loss/train') for line in lines) == 1
    assert sum(line.startswith('bytes sent ') for line in lines) == 1


def test_the_environment_says_who_started_it_and_who_carried_the_bytes(pair):
    launcher, run = pair
    engine, name = TWO[launcher]
    assert run.environment['engine'] == engine
    assert run.environment['launcher'] == name
    assert run.environment['workers'] == '2'
    assert run.environment['git commit'] != 'unknown'
    assert run.environment['torch']


def test_the_resolved_configuration_is_saved(any_run):
    lines = (any_run.folder / 'config.txt').read_text().splitlines()
    assert f'configs.train.num_epochs = {EPOCHS}' in lines
    assert 'configs.train.compression.fp16_values = True' in lines
    assert 'configs.train.scheduler.T_max = 1' in lines  # derived: 3 epochs less 2 of warm-up


def test_metrics_have_one_line_an_epoch_with_what_was_measured(any_run):
    assert [line['epoch'] for line in any_run.metrics] == list(range(EPOCHS))
    for line in any_run.metrics:
        assert line.keys() == KEYS
        assert line['seconds/train'] > 0 and line['seconds/compress'] > 0
        assert 0 <= line['acc/test_top1'] <= line['acc/test_top5'] <= 100


def test_metrics_count_samples_and_bytes_of_the_workers(pair):
    _, run = pair
    for line in run.metrics:
        assert line['samples'] == (line['epoch'] + 1) * STEPS * 2 * BATCH
        assert 0 < line['bytes/sent'] == line['bytes/received'] < line['bytes/dense']
    ratios = [line['ratio'] for line in run.metrics]
    assert ratios == sorted(ratios, reverse=True)  # the warm-up
    assert ratios[-1] == pytest.approx(0.001 ** (3 / 6), rel=0.3)


def test_the_loss_has_a_point_for_each_step_and_the_metrics_one_for_each_epoch(pair):
    _, run = pair
    steps = [(step + 1) * 2 * BATCH for step in range(EPOCHS * STEPS)]
    assert list(run.curve('loss/train')) == steps
    assert list(run.curve('acc/test_top1')) == steps[STEPS - 1 :: STEPS]
    for line in run.metrics:
        assert run.curve('acc/test_top1')[line['samples']] == pytest.approx(line['acc/test_top1'])
        assert run.curve('ratio')[line['samples']] == pytest.approx(line['ratio'])
    losses = list(run.curve('loss/train').values())[:STEPS]
    assert run.metrics[0]['loss/train'] == pytest.approx(sum(losses) / STEPS, rel=1e-5)


def test_every_rank_saves_every_epoch(pair):
    _, run = pair
    files = [f'e{epoch:04d}.r{rank}of2.pth' for epoch in range(EPOCHS) for rank in range(2)]
    assert run.checkpoints == ['best.txt', *files]
    for epoch in range(EPOCHS):
        first, second = (run.checkpoint(epoch, rank) for rank in range(2))
        assert first['epoch'] == epoch
        assert all((first['model'][n] == second['model'][n]).all() for n in first['model'])
        kept = [
            state['optimizer']['ranks'][f'rank {rank} of 2']['memory']['hidden.weight']['velocity']
            for rank, state in enumerate((first, second))
        ]
        assert kept[0].any() and kept[1].any() and not (kept[0] == kept[1]).all()


@pytest.mark.parametrize('launcher', marked(name for name in TWO if name != 'simulated'))
def test_training_does_not_depend_on_the_engine(trained, launcher):
    ours, reference = trained(launcher), trained('simulated')
    first, second = (list(run.curve('loss/train').values())[:10] for run in (ours, reference))
    assert first == pytest.approx(second, rel=1e-4)
    for one, other in zip(ours.metrics, reference.metrics, strict=True):
        assert abs(one['acc/test_top1'] - other['acc/test_top1']) <= 1.0
        assert one['bytes/sent'] == pytest.approx(other['bytes/sent'], rel=0.02)


def test_it_learns(any_run):
    assert any_run.metrics[-1]['acc/test_top1'] > 30  # where guessing gives 10
    assert any_run.metrics[-1]['loss/train'] < 0.9 * any_run.metrics[0]['loss/train']
