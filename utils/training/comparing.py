"""The comparison of all ranks' parameters and buffers while they train: a setting for debugging."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from dgc import DistributedOptimizer, Engine, LocalSteps
from dgc.handshake import check_agreement
from utils.checkpoint import Position

PER_RANK = ('running_mean', 'running_var')  # of normalizations: computed from a rank's own data


class Agreeing:
    """Compares parameters and buffers of all ranks, every so many steps: ``configs.agreement``.

    Args:
        model: Whose tensors are compared.
        optimizer: Trains it.
        engine: Carries digests.
        every: Steps between two comparisons.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: DistributedOptimizer | LocalSteps,
        engine: Engine,
        every: int,
    ) -> None:
        self._model, self._optimizer, self._engine, self._every = model, optimizer, engine, every

    def __call__(self, position: Position) -> None:
        """Compare, where it is time to. A collective.

        Raises:
            AgreementError: On all ranks, with the first tensor that differs, and the rank.
        """
        if self._optimizer.steps % self._every == 0:
            where = f' after {position.step} steps of epoch {position.epoch}'
            with self._optimizer.agreed_parameters():
                check_agreement(self._engine, compared(self._model), where)


def compared(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers that are the same on all ranks within an epoch, by name.

    Statistics of normalizations are not: the ranks average them before an evaluation.
    """
    yield from model.named_parameters()
    norms = (nn.modules.batchnorm._NormBase,)
    own = {
        f'{prefix}.{name}' if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, norms)
        for name in PER_RANK
    }
    for name, buffer in model.named_buffers():
        if name not in own:
            yield name, buffer
