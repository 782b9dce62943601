"""Cases of test_optimizer_checkpoints on two real ranks: torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed.checkpoint as dcp
from dgc_helpers import exact, parameters, train, values, wrap

import dgc


def distributed(engine: dgc.Engine, folder: str) -> dict[str, Any]:
    """Save with ``dcp.save`` after 3 steps, load into another optimizer, and train both."""
    settings = {'momentum': 0.9, 'weight_decay': 0.01}
    named = parameters()
    optimizer = wrap(named, exact(), engine, **settings)
    train(optimizer, named, 3, engine.rank)
    saved, model = optimizer.reducer.state_dict()['memory'], dict(named)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of torch, about its own deprecated functions
        dcp.save({'model': model, 'optimizer': optimizer}, checkpoint_id=folder)
        fresh = wrap(parameters(), exact(), engine, **settings)
        try:
            dcp.load({'optimizer': fresh}, checkpoint_id=folder)
            lacking = ''
        except Exception as error:
            lacking = str(error)
        other = parameters()
        resumed = wrap(other, exact(), engine, **settings)
        train(resumed, other, 1, engine.rank)  # creates the wrapped optimizer's state
        dcp.load({'model': dict(other), 'optimizer': resumed}, checkpoint_id=folder)
    loaded, steps = resumed.reducer.state_dict()['memory'], resumed.steps
    for each, of in ((optimizer, named), (resumed, other)):
        train(each, of, range(3, 6), engine.rank)
    return {
        'saved': saved, 'loaded': loaded, 'steps': steps, 'lacking': lacking,
        'straight': values(named), 'resumed': values(other),
    }  # fmt: skip
