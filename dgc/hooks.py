"""A DistributedDataParallel communication hook that averages gradients through a composition."""

# No annotations from __future__: DDP reads those of a hook, and does not understand strings.

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dgc.buckets import part_of
from dgc.checks import check_part
from dgc.composition import Composition
from dgc.engines import Engine, TorchEngine
from dgc.handshake import gather_states
from dgc.profile import Profile
from dgc.saved_state import join_ranks, labelled, share_of
from dgc.wiring import check, regroup, wire


class CompressionHook:
    """Averages the gradients of a DistributedDataParallel model through a composition.

        model = DistributedDataParallel(network)
        optimizer = dgc.DGCSGD(network.parameters(), lr=0.1, momentum=0.9)
        hook = CompressionHook(model, optimizer, dgc.deep_gradient_compression(0.001))
        loss.backward(); optimizer.step()

    DDP rebuilds its buckets after the first iteration, so residuals cannot be stored by DDP bucket:
    gradients are copied into the composition's own buckets, by parameter. Save and restore
    ``state_dict()`` together with the model's and the optimizer's.

    Args:
        model: Its gradients are replaced by their mean over the ranks.
        optimizer: Updates the model's parameters; see DistributedOptimizer for its momentum.
        composition: The parts that process the gradients.
        engine: By default a TorchEngine.
        steps_per_epoch: The number of optimizer steps in an epoch of the composition's schedule.
        profile: Measures a step of ``model.module``, for planners that need times; see
            ``dgc.profile``.

    Attributes:
        plan: The division of the parameters into buckets.
        steps: The number of steps so far.

    Raises:
        ValueError: Where settings contradict each other, ``nonfinite`` is 'skip', or the model
            trains parameters that the optimizer does not update.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: Optimizer,
        composition: Composition,
        engine: Engine | None = None,
        steps_per_epoch: int | None = None,
        profile: Callable[[], Profile] | None = None,
    ) -> None:
        check_part('composition', composition, Composition, 'dgc.deep_gradient_compression(0.001)')
        if composition.nonfinite == 'skip':
            raise ValueError("nonfinite='skip' needs DistributedOptimizer: DDP cannot skip a step")
        named = list(model.module.named_parameters())
        check(optimizer, named, composition, steps_per_epoch)
        engine = engine or TorchEngine(named[0][1].device)
        self.reducer, self.plan = wire(
            optimizer, named, composition, engine, steps_per_epoch, profile=profile
        )
        self.steps_per_epoch = steps_per_epoch or 1
        self.steps = 0
        self._places: dict[Tensor, tuple[int, Tensor]] = {}
        for index, bucket in enumerate(self.reducer.buckets):
            for member in bucket.members:
                view = part_of(bucket.gradient, member.offset, member.parameter)
                self._places[member.parameter] = (index, view)
        strangers = [n for n, p in named if p.requires_grad and p.numel() and p not in self._places]
        if strangers:
            raise ValueError(
                f'the model trains {", ".join(strangers)}, which the optimizer does not update: '
                'give them to it, or freeze them before DistributedDataParallel'
            )
        optimizer.register_load_state_dict_post_hook(partial(regroup, self.reducer.buckets))
        self._missing: dict[int, int] = {}
        self._waiting: list[tuple[GradBucket, torch.futures.Future[Tensor]]] = []
        model.register_comm_hook(None, self._hook)

    def _hook(self, _: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Copy the gradients of one of DDP's buckets, and submit the buckets that are complete.

        Called by DDP, in the order of its buckets, when the gradients of ``bucket`` are complete.

        Returns:
            A future of the bucket's mean gradients, which ``_finish`` completes.
        """
        if not self._waiting:
            self.reducer.set_densities(self.steps, self.steps_per_epoch)
            self._missing = defaultdict(int)
            for index, _view in self._places.values():
                self._missing[index] += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append((bucket, future))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if not parameter.numel():
                continue
            index, view = self._places[parameter]
            view.copy_(gradient)
            self._missing[index] -= 1
            if not self._missing[index]:
                self.reducer.ready(index)
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        """Wait for the mean gradients and copy them into DDP's buckets, which ends the step."""
        waiting, self._waiting = self._waiting, []
        self.reducer.synchronize()
        for bucket, future in waiting:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if parameter.numel():
                    gradient.copy_(self._places[parameter][1])
            future.set_result(bucket.buffer())
        self.steps += 1

    def state_dict(self) -> dict[str, object]:
        """Return this rank's state of the composition's parts, and the number of steps."""
        engine = self.reducer.engine
        return {**labelled(self.reducer.state_dict(), engine.rank), 'steps': self.steps}

    def gather_state_dict(self) -> dict[str, object]:
        """Return the state of all ranks, on every rank, for any later world size. A collective."""
        device = self.reducer.buckets[0].device
        return join_ranks(gather_states(self.reducer.engine, self.state_dict(), device))

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Restore what ``state_dict()`` or ``gather_state_dict()`` returned.

        Raises:
            ValueError: For the states of some of the ranks of another world size.
        """
        engine = self.reducer.engine
        self.reducer.load_state_dict(share_of(state_dict, engine.rank, engine.size))
        self.steps = int(str(state_dict['steps']))
