"""Top-k against random-k in a run: curves, a line of layers.jsonl, and the means of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dgc import SelectionErrors
from dgc.parameter_server import WorkerOptimizer
from dgc.selection import LayerError, unmeasurable
from utils.build import Parts
from utils.config import Config, ConfigError

if TYPE_CHECKING:
    from utils.log import Log


class SelectionLog:
    """Logs the errors of rank 0's selections every so many optimizer steps.

    With local steps, those of the first exchange from then on.

    Args:
        parts: What this rank trains with.
        log: Receives the errors of each layer.
        period: Optimizer steps between two measurements; None for none at all.
        first: The number of the next step.
    """

    def __init__(self, parts: Parts, log: Log, period: int | None, first: int) -> None:
        self._log, self._period = log, period
        self._errors: SelectionErrors | None = None
        self._sums: dict[str, list[float]] = {}
        if period is not None and parts.engine.rank == 0:
            assert not isinstance(parts.optimizer, WorkerOptimizer)  # see check_asynchronous
            self._errors = SelectionErrors(parts.optimizer)
        self.before_step(first)

    def before_step(self, step: int) -> None:
        """Measure the next step, ``step``, if it is due. Called before its backward pass, since
        buckets are processed from there on."""
        if self._errors is not None and self._period is not None:
            self._errors.measures = step % self._period == 0

    def after_exchange(self, step: int) -> None:
        """Log what was measured in optimizer step ``step``, counted from 0."""
        if self._errors is None or self._period is None:
            return
        found = self._errors.take()
        if found:
            self._log.layers(found, step)
            for name, value in overall(found).items():
                count_and_sum = self._sums.setdefault(name, [0, 0.0])
                count_and_sum[0] += 1
                count_and_sum[1] += value
        if found or not self._errors.measures:  # else local steps, without an exchange yet
            self.before_step(step + 1)

    def measured(self) -> dict[str, float]:
        """The means of the epoch, by name in metrics.jsonl."""
        return {name: total / count for name, (count, total) in self._sums.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Numbers and sums of the epoch so far."""
        return {name: list(each) for name, each in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue from ``state_dict()`` of the same epoch."""
        self._sums = {name: list(each) for name, each in state.items()}


def overall(found: Iterable[LayerError]) -> dict[str, float]:
    """The errors of all layers together, as fractions of those of random elements."""
    layers = list(found)
    numbers = {'selection/topk': [(each.topk, each.random) for each in layers]}
    known = [(each.selected, each.random) for each in layers if each.selected is not None]
    if known:
        numbers['selection/compressor'] = known
    return {
        name: sum(error * weight for error, weight in pairs) / sum(weight for _, weight in pairs)
        for name, pairs in numbers.items()
    }


def check_selection(configs: Config, parts: Parts) -> None:
    """Raise ConfigError where selections are to be measured, and nothing is selected."""
    if configs.log.selection_steps is None or isinstance(parts.optimizer, WorkerOptimizer):
        return
    reason = unmeasurable(parts.optimizer.reducer)
    if reason:
        raise ConfigError(
            f'configs.log.selection_steps = {configs.log.selection_steps} has no effect, since '
            f'{reason}: leave it out'
        )
