"""The precision of forward passes, by autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

FP32, BF16 = 'fp32', 'bf16'
PRECISIONS = (FP32, BF16)


def computing(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass and its loss.

    Args:
        precision: 'bf16' for ``torch.autocast`` in bfloat16: parameters, gradients, residuals and
            the optimizer stay float32, and no loss is scaled; 'fp32' for none.
        device: Where it is computed.
    """
    if precision == BF16:
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
