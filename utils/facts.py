"""run.json: what programs need to know about a run, such as ``python -m tools.report``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgc import LocalSteps, StreamingSteps
from dgc.composition import Composition
from utils.build import Parts, ranking
from utils.config import Config
from utils.folder import writing

FILE = 'run.json'
VERSION = 1


def write_facts(folder: Path, configs: Config, more: Mapping[str, Any]) -> None:
    """Write run.json. Raises ConfigError where the folder cannot be written.

    Args:
        folder: The run folder.
        configs: The resolved configuration.
        more: Facts that depend on the training mode.
    """
    facts = {
        'version': VERSION,
        'started': time.time(),
        'command': sys.argv,
        'epochs': configs.train.num_epochs,
        'metric': configs.train.metric,
        'better': ranking(configs).better,
        **more,
        'settings': {name: repr(value) for name, value in configs.flat().items()},
    }
    with writing(folder):
        (folder / FILE).write_text(json.dumps(facts, indent=1, default=repr) + '\n')


def synchronous_facts(configs: Config, parts: Parts) -> dict[str, Any]:
    """The facts of synchronous training, with what the planner predicts of a step."""
    sent, uncompressed = predicted_bytes(parts)
    optimizer = parts.optimizer
    return {
        'epochs': parts.epochs(configs.train.num_epochs),
        'workers': parts.engine.size,
        'engine': parts.engine.name,
        'samples': {name: len(each.dataset) for name, each in parts.loaders.items()},  # type: ignore[union-attr, arg-type]
        'steps_per_epoch': len(parts.loaders['train']),
        'samples_per_step': parts.samples_per_step,
        'parameters': sum(bucket.numel for bucket in optimizer.buckets),
        'buckets': len(optimizer.buckets),
        'predicted': {
            'steps_per_exchange': optimizer.every if isinstance(optimizer, LocalSteps) else 1,
            **travelling(optimizer),
            'bytes_per_exchange': sent,
            'dense_bytes_per_exchange': uncompressed,
            'seconds_per_step': dict(optimizer.plan.predicted),
        },
    }


def travelling(optimizer: object) -> dict[str, int]:
    """In how many parts an exchange travels, and for how many steps each may, which go on."""
    if isinstance(optimizer, StreamingSteps):
        return {'fragments': len(optimizer.fragments), 'steps_hidden': optimizer.delay}
    return {'fragments': 1, 'steps_hidden': 0}


def predicted_bytes(parts: Parts) -> tuple[int, int]:
    """The bytes that a worker sends per exchange: after the warm-up, and uncompressed.

    By closed forms, which are those of the busiest worker where workers differ.
    """
    composition, size = parts.optimizer.composition, parts.engine.size
    assert isinstance(composition, Composition)  # a parameter server's workers log elsewhere
    specs = [bucket.spec for bucket in parts.optimizer.buckets]
    volume = composition.volume
    sent = sum(volume.bytes_sent(spec, spec.density, size) for spec in specs)
    return round(sent), round(sum(volume.bytes_sent(spec, None, size) for spec in specs))
