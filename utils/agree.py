"""Refusing bad input on all ranks, or on none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from datasets import DatasetError
from dgc import Engine
from dgc.handshake import gather_text
from dgc.parameter_server import ServerError
from utils.checkpoint import CheckpointError
from utils.cli import Refused
from utils.config import ConfigError

REFUSALS = (ConfigError, DatasetError, CheckpointError, ServerError, ValueError, TypeError)


@contextmanager
def agreed(engine: Engine, device: torch.device) -> Iterator[None]:
    """Do something on every rank, or on none: where one rank refuses its input, all do.

    A collective. Raises Refused on every rank, with the message of the lowest rank that has one.
    """
    trouble = ''
    try:
        yield
    except REFUSALS as error:
        trouble = ' '.join(str(error).split()) or type(error).__name__
    troubles = gather_text(engine, trouble, device, limit=1024)
    if not any(troubles):
        return
    first = next(rank for rank, text in enumerate(troubles) if text)
    everywhere = all(text == troubles[first] for text in troubles)
    where = '' if everywhere else f'rank {first}: '
    raise Refused(where + troubles[first], rank=first)
