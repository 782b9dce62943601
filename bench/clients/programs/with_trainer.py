# mypy: ignore-errors
"""Hugging Face's Trainer: a small GPT-2 with random weights."""

import tempfile

import torch
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +
from dgc.memory import Residual  # +

VOCABULARY, LENGTH, WIDTH = 32, 16, 64


class Counting(Dataset):
    """Sequences that count up in steps of 1 to 5, modulo the size of the vocabulary."""

    def __len__(self) -> int:
        return 40_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start, step = index % VOCABULARY, index // VOCABULARY % 5 + 1
        tokens = (start + step * torch.arange(LENGTH)) % VOCABULARY
        return {'input_ids': tokens, 'labels': tokens}


class Recorder(Trainer):
    """Keeps the loss of each step."""

    def training_step(self, *arguments: object, **settings: object) -> Tensor:
        """See Trainer."""
        loss = super().training_step(*arguments, **settings)
        losses.append(loss.item())
        return loss


class Compression(TrainerCallback):  # +
    """Registers the hook when the trainer has wrapped its model."""  # +

    def on_train_begin(self, *_: object, **__: object) -> None:  # +
        parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
        trainer.model_wrapped.register_comm_hook(CompressionState(parts), compression_hook)  # +


losses: list[float] = []
if __name__ == '__main__':
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    settings = TrainingArguments(
        tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=3e-3,
        use_cpu=True, save_strategy='no', logging_strategy='no', report_to='none',
        disable_tqdm=True, ddp_backend='gloo', ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Recorder(GPT2LMHeadModel(config), settings, train_dataset=Counting())
    trainer.add_callback(Compression())  # +
    trainer.train()
    save(trainer.args.process_index, losses)
