"""torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from dgc.engines.base import Engine, EngineError

# torch 2.14 renamed it, and warns on every use of the old name.
all_gather_single = getattr(dist, 'all_gather_single', None) or dist.all_gather_into_tensor

# Of the default groups that engines of this process have made. They stay open: it may be rank 0
# that serves them, and others may be at their next group while it closes the last.
stores: list[Store] = []


def make_default_group(backend: str, timeout: timedelta) -> None:
    """From the environment, under a prefix of its own in the store of the launcher.

    The store outlives a group. The next one, which torch would name alike, would find the last
    one's addresses there, and wait for processes that no longer listen.
    """
    store, rank, size = next(iter(rendezvous('env://', timeout=timeout)))
    stores.append(store)
    prefixed = PrefixStore(f'dgc/{len(stores)}', store)
    dist.init_process_group(backend, timeout=timeout, store=prefixed, rank=rank, world_size=size)


class TorchEngine(Engine):
    """A process group of its own, so that nothing else's collectives mix with ours.

    Joins the default group where the program has made one already, and makes it otherwise, from
    the environment that ``torchrun`` leaves (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    backend: 'gloo' or 'nccl'; by default 'nccl' for CUDA devices.
    timeout: seconds after which a collective whose peers are silent fails.
    """

    name = 'torch'

    def __init__(
        self, device: torch.device | str = 'cpu', backend: str | None = None, timeout: float = 1800
    ) -> None:
        backend = backend or ('nccl' if torch.device(device).type == 'cuda' else 'gloo')
        limit = timedelta(seconds=timeout)
        self._made_default_group = not dist.is_initialized()
        if self._made_default_group:
            try:
                make_default_group(backend, limit)
            except (ValueError, RuntimeError) as error:
                first_line = str(error).strip().splitlines()[0]
                raise EngineError(
                    f'engine torch cannot start ({first_line}): start the program with torchrun, '
                    'or set MASTER_ADDR to the first machine'
                ) from error
        group = dist.new_group(backend=backend, timeout=limit)
        if not isinstance(group, dist.ProcessGroup):
            raise EngineError('engine torch: this process is not a member of the default group')
        self._group = group
        size = dist.get_world_size()
        super().__init__(
            rank=dist.get_rank(),
            size=size,
            local_rank=int(os.environ.get('LOCAL_RANK', dist.get_rank())),
            local_size=int(os.environ.get('LOCAL_WORLD_SIZE', size)),
        )

    def close(self) -> None:
        """Destroy the groups that this engine made."""
        super().close()
        dist.destroy_process_group(self._group)
        # The last reference, with which gloo's threads end. One that still has a tensor to let go
        # of while the interpreter shuts down would abort the process.
        del self._group
        if self._made_default_group:
            dist.destroy_process_group()

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        gathered = tensor.new_empty(self.size * tensor.numel())
        all_gather_single(gathered, tensor, group=self._group)
        return gathered.view(self.size, -1)

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        if destination == self.rank or source == self.rank:
            if destination != source:
                raise ValueError(f'rank {self.rank} sends to itself but hears {source}')
            return tensor.clone()
        received = torch.empty_like(tensor) if source is not None else None
        operations = []
        if destination is not None:
            operations.append(dist.P2POp(dist.isend, tensor, destination, self._group))
        if received is not None:
            operations.append(dist.P2POp(dist.irecv, received, source, self._group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        dist.broadcast(tensor, root, group=self._group)
        return tensor

    def _barrier(self) -> None:
        dist.barrier(group=self._group)
