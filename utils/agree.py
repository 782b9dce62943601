"""Refusal of bad input on all ranks together."""

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
    """Run the block on every rank, and refuse its input on all ranks if one of them does.

    A collective at the end of the block: a rank that raised alone would leave the others waiting.

    Raises:
        Refused: On every rank, with the message of the lowest rank that raised one of REFUSALS.
    """
    own_message = ''
    try:
        yield
    except REFUSALS as error:
        own_message = ' '.join(str(error).split()) or type(error).__name__
    messages = gather_text(engine, own_message, device, limit=1024)
    if not any(messages):
        return
    first = next(rank for rank, text in enumerate(messages) if text)
    everywhere = all(text == messages[first] for text in messages)
    where = '' if everywhere else f'rank {first}: '
    raise Refused(where + messages[first], rank=first)
