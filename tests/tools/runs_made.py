"""Run folders as train.py leaves them, with numbers that the tests know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SETTINGS = {
    'configs.seed': '42',
    'configs.model': 'models.digits.digits_cnn',
    'configs.dataset': 'datasets.digits.Digits',
    'configs.train.num_epochs': '3',
    'configs.train.metric': "'acc/test_top1'",
}
DENSE = 'dgc.algorithms.dense.dense'
DGC = 'dgc.algorithms.deep_gradient_compression.deep_gradient_compression'


def line(epoch: int, accuracy: float, sent: int, **more: Any) -> dict[str, Any]:
    """The numbers of an epoch of 10 steps in 2 s, of which the loop waits for 0.5 s."""
    return {
        'epoch': epoch,
        'samples': 320 * (epoch + 1),
        'steps': 10,
        'seconds/train': 2.0,
        'seconds/compute': 1.5,
        'seconds/compress': 0.2,
        'seconds/communicate': 0.6,
        'seconds/wait': 0.5,
        'seconds/save': 0.25,
        'bytes/sent': sent,
        'bytes/received': sent,
        'bytes/dense': 1000,
        'ratio': sent / 1000,
        'loss/train': 1 / (epoch + 1),
        'acc/test_top1': accuracy,
        'ranks': {'bytes/sent': [sent, sent + 1], 'seconds/wait': [0.5, 0.25]},
        **more,
    }


def make(
    folder: Path,
    compression: str = DENSE,
    accuracies: tuple[float, ...] = (50.0, 70.0, 90.0),
    sent: int = 1000,
    **settings: str,
) -> Path:
    """A run of two workers."""
    folder.mkdir(parents=True)
    every = {**SETTINGS, 'configs.train.compression': compression, **settings}
    (folder / 'config.txt').write_text(''.join(f'{k} = {v}\n' for k, v in every.items()))
    (folder / 'environment.txt').write_text('engine: torch\nworkers: 2\n')
    facts = {
        'workers': 2,
        'epochs': 3,
        'metric': 'acc/test_top1',
        'samples': {'train': 320, 'test': 100},
        'predicted': {'bytes_per_exchange': sent / 10, 'steps_per_exchange': 1},
    }
    (folder / 'run.json').write_text(json.dumps(facts))
    lines = [line(epoch, accuracy, sent) for epoch, accuracy in enumerate(accuracies)]
    write_lines(folder, lines)
    return folder


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """metrics.jsonl."""
    (folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(each)}\n' for each in lines))


def make_server(folder: Path) -> Path:
    """A run of a parameter server: worker 0 makes twice as many updates as worker 1."""
    make(folder, 'dgc.algorithms.dgs.dgs')
    (folder / 'environment.txt').write_text('engine: parameter server\nworkers: 2\n')
    rows = [f'{n + 1},{n / 10},{n % 3 % 2},{n % 2},100,50,7' for n in range(30)]
    header = 'update,seconds,place,staleness,received,sent,elements'
    (folder / 'updates.csv').write_text('\n'.join([header, *rows, '']))
    lines = [
        {
            'epoch': epoch,
            'updates': 10 * (epoch + 1),
            'seconds': 1.0 + epoch,
            'bytes/received': 1000,
            'bytes/sent': 500,
            'bytes/dense': 40000,
            'ratio': 0.05,
            'acc/test_top1': 60.0 + 10 * epoch,
            'staleness/mean': 0.5,
            'staleness/max': 1,
        }
        for epoch in range(3)
    ]
    write_lines(folder, lines)
    return folder
