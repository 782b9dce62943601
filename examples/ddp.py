"""A communication hook of DistributedDataParallel: AdamW, bfloat16, accumulation and clipping.

    torchrun --nproc-per-node 2 examples/ddp.py

A small transformer learns to continue sequences that count up in steps of 1 to 5.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dgc
from dgc.hooks import CompressionState, compression_hook
from dgc.memory import Residual

VOCABULARY, LENGTH, WIDTH, BATCH = 32, 16, 64, 8
ACCUMULATED = 2  # backward passes per step


class Transformer(nn.Module):
    """Predicts the next token at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """From int64 ``[batch, length]`` to logits ``[batch, length, vocabulary]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        embedded = self.tokens(tokens) + self.places[: tokens.shape[1]]
        return self.head(self.layers(embedded, mask=mask, is_causal=True))


def sequences() -> Tensor:
    """Return int64 ``[batch, length + 1]``, another batch at each call."""
    start = torch.randint(VOCABULARY, (BATCH, 1))
    step = torch.randint(1, 6, (BATCH, 1))
    return (start + step * torch.arange(LENGTH + 1)) % VOCABULARY


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--steps', type=int, default=200)
    arguments = parser.parse_args()

    dist.init_process_group('gloo')
    torch.manual_seed(0)
    network = Transformer()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # AdamW has its own momentum, so the memory is a plain residual.
    warmup = arguments.steps // 4  # in these steps the density falls from 1 to 1 %
    composition = dgc.deep_gradient_compression(0.01, warmup_steps=warmup, memory=Residual())
    model.register_comm_hook(CompressionState(composition, optimizer), compression_hook)

    torch.manual_seed(1 + dist.get_rank())  # each rank has samples of its own
    for step in range(arguments.steps):
        total = torch.zeros(())
        for number in range(ACCUMULATED):
            tokens = sequences()
            is_last = number == ACCUMULATED - 1
            with nullcontext() if is_last else model.no_sync():
                with torch.autocast('cpu', torch.bfloat16):
                    logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
                (loss / ACCUMULATED).backward()
            total += loss.detach() / ACCUMULATED
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the mean over the ranks
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f'step {step}: loss {total:.3f}')
    dist.destroy_process_group()
    return network


if __name__ == '__main__':
    main()
