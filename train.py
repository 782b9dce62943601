"""Compose config files into an experiment, build it, train it, evaluate it."""

from __future__ import annotations

import sys

from utils.launch import (
    BAD_INPUT,
    OPTIONS,
    STOPPED,
    Refused,
    give_up,
    parse_arguments,
    quiet_others,
)

if __name__ == '__main__':  # torch takes seconds to import: --help need not wait for it
    ARGUMENTS, OVERRIDES = parse_arguments(sys.argv[1:])

from argparse import Namespace
from functools import partial
from pathlib import Path

import torch

from dgc import Engine, EngineError, NonFiniteGradientError, average_tensors, engines
from dgc.handshake import AgreementError, check_agreement, shake_hands
from utils.agree import agreed
from utils.build import Parts, aspects, build, choose_device, seed_everything, threads
from utils.checkpoint import Checkpoints, restore
from utils.config import Config, ConfigError, load
from utils.log import RunLog, start_log
from utils.naming import run_name
from utils.progress import LossCurve, PhaseTimer, closing_table, progress_bar, say


def main(arguments: Namespace, overrides: list[str]) -> int:
    """Run one worker, or all of a simulation; returns the exit code of the process."""
    launcher = engines.detect()
    quiet_others(launcher.rank)
    try:
        configs = load(arguments.configs, overrides, OPTIONS)
        configs.check()
        device = choose_device(arguments.devices, launcher.local_rank)
        worker = partial(work, arguments=arguments, configs=configs, device=device)
        engines.run(worker, configs.engine.name, configs.engine.size, device)
    except Refused as error:  # by all ranks; one of them tells
        return give_up(BAD_INPUT, str(error), launcher.size == 1 or launcher.rank == error.rank)
    except (ConfigError, EngineError) as error:  # once a machine: not all may have the fault
        told = f'rank {launcher.rank}: {error}' if launcher.rank else str(error)
        return give_up(BAD_INPUT, told, launcher.local_rank == 0)
    except AgreementError as error:
        return give_up(STOPPED, str(error), launcher.rank == 0)
    except NonFiniteGradientError as error:
        told = f'{error}: lower the learning rate or clip, then go on with --resume'
        return give_up(STOPPED, told, launcher.size == 1 or launcher.rank == error.rank)
    return 0


def work(engine: Engine, arguments: Namespace, configs: Config, device: torch.device) -> None:
    """One worker's part of the experiment."""
    torch.set_num_threads(threads(configs.data.num_threads_per_worker, engine.local_size))
    folder = Path(arguments.runs) / run_name(arguments.configs, arguments.suffix, engine.size)
    with agreed(engine, device):  # on its own: a dataset may be missing on one machine only
        datasets = configs.dataset.build()
    shake_hands(engine, aspects(configs, datasets), device)
    with agreed(engine, device):
        parts = build(configs, datasets, engine, device)
    first, best = 0, None
    source = Path(arguments.resume or folder)
    if arguments.evaluate or arguments.resume is not None:
        with agreed(engine, device):
            first, best = restore(parts, source, arguments.evaluate)
    if arguments.evaluate:
        for name, value in evaluate(parts, configs).items():
            say(engine, f'[{name}] = {value:.2f}')
        return
    goes_on = arguments.resume is not None and folder.resolve() in (
        source.resolve(),
        source.resolve().parent,  # of its checkpoints
    )
    log = start_log(folder, parts, configs, first if goes_on else None)
    checkpoints = Checkpoints(folder / 'checkpoints', engine.rank, engine.size)
    for epoch in range(first, configs.train.num_epochs):
        numbers = train_epoch(parts, configs, epoch, log)
        numbers.update(evaluate(parts, configs))
        metric = numbers[configs.train.metric]
        improved = best is None or metric > best
        best = metric if improved else best
        log.epoch(epoch, numbers)
        check_agreement(engine, parts.model.parameters())
        checkpoints.save(epoch, {**parts.state_dict(), 'epoch': epoch, 'best': best})
        engine.barrier()
        checkpoints.finish(epoch, improved)
    log.close()
    closing_table(folder, configs, engine)


def train_epoch(parts: Parts, configs: Config, epoch: int, log: RunLog) -> dict[str, float]:
    """One pass over the training data; returns what was measured on the way."""
    engine, optimizer, loader = parts.engine, parts.optimizer, parts.loaders['train']
    first, batches_per_step = epoch * len(loader), configs.train.num_batches_per_step
    parts.model.train()
    parts.share.epoch = epoch
    # Workers draw different augmentations, and a resumed epoch the same as an unbroken run.
    seed_everything(configs.seed + 1_000_003 * epoch + engine.rank)
    phases, losses = PhaseTimer(optimizer), LossCurve(parts, log, first)
    for step, batch in enumerate(progress_bar(engine, loader, f'epoch {epoch}'), first):
        parts.rate.before_step(step)
        optimizer.zero_grad()
        loss = torch.zeros((), device=parts.device)
        for inputs, targets in zip(
            *(t.split(configs.train.batch_size) for t in batch), strict=True
        ):
            outputs = parts.model(inputs.to(parts.device, non_blocking=True))
            part = parts.criterion(outputs, targets.to(parts.device, non_blocking=True))
            part = part / batches_per_step
            part.backward()
            loss += part.detach()
        optimizer.step()
        losses.add(loss)
    return {**phases.measured(), 'loss/train': losses.mean(), 'lr': parts.rate.current}


def evaluate(parts: Parts, configs: Config) -> dict[str, float]:
    """Every meter on every split but the training one, over all ranks; a sample counts once."""
    average_tensors(parts.engine, parts.model.buffers())
    parts.model.eval()
    results = {}
    for split, loader in parts.loaders.items():
        if split == 'train':
            continue
        meters = {name.format(split): node.build() for name, node in configs.train.meters.items()}
        with torch.inference_mode():
            for inputs, targets in loader:
                outputs = parts.model(inputs.to(parts.device))
                for meter in meters.values():
                    meter.update(outputs, targets.to(parts.device))
        for name, meter in meters.items():
            sums = parts.engine.all_reduce(meter.sums().to(parts.device))
            results[name] = meter.value(sums.cpu())
    return results


if __name__ == '__main__':
    sys.exit(main(ARGUMENTS, OVERRIDES))
