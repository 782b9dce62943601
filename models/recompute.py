"""Activations that are computed again in the backward pass, which saves their memory."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ['Recomputing']


class Recomputing(nn.Module):
    """A network of blocks, of which only the inputs are kept for the backward pass if that is set.

    A block's random numbers are the same both times, so that the gradients are. Blocks with
    BatchNorm do not suit: they would count every batch twice.
    """

    recomputes = False

    def gradient_checkpointing_enable(self) -> None:
        """Compute the blocks again from now on. The name is that of the transformers library."""
        self.recomputes = True

    def apply_block(self, block: nn.Module, *inputs: Any, **settings: Any) -> Any:
        """Call ``block``, to be called in ``forward`` for each of them."""
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False, **settings)
        return block(*inputs, **settings)
