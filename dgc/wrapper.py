"""What the optimizers that wrap others have in common: the view of their reducer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.progress import Progress
from dgc.reducer import Reducer


class Uncopied(Optimizer):
    """An optimizer that ``copy.deepcopy``, ``pickle`` and ``torch.save`` refuse.

    Those of torch would copy its groups and state, without connections and hooks.
    """

    _saved_instead = 'save its state_dict(), and load that into a new one'

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """Raise TypeError, with what to do instead."""
        raise TypeError(
            f'{type(self).__name__} cannot be copied or pickled, since it holds connections to '
            f'other processes and hooks on the parameters: {self._saved_instead}'
        )


class Wrapper(Uncopied):
    """An optimizer whose contributions go through ``reducer``.

    Attributes:
        averages: True, by which a GradScaler that was given to other optimizers recognizes one.
    """

    reducer: Reducer
    averages = True

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The buckets, in the order in which they are sent."""
        return self.reducer.buckets

    @property
    def composition(self) -> Composition:
        """The parts that process the contributions."""
        return self.reducer.composition

    @property
    def progress(self) -> Progress:
        """This rank's counters of steps, elements, bytes and seconds."""
        return self.reducer.progress

    @property
    def skips(self) -> int:
        """Exchanges that all ranks have skipped since the last one that was applied."""
        return self.reducer.skips

    def _use(self, optimizer: Optimizer) -> None:
        """Share groups and state with a wrapped optimizer; loading replaces these objects."""
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state
