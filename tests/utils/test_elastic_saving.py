"""One elastic worker with train.py: its checkpoints, signals, and where it begins."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from elastic_lighthouse import Lighthouse

import train
from utils import sealed
from utils.cli import parse_arguments
from utils.training.elastic_saving import ElasticSaver

pytest.importorskip('torchft', reason='torchft is not installed (there is no wheel for all)')

STACK = ['configs/digits/cnn.py', 'configs/dgc/wm5.py', 'configs/elastic/torchft.py']


class Runs:
    """Runs of one worker in this process, in a folder."""

    def __init__(self, folder: Path, port: int, monkeypatch) -> None:
        self._folder, self._port, self._monkeypatch = folder, port, monkeypatch
        self.worker = folder / 'run' / 'w0'
        self.checkpoints = self.worker / 'checkpoints'

    def run(self, *words: str, epochs: int = 2, stop: int | None = None) -> int:
        """Train; returns the exit code.

        Args:
            words: More of the command line.
            epochs: That are trained in all.
            stop: A step after which the process gets SIGTERM.
        """
        between = ElasticSaver.between_steps

        def stopped(saver, is_applied):
            if saver._members.committed == stop:
                signal.raise_signal(signal.SIGTERM)
            between(saver, is_applied)

        self._monkeypatch.setattr(ElasticSaver, 'between_steps', stopped)
        settings = [f'--configs.elastic.lighthouse=127.0.0.1:{self._port}']
        settings += ['--configs.elastic.worker=w0', f'--configs.train.num_epochs={epochs}']
        settings += ['--configs.train.batch_size=64']  # 22 steps an epoch, and its averaging
        given = ['--configs', *STACK, '--runs', str(self._folder), '--name', 'run', *settings]
        try:
            return train.main(*parse_arguments([*given, '--devices', 'cpu', *words]))
        finally:
            self._monkeypatch.setattr(ElasticSaver, 'between_steps', between)

    def lines(self) -> list[dict[str, float]]:
        lines = (self.worker / 'metrics.jsonl').read_text().splitlines()
        return [json.loads(line) for line in lines]

    def epochs(self) -> list[int]:
        return [line['epoch'] for line in self.lines()]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    lighthouse = Lighthouse()
    threads = torch.get_num_threads()
    yield Runs(tmp_path, lighthouse.port, monkeypatch)
    torch.set_num_threads(threads)
    lighthouse.stop()


def test_a_worker_that_gets_a_signal_saves_and_goes_on_from_there(runs, capsys):
    assert runs.run('--resume', 'auto', stop=30) == 143
    assert runs.epochs() == [0]
    (path,) = runs.checkpoints.glob('e0001.s*.pth')
    assert 'SIGTERM: stopped after 7 batches of epoch 1, which is saved' in capsys.readouterr().err
    saved = sealed.read(path)
    assert saved['samples'] == 7 * 64
    assert saved['optimizer']['elastic']['committed'] == 30
    assert runs.run('--resume', 'auto') == 0
    out = capsys.readouterr().out
    assert f'continues from {path.name[: -len(".r0of1.pth")]} in {runs.worker}, with its own' in out
    assert runs.epochs() == [0, 1]
    assert [line['samples'] for line in runs.lines()] == [1437, 2 * 1437]
    last = sealed.read(runs.checkpoints / 'e0001.r0of1.pth')
    assert last['optimizer']['elastic']['committed'] == 46  # no step was left out or repeated
    assert runs.run('--resume', 'auto') == 0
    assert 'is complete: there is nothing left to train' in capsys.readouterr().out


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(runs, capsys, caplog):
    runs.run('--resume', 'auto', '--configs.checkpoint.every_steps', '6', stop=14)
    *_, before, last = sorted(runs.checkpoints.glob('e0000.s*.pth'))
    assert [int(path.name[7:13]) for path in (before, last)] == [12, 14]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert runs.run('--resume', 'auto', epochs=1) == 0
    assert f'{last.name} is damaged' in caplog.text
    assert 'going on from e0000.s000012' in caplog.text
    assert 'continues from e0000.s000012' in capsys.readouterr().out


def test_the_best_of_another_metric_is_not_compared_with(runs, capsys):
    assert runs.run('--configs.train.metric', 'acc/test_top5', epochs=1) == 0
    assert runs.run('--resume', 'auto') == 0
    assert capsys.readouterr().out.count("and was 'acc/test_top5': of the epochs") == 1
    last = sealed.read(runs.checkpoints / 'e0001.r0of1.pth')
    measured = [line['acc/test_top1'] for line in runs.lines()]
    assert (last['best'], last['best_metric']) == (max(measured), 'acc/test_top1')


def test_without_resume_an_older_run_is_renamed(runs, capsys):
    assert runs.run(epochs=1) == 0
    assert runs.run(epochs=1) == 0
    assert 'was renamed to' in capsys.readouterr().out
    moved = runs.worker.with_name('w0~1')
    assert [*moved.glob('checkpoints/e0000.*')]
    assert runs.epochs() == [0]


def test_resume_without_a_checkpoint_of_any_worker_is_refused(runs, capsys, tmp_path):
    assert runs.run('--resume', str(tmp_path / 'other')) == 2
    assert 'no worker has a checkpoint in' in capsys.readouterr().err


def test_a_model_is_evaluated_without_the_other_workers(runs, capsys):
    assert runs.run(epochs=1) == 0
    measured = json.loads((runs.worker / 'metrics.jsonl').read_text())['acc/test_top1']
    words = ['--configs', *STACK[:2], '--devices', 'cpu', '--evaluate', '--resume']
    assert train.main(*parse_arguments([*words, str(runs.worker)])) == 0
    assert f'[acc/test_top1] = {measured:.2f}' in capsys.readouterr().out
