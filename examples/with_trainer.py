"""Hugging Face's Trainer: a callback registers the hook when the model has been wrapped.

    torchrun --nproc-per-node 2 examples/with_trainer.py

A tiny GPT-2, with random weights, learns to continue sequences that count up in steps of 1 to 5.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import dgc
from dgc.hooks import CompressionState, compression_hook
from dgc.memory import Residual

VOCABULARY, LENGTH = 32, 16


class Counting(Dataset):
    """Sequences ``start, start + step, start + 2·step, …`` modulo the size of the vocabulary."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start, step = index % VOCABULARY, index // VOCABULARY % 5 + 1
        tokens = (start + step * torch.arange(LENGTH)) % VOCABULARY
        return {'input_ids': tokens, 'labels': tokens}


class Compression(TrainerCallback):
    """Registers the hook at the beginning of training.

    Args:
        composition: The parts that process the gradients.
    """

    def __init__(self, composition: dgc.Composition) -> None:
        self.composition = composition
        self.trainer: Trainer

    def on_train_begin(self, *_: object, **__: object) -> None:
        """The trainer has wrapped its model in DistributedDataParallel by now."""
        state = CompressionState(self.composition)
        self.trainer.model_wrapped.register_comm_hook(state, compression_hook)


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--steps', type=int, default=200)
    arguments = parser.parse_args()

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    # The trainer's AdamW has its own momentum, so the memory is a plain residual.
    warmup = arguments.steps // 4  # in these steps the density falls from 1 to 1 %
    compression = Compression(
        dgc.deep_gradient_compression(0.01, warmup_steps=warmup, memory=Residual())
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder, max_steps=arguments.steps, per_device_train_batch_size=16,
                learning_rate=3e-3, logging_steps=10, use_cpu=True, save_strategy='no',
                report_to='none', disable_tqdm=True, ddp_backend='gloo',
            ),
            train_dataset=Counting(),
            callbacks=[compression],
        )  # fmt: skip
        compression.trainer = trainer
        trainer.train()
    return trainer.model


if __name__ == '__main__':
    main()
