"""An exponential moving average of the weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class AveragedWeights:
    """ŵ ← decay·ŵ + (1 - decay)·w after every step, from the first step's w on; of buffers too.

    It is computed from the parameters, so it is the same on all ranks.

    Args:
        model: Whose weights are averaged, before it is wrapped.
        decay: Between 0 and 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        update = get_ema_multi_avg_fn(decay)
        self._averaged = AveragedModel(model, multi_avg_fn=update, use_buffers=True)

    @property
    def model(self) -> nn.Module:
        """The network with the averages."""
        module: nn.Module = self._averaged.module
        return module

    def update(self, model: nn.Module) -> None:
        """Add the weights after a step."""
        self._averaged.update_parameters(model)

    def state_dict(self) -> dict[str, Any]:
        """The averages by the names of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict()``."""
        self.model.load_state_dict(state)
        self._averaged.n_averaged.fill_(1)
