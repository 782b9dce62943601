"""``--evaluate epochs`` and ``--evaluate average:N``: the checkpoints of several epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import Dataset

from dgc import Engine
from utils.agree import agreed
from utils.averaged import Mean
from utils.build import (
    Evaluated,
    build_evaluation_loaders,
    build_model,
    check_meters,
    check_metric,
    check_streams,
    ranking,
)
from utils.checkpoint import CheckpointError
from utils.cli import AVERAGE, EPOCHS, Stopped
from utils.config import Config
from utils.files import replacing
from utils.progress import digits, say
from utils.search import Saved, Search
from utils.training.experiment import Experiment


def evaluates_several(experiment: Experiment) -> bool:
    """Whether the command line asks for the checkpoints of several epochs."""
    what = experiment.arguments.evaluate
    return bool(what) and (what == EPOCHS or what.startswith(AVERAGE))


def evaluate_several(
    experiment: Experiment, engine: Engine, datasets: dict[str, Dataset], run: Path
) -> None:
    """Evaluate the checkpoint of each epoch, or the average of the last ones. A collective.

    Args:
        experiment: What was trained.
        engine: Carries the sums of the meters.
        datasets: By split.
        run: The run folder.

    Raises:
        CheckpointError: On all ranks, where there are not as many as are asked for.
    """
    configs, what = experiment.configs, experiment.arguments.evaluate
    with agreed(engine, experiment.device):
        parts = evaluated_parts(configs, datasets, engine, experiment.device)
    growth = configs.checkpoint.most_growth
    search = Search(engine, experiment.device, run, True, growth)
    if what == EPOCHS:
        say(engine, of_each_epoch(experiment, parts, search))
        return
    saved = average(parts, search, int(what.removeprefix(AVERAGE)))
    first, last = (each.position.epoch for each in (saved[0], saved[-1]))
    say(engine, f'evaluates the average of {run}, epochs {first} to {last}')
    for name, value in experiment.evaluate(parts, configs).items():
        say(engine, f'[{name}] = {digits(value)}')
    path = search.checkpoints.folder.parent / f'average.e{first:04d}-e{last:04d}.pth'
    with agreed(engine, experiment.device, Stopped):
        if engine.rank == 0:
            with replacing(path) as file:
                torch.save({'model': parts.model.state_dict()}, file)
    say(engine, f'{path}  (a file for --configs.pretrained.file)')


def evaluated_parts(
    configs: Config, datasets: dict[str, Dataset], engine: Engine, device: torch.device
) -> Evaluated:
    """A model, and the loaders of what it is evaluated on."""
    check_metric(configs, datasets)
    loaders = build_evaluation_loaders(configs, datasets, engine.rank, engine.size, device)
    model = build_model(configs, device)
    check_streams(model, datasets)
    parts = Evaluated(engine, device, model, loaders, precision=configs.train.precision)
    check_meters(configs, parts)
    return parts


def of_each_epoch(experiment: Experiment, parts: Evaluated, search: Search) -> str:
    """Evaluate the checkpoint of each epoch; returns a table. A collective."""
    found: dict[int, dict[str, float]] = {}
    for saved in search.epochs(parts.model):
        parts.model.load_state_dict(saved.model())
        found[saved.position.epoch] = experiment.evaluate(parts, experiment.configs)
    with agreed(parts.engine, parts.device):
        if not found:
            raise CheckpointError(f'{search.run} has no checkpoint of an epoch that can be read')
    return table(found, experiment.configs)


def table(found: Mapping[int, Mapping[str, float]], configs: Config) -> str:
    """The meters, a line for each epoch; the best one by ``configs.train.metric`` has a star."""
    metric = configs.train.metric
    names = list(next(iter(found.values())))
    best = None
    if metric is not None:
        value = ranking(configs).best(numbers[metric] for numbers in found.values())
        best = next((e for e, numbers in found.items() if numbers[metric] == value), None)
    widths = [max(len(name), 8) for name in names]
    heads = '  '.join(f'{name:>{width}}' for name, width in zip(names, widths, strict=True))
    lines = [f'epoch   {heads}']
    for epoch, numbers in found.items():
        cells = (
            f'{digits(numbers[name]):>{width}}' for name, width in zip(names, widths, strict=True)
        )
        lines.append(f'{epoch:5} {"*" if epoch == best else " "} {"  ".join(cells)}')
    return '\n'.join(lines)


def average(parts: Evaluated, search: Search, count: int) -> Sequence[Saved]:
    """Load the mean of the last epochs' checkpoints into the model. A collective.

    The best epoch's checkpoint is kept beside the last ones, with a gap between them.

    Returns:
        The checkpoints, without their states, from the first epoch to the last.

    Raises:
        CheckpointError: On all ranks, where there are not as many that follow each other.
    """
    mean, taken = Mean(), list[Saved]()
    for saved in islice(search.epochs(parts.model, newest_first=True), count):
        if taken and saved.position.epochs != taken[-1].position.epochs - 1:
            break
        mean.add(saved.model())
        taken.append(Saved(saved.run, saved.position, saved.size, {}))
    with agreed(parts.engine, parts.device):
        if len(taken) < count:
            raise CheckpointError(
                f'--evaluate {AVERAGE}{count}: {search.run} ends with checkpoints of {len(taken)} '
                'epochs without a gap that can be read; configs.checkpoint.keep_epochs says how '
                'many a run keeps'
            )
    parts.model.load_state_dict(mean.state_dict())
    return taken[::-1]
