"""A compressor of your own: a random subset, in which large elements are more likely.

    torchrun --nproc-per-node 2 examples/own_compressor.py

What it does not select stays in the residual, so that no gradient is lost.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import dgc
from dgc.compressors import Compressor, keep
from dgc.corrected import Corrected
from dgc.sparse import Sparse, gather
from dgc.state import Resize


class Weighted(Compressor):
    """Draws elements without replacement, in proportion to their magnitudes.

    Of keys log(u) / magnitude, with u uniform in (0, 1), the largest are such a sample (Efraimidis
    and Spirakis, 2006).

    Args:
        seed: Of the random numbers.
    """

    remembers = Resize.PER_RANK  # what becomes of ``corrected.state`` at another world size

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return ``keep(n, density)`` elements of gradient plus residual, in ascending order."""
        corrected.state['draws'] = draws = corrected.state.get('draws', 0) + 1
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + draws)
        values = corrected.materialize()
        uniform = torch.rand(values.numel(), generator=generator).to(values.device)
        keys = uniform.clamp_(min=1e-30).log_() / values.abs()
        keys.nan_to_num_(nan=torch.inf)  # gradients that are not finite must reach the other ranks
        positions = keys.topk(keep(values.numel(), density)).indices
        return gather(values, positions.sort().values)


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--steps', type=int, default=300)
    arguments = parser.parse_args()

    engine = dgc.create()
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        dgc.deep_gradient_compression(0.05, compressor=Weighted()),
        engine,
    )
    torch.manual_seed(engine.rank)  # each rank draws samples of its own
    for step in range(arguments.steps):
        batch = torch.randint(len(inputs), (32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        if engine.rank == 0 and step % 20 == 0:
            print(f'step {step}: loss {loss:.3f}')
    engine.close()
    return model


if __name__ == '__main__':
    main()
