"""Lightning: ``DDPStrategy`` takes the communication hook and its state.

    torchrun --nproc-per-node 2 examples/with_lightning.py

Lightning registers that hook on GPUs only, and says nothing. On CPUs the module registers it.
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dgc
from dgc.hooks import CompressionState, compression_hook


class Classifier(lightning.LightningModule):
    """A perceptron that classifies the handwritten digits."""

    def __init__(self, compression: CompressionState) -> None:
        super().__init__()
        self.compression = compression
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def on_train_start(self) -> None:
        """Register the hook where Lightning does not."""
        if self.device.type == 'cpu':
            self.trainer.strategy.model.register_comm_hook(self.compression, compression_hook)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = F.cross_entropy(self.network(inputs), targets)
        self.log('loss', loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Print the mean loss of the epoch."""
        self.print(f'epoch {self.current_epoch}: loss {self.trainer.callback_metrics["loss"]:.3f}')

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """DGCSGD, since the memory of the composition holds the momentum."""
        return dgc.DGCSGD(self.parameters(), lr=0.1, momentum=0.9)


def digits() -> TensorDataset:
    """Return float32 ``[1797, 64]`` from 0 to 1, and int64 ``[1797]`` from 0 to 9."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=10)
    arguments = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    composition = dgc.deep_gradient_compression(0.01, warmup_steps=40)
    compression = CompressionState(composition)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator='cpu',
        devices=int(os.environ.get('LOCAL_WORLD_SIZE', 1)),  # torchrun sets it
        strategy=DDPStrategy(
            process_group_backend='gloo',
            ddp_comm_hook=compression_hook,
            ddp_comm_state=compression,
        ),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(compression)
    trainer.fit(model, DataLoader(digits(), batch_size=32, shuffle=True))
    return model


if __name__ == '__main__':
    main()
