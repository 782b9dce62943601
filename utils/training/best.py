"""The best epoch before a checkpoint, also where the metric is another one than it was."""

from __future__ import annotations

import json
from typing import NamedTuple

import torch

from dgc import Engine
from dgc.handshake import gather_text
from utils.agree import agreed
from utils.build import ranking
from utils.checkpoint import Position
from utils.config import Config
from utils.lines import metrics_lines
from utils.progress import say
from utils.search import Saved


class Best(NamedTuple):
    """The best epoch so far.

    Attributes:
        value: Its metric; None where there is none.
        epoch: Counted from 0; None where it is not known.
    """

    value: float | None = None
    epoch: int | None = None


def best_before(saved: Saved | None, configs: Config, engine: Engine, device: torch.device) -> Best:
    """The best epoch before the checkpoint that training continues from. A collective.

    A checkpoint names the best epoch by the metric of its run. Where ``configs.train.metric`` is
    another one, whose values cannot be compared with that one's, the best is looked for among the
    epochs that are recorded, and a line says so.
    """
    metric = configs.train.metric
    if saved is None:
        return Best()
    before = saved.state.get('best_metric', metric)  # an earlier version saved no name
    if before == metric:
        return Best(saved.best, saved.best_epoch)
    text = ''
    with agreed(engine, device):
        if engine.rank == 0:  # on whose disk metrics.jsonl is
            text = json.dumps(recorded(saved, configs))
    best = Best(*json.loads(gather_text(engine, text, device, limit=256)[0]))
    found = 'there is no best epoch yet' if best.epoch is None else f'the best is {best.epoch}'
    say(
        engine,
        f'configs.train.metric = {metric!r}, and was {before!r}: of the epochs whose checkpoints '
        f'are kept, {found}',
    )
    return best


def recorded(saved: Saved, configs: Config) -> Best:
    """The best of the epochs before ``saved`` that have a line in metrics.jsonl and a checkpoint:
    best.txt can name no other one."""
    which, metric, best = ranking(configs), configs.train.metric, Best()
    kept = {position for position, _ in saved.checkpoints.saved()}
    for _, numbers in metrics_lines(saved.checkpoints.folder.parent / 'metrics.jsonl'):
        epoch = numbers['epoch']
        is_earlier = epoch < saved.position.epochs and Position(epoch + 1) in kept
        if is_earlier and metric in numbers and which.improves(numbers[metric], best.value):
            best = Best(numbers[metric], epoch)
    return best
