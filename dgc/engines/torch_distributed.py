"""The engine over torch.distributed: gloo for CPU tensors, NCCL for CUDA tensors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from dgc.engines.base import Engine, EngineError
from dgc.engines.launchers import detect
from dgc.engines.place import place
from dgc.engines.watch import Patience, reported, watch

# torch 2.14 renamed it, and warns on every use of the old name.
all_gather_single = getattr(dist, 'all_gather_single', None) or dist.all_gather_into_tensor

# The rendezvous stores of the default groups that engines of this process have made. They are kept
# for the life of the process: rank 0 may host the store, and other ranks may use it for their next
# group while rank 0 closes the last one.
stores: list[Store] = []

START_SECONDS = 1800  # until all ranks have started
numbers = itertools.count()  # of the engines of this process


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


def start_default_group(backend: str, patience: Patience) -> None:
    """Make the default group. Raises EngineError with the variable to change, where it cannot."""
    size, rank = os.environ.get('WORLD_SIZE'), os.environ.get('RANK')
    where = f'{os.environ.get("MASTER_ADDR")}:{os.environ.get("MASTER_PORT")}'
    message = (
        f'rank {rank} has waited {patience.warning_seconds:g} s for all {size} processes to meet '
        f'at {where} (MASTER_ADDR:MASTER_PORT, served by rank 0): start the missing ones, or set '
        'DGC_LAUNCHER=none to run this process alone'
    )
    try:
        with reported(message, patience.warning_seconds):
            make_default_group(backend, timedelta(seconds=START_SECONDS))
    except (ValueError, RuntimeError) as error:
        text = ' '.join(str(error).split())
        if 'EADDRINUSE' in text or 'address already in use' in text.lower():
            remedy = (
                f'MASTER_PORT={os.environ.get("MASTER_PORT")} is in use on this machine: set '
                'MASTER_PORT to a free port, the same one on all ranks'
            )
        else:
            first_line = str(error).strip().splitlines()[0]
            remedy = (
                f'{first_line}; MASTER_ADDR:MASTER_PORT is {where}: start the program with '
                'torchrun, or set MASTER_ADDR to the first machine'
            )
        raise EngineError(f'engine torch cannot start: {remedy}') from error


class StoreChannel:
    """The beats of an engine's ranks, in the store in which torch.distributed made its group.

    Args:
        store: That store. A connection of its own is used, since a call that waits blocks others.
        prefix: Of the keys: the same on all ranks, and another for each engine.
        rank, size: Of this process in the engine.
    """

    def __init__(self, store: Store, prefix: str, rank: int, size: int) -> None:
        served = os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True'
        self.host = 'torchrun' if served else 'rank 0, which serves the store of torch.distributed,'
        self._store = store.clone()
        self._keys = [f'{prefix}/{each}' for each in range(size)]
        self._own = self._keys[rank]

    def publish(self, text: str) -> None:
        """Write this rank's text."""
        self._store.set(self._own, text)

    def read(self) -> Mapping[int, str]:
        """Return all texts that are there, in two requests where every rank has written one."""
        ranks = list(range(len(self._keys)))
        if not self._store.check(self._keys):
            ranks = [rank for rank in ranks if self._store.check([self._keys[rank]])]
        texts = self._store.multi_get([self._keys[rank] for rank in ranks])
        return dict(zip(ranks, (text.decode(errors='replace') for text in texts), strict=True))


class TorchEngine(Engine):
    """Collectives in a process group of its own, apart from those of the rest of the program.

    Uses the default group where the program has made one, and makes it otherwise, from the
    environment that ``torchrun`` sets (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    Args:
        device: of the tensors.
        backend: 'gloo' or 'nccl'; by default 'nccl' for CUDA devices, else 'gloo'.
        patience: how long a call waits for the other ranks.
        group: whose ranks communicate, in its order; by default those of the default group. Only
            they create the engine.

    Raises:
        EngineError: the default group cannot be made, or this process is not in it.
    """

    name = 'torch'

    def __init__(
        self,
        device: torch.device | str = 'cpu',
        backend: str | None = None,
        patience: Patience | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        patience = patience or Patience()
        backend = backend or ('nccl' if torch.device(device).type == 'cuda' else 'gloo')
        self._made_default_group = not dist.is_initialized()
        if self._made_default_group:
            start_default_group(backend, patience)
        own = dist.new_group(
            None if group is None else dist.get_process_group_ranks(group),
            backend=backend,
            timeout=timedelta(seconds=patience.library_seconds),
            use_local_synchronization=group is not None,  # other ranks do not call this
        )
        if not isinstance(own, dist.ProcessGroup):
            raise EngineError('engine torch: this process is not a member of the default group')
        self._group = own
        rank, size = dist.get_rank(own), dist.get_world_size(own)
        store = dist.distributed_c10d._get_default_store()
        number = str(next(numbers))
        if group is not None:
            number = own.group_name  # its ranks may have made different numbers of engines
            store = PrefixStore(number, store)
        super().__init__(rank, size, *place(detect(), store, rank, size))
        channel = StoreChannel(store, f'dgc/beat/{number}', rank, size)
        self._watch = watch(self, patience, channel)

    def close(self) -> None:
        """Destroy the groups that this engine made."""
        if self._watch is not None:
            self._watch.stop()
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
            operations.append(dist.P2POp(dist.isend, tensor, None, self._group, 0, destination))
        if received is not None:
            operations.append(dist.P2POp(dist.irecv, received, None, self._group, 0, source))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        dist.broadcast(tensor, group=self._group, group_src=root)
        return tensor

    def _barrier(self) -> None:
        dist.barrier(group=self._group)
