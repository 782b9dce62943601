"""Compose config files into an experiment, build it, train it, evaluate it."""

from __future__ import annotations

import sys

from utils.cli import (
    BAD_INPUT,
    DECLARATIONS,
    OPTIONS,
    STOPPED,
    Refused,
    end,
    end_at_once,
    give_up,
    interrupted,
    parse_arguments,
    print_whole,
    quiet_others,
)

if __name__ == '__main__':  # before torch is imported, which takes seconds: --help is immediate
    ARGUMENTS, OVERRIDES = parse_arguments(sys.argv[1:])

from argparse import Namespace
from pathlib import Path

import torch

from dgc import EngineError, NonFiniteGradientError, average_tensors, engines
from dgc.engines import StalledError
from dgc.handshake import AgreementError
from utils.allocator import keep_freed_memory
from utils.build import Evaluated, Parts, built_meters, choose_device
from utils.carried import forget, fresh
from utils.checks import check_settings
from utils.config import Config, ConfigError, load
from utils.config.loading import parse_overrides
from utils.failures import fail
from utils.listing import listing
from utils.log import Log
from utils.naming import by_setting, run_name
from utils.progress import EpochHooks, EpochMeters, with_progress
from utils.seeding import seed_everything
from utils.training.experiment import Experiment


def main(arguments: Namespace, overrides: list[str]) -> int:
    """Run this process's part of the experiment; returns its exit code."""
    try:
        launcher = engines.detect()
    except EngineError as error:
        return give_up(BAD_INPUT, str(error), True)
    quiet_others(launcher.rank)
    if arguments.list:
        if launcher.rank == 0:
            print_whole(listing(DECLARATIONS))
        return 0
    keep_freed_memory()
    try:
        configs = load(arguments.configs, overrides, OPTIONS, DECLARATIONS)
        configs.check()
        check_settings(configs)
        torch.backends.cudnn.deterministic |= configs.deterministic
        device = choose_device(arguments.devices, launcher.device_index)
        mode = configs.train.distribution.build()
        settings = by_setting(parse_overrides(overrides))
        if arguments.show:
            workers = mode.workers(configs, launcher.size)
            return show(arguments, configs, settings, workers) if launcher.rank == 0 else 0
        return mode.run(Experiment(arguments, configs, device, train_epoch, evaluate, settings))
    except Refused as error:  # raised on all ranks; one of them prints
        return give_up(error.code, str(error), launcher.size == 1 or launcher.rank == error.rank)
    except StalledError as error:  # before EngineError, which it is
        end_at_once(give_up(STOPPED, f'{error}: --resume continues', launcher.rank == error.rank))
    except (ConfigError, EngineError) as error:  # one rank per machine prints: files may differ
        message = f'rank {launcher.rank}: {error}' if launcher.rank else str(error)
        return give_up(BAD_INPUT, message, launcher.local_rank == 0)
    except AgreementError as error:
        return give_up(STOPPED, str(error), launcher.rank == 0)
    except NonFiniteGradientError as error:
        return give_up(STOPPED, str(error), launcher.size == 1 or launcher.rank == error.rank)
    except KeyboardInterrupt:
        interrupted(launcher.rank == 0)
    except Exception as error:  # of this rank alone
        return fail(error, launcher.rank)


def show(arguments: Namespace, configs: Config, settings: dict[str, str], workers: int) -> int:
    """Print the resolved configuration, after a comment with the folder of its run."""
    name = arguments.name or run_name(arguments.configs, arguments.suffix, workers, settings)
    print_whole(f'# {Path(arguments.runs) / name}\n{configs}')
    return 0


def train_epoch(
    parts: Parts, configs: Config, epoch: int, log: Log, hooks: EpochHooks | None = None
) -> dict[str, float]:
    """Make one pass over the training data, or the rest of one; returns the epoch's measurements.

    Args:
        parts: What this rank trains with.
        configs: The configuration.
        epoch: Counted from 0.
        log: Receives a point per step.
        hooks: Say where the epoch begins, and save checkpoints.
    """
    hooks = hooks or EpochHooks()
    optimizer, loader = parts.optimizer, parts.loaders['train']
    batches_per_step = configs.train.num_batches_per_step
    parts.model.train()
    parts.share.epoch = epoch
    parts.share.skipped = hooks.first_step * (loader.batch_size or 1)
    # Ranks draw different augmentations, and a resumed epoch the same as an unbroken run.
    seed_everything(configs.seed + 1_000_003 * epoch + parts.share.rank)
    meters = EpochMeters(parts, log, epoch, configs.log)
    batches = iter(loader)  # which draws a random number
    forget(parts.model)
    hooks.begin(meters)
    for batch in with_progress(parts, batches, meters, epoch, configs.train.num_epochs):
        if parts.is_complete:
            break
        parts.rate.before_step(optimizer.steps)
        optimizer.zero_grad()
        loss = torch.zeros((), device=parts.device)
        for inputs, targets in zip(
            *(t.split(configs.train.batch_size) for t in batch), strict=True
        ):
            with parts.computing():
                outputs = parts.model(inputs.to(parts.device, non_blocking=True))
                part = parts.criterion(outputs, targets.to(parts.device, non_blocking=True))
            part = part / batches_per_step
            part.backward()
            loss += part.detach()
        meters.before_exchange()
        parts.step()
        meters.add(loss)
        hooks.after_step(meters)
    return {**meters.measured(), 'lr': parts.rate.current}


def evaluate(parts: Evaluated, configs: Config) -> dict[str, float]:
    """Compute every meter on every split except 'train', over all ranks; a sample counts once."""
    average_tensors(parts.engine, parts.model.buffers())
    parts.model.eval()
    results = {}
    for split, loader in parts.loaders.items():
        if split == 'train':
            continue
        meters = {name.format(split): meter for name, meter in built_meters(configs).items()}
        with torch.inference_mode(), parts.computing(), fresh(parts.model):
            for inputs, targets in loader:
                outputs = parts.model(inputs.to(parts.device, non_blocking=True))
                for meter in meters.values():
                    meter.update(outputs, targets.to(parts.device))
        for name, meter in meters.items():
            sums = parts.engine.all_reduce(meter.sums().to(parts.device))
            results[name] = meter.value(sums.cpu())
    return results


if __name__ == '__main__':
    end(main(ARGUMENTS, OVERRIDES))
