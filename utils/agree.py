"""Refusal of bad input, or the end of training, on all ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dgc import Engine
from dgc.engines import EngineError
from dgc.handshake import gather_text
from utils.cli import Refused
from utils.failures import report

LONGEST = 4096  # bytes of a message, with the lines of code that led to it


@contextmanager
def agreed(
    engine: Engine, device: torch.device, refusal: type[Refused] = Refused
) -> Iterator[None]:
    """Run the block on every rank, and raise ``refusal`` on all ranks if one of them fails.

    A collective at the end of the block: a rank that raised alone would leave the others waiting.
    An EngineError passes through: ranks raise it together, or cannot reach each other any more. So
    does a Refused, which a block within this one has raised on all ranks.

    Raises:
        Refused: On every rank, with the report about the lowest rank that raised an exception.
    """
    own_message = ''
    try:
        yield
    except (EngineError, Refused):
        raise
    except Exception as error:
        own_message = report(error)
    messages = gather_text(engine, own_message, device, limit=LONGEST)
    if not any(messages):
        return
    first = next(rank for rank, text in enumerate(messages) if text)
    everywhere = all(text == messages[first] for text in messages)
    where = '' if everywhere else f'rank {first}: '
    raise refusal(where + messages[first], rank=first)
