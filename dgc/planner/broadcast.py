"""Broadcasts rank 0's numbers as JSON, which keeps floats bit for bit and executes no code."""

from __future__ import annotations

import json
from typing import Any

import torch

from dgc.engines.base import Engine


def broadcast_json(engine: Engine, content: Any, device: torch.device) -> Any:
    """Return rank 0's ``content`` after a round trip through JSON, on all ranks. A collective.

    Args:
        engine: Carries it.
        content: What JSON can express; ignored on other ranks.
        device: Of the tensors that the engine carries.
    """
    raw = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)
    length = torch.tensor([len(raw)], device=device)
    engine.broadcast(length)
    text = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if engine.rank == 0:
        text.copy_(raw)
    engine.broadcast(text)
    return json.loads(text.cpu().numpy().tobytes())
