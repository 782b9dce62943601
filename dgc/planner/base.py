"""What every planner is: a division of a model's parameters among buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from torch.nn import Parameter

from dgc.buckets import Bucket
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

if TYPE_CHECKING:  # a composition has a planner
    from dgc.composition import Composition
    from dgc.engines.base import Engine
    from dgc.planner.forecast import Timing
    from dgc.profile import Profile

Named = tuple[str, Parameter, dict[str, Any]]  # a name, its parameter, the optimizer's group


class Planner(ABC):
    """Divides the parameters of a model among buckets."""

    @abstractmethod
    def plan(
        self,
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
        buffers: Sequence[str],
    ) -> list[Bucket]:
        """The buckets of ``parameters``, in the order in which they are to be sent.

        rules, schedule: say which are sparse, at which ratio. buffers: of the memory.
        The same on every rank.
        """

    def informed(
        self,
        composition: Composition,
        engine: Engine,
        parameters: Sequence[Named],
        profile: Callable[[], Profile] | None,
    ) -> Planner:
        """The planner that knows what it has to know of this run: itself, unless it measures.

        A collective: called on all ranks before ``plan``. profile: measures a step of the model.
        """
        return self

    @property
    def timing(self) -> Timing | None:
        """What was measured; None where nothing was."""
        return None

    def foreseen(
        self,
        buckets: Sequence[Bucket],
        parameters: Sequence[Named],
        rules: LayerRules,
        schedule: RatioSchedule,
    ) -> dict[str, float]:
        """Seconds of a step by planner, without any where nothing is measured.

        buckets: what this one made of the rest, which comes first.
        """
        return {}


def own_schedule(
    name: str, parameter: Parameter, rules: LayerRules, schedule: RatioSchedule
) -> RatioSchedule | None:
    """The schedule of a parameter; None where it is always dense."""
    own = rules.schedule(name, schedule)
    always_dense = own.ratio >= 1 and not own.warmup_epochs
    return None if always_dense or rules.is_dense(name, parameter) else own


def kind(named: Named, own: RatioSchedule | None) -> Hashable:
    """What must be equal for parameters to share a bucket."""
    _, parameter, group = named
    momentum = (group.get('momentum', 0.0), group.get('nesterov', False))
    return (parameter.dtype, parameter.device, *momentum, repr(own))


def size(members: Sequence[Named]) -> int:
    """Bytes of the gradients of ``members``."""
    return sum(p.numel() * p.element_size() for _, p, _ in members)
