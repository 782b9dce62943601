"""The engine over torch.distributed: gloo for CPU tensors, NCCL for CUDA tensors."""

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

# The rendezvous stores of the default groups that engines of this process have made. They are kept
# for the life of the process: rank 0 may host the store, and other ranks may use it for their next
# group while rank 0 closes the last one.
stores: list[Store] = []


def make_default_group(backend: str, timeout: timedelta) -> None:
    """Make the default process group from the environment variables of the launcher.

    The rendezvous store outlives a group, and torch gives the next group the same keys. Without a
    prefix of its own that group would read the addresses of the last one and wait for sockets that
    are closed.
    """
    store, rank, size = next(iter(rendezvous('env://', timeout=timeout)))
    stores.append(store)
    prefixed = PrefixStore(f'dgc/{len(stores)}', store)
    dist.init_process_group(backend, timeout=timeout, store=prefixed, rank=rank, world_size=size)


class TorchEngine(Engine):
    """Collectives in a process group of its own, apart from those of the rest of the program.

    Uses the default group where the program has made one, and makes it otherwise, from the
    environment that ``torchrun`` sets (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    Args:
        device: of the tensors.
        backend: 'gloo' or 'nccl'; by default 'nccl' for CUDA devices, else 'gloo'.
        timeout: seconds after which a collective that a peer has not joined fails.

    Raises:
        EngineError: the default group cannot be made, or this process is not in it.
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
        # Deleting the last reference ends gloo's threads. A thread that releases a tensor while the
        # interpreter shuts down would abort the process.
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
                raise ValueError(
                    f'rank {self.rank} cannot send to {destination} and receive from {source}: '
                    'a message to itself must be both'
                )
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
