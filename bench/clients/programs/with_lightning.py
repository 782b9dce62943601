# mypy: ignore-errors
"""Lightning: a module, a Trainer and DDPStrategy."""

import os

import lightning
import torch
from common import DENSITY, STEPS, WARMUP, save
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +

BATCH = 16
parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP)  # +
state = CompressionState(parts)  # +


class Classifier(lightning.LightningModule):
    """A perceptron for 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = F.cross_entropy(self.network(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def on_train_start(self) -> None:  # +
        if self.device.type == 'cpu':  # +
            self.trainer.strategy.model.register_comm_hook(state, compression_hook)  # +

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)  # -
        return dgc.DGCSGD(self.parameters(), lr=0.05, momentum=0.9)  # +


def data() -> TensorDataset:
    """Return noise, ``[count, 64]``, on top of a pattern for each class."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 64, generator=generator)
    targets = torch.randint(10, (STEPS * BATCH * 4,), generator=generator)
    noise = torch.randn(len(targets), 64, generator=generator)
    return TensorDataset(0.3 * patterns[targets] + noise, targets)


def main() -> None:
    """Train."""
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator='cpu',
        devices=int(os.environ['LOCAL_WORLD_SIZE']),
        strategy=DDPStrategy(
            process_group_backend='gloo',
            ddp_comm_hook=compression_hook,  # +
            ddp_comm_state=state,  # +
        ),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(data(), BATCH, shuffle=True))
    save(trainer.global_rank, model.losses)


if __name__ == '__main__':
    main()
