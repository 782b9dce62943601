"""The engine over torch.distributed: gloo for CPU tensors, NCCL for CUDA tensors."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from dgc.engines.base import EXIT_SECONDS, Engine, EngineError
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
made: Counter[tuple[int, ...]] = Counter()  # groups of some ranks that were made, by these ranks


def make_default_group(backend: str, timeout: timedelta) -> None:
    """Make the default process group from the environment variables of the launcher.

    The rendezvous store outlives a group, and torch gives the next group the same keys. Without a
    prefix of its own that group would read the addresses of the last one and wait for sockets that
    are closed. torchrun's store also outlives processes, where it starts them again.
    """
    store, rank, size = next(iter(rendezvous('env://', timeout=timeout)))
    stores.append(store)
    prefix = f'dgc/{len(stores)}'
    if os.environ.get('TORCHELASTIC_RESTART_COUNT'):
        prefix = agree_on_prefix(store, rank, size, timeout)
    prefixed = PrefixStore(prefix, store)
    dist.init_process_group(backend, timeout=timeout, store=prefixed, rank=rank, world_size=size)


def agree_on_prefix(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return a prefix of keys that these processes have in common, and no earlier ones.

    TORCHELASTIC_RESTART_COUNT is not enough: torchrun counts it on each machine, and a machine
    whose workers are started again since one on another machine failed does not count that.
    So rank 0 draws a text, every process answers with one of its own, and rank 0 lists the answers.
    A process that reads what rank 0 of earlier processes wrote misses its own answer in that list.

    Args:
        store: That of the launcher.
        rank, size: Of this process.
        timeout: Until all processes have answered.

    Raises:
        RuntimeError: They have not.
    """
    own, deadline = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    if rank == 0:
        store.set('dgc/start', own)
        answers = [store.get(f'dgc/{own}/answer/{other}').decode() for other in range(1, size)]
        store.set(f'dgc/{own}/answers', json.dumps([own, *answers]))
        return f'dgc/{own}'
    seen = ''
    while time.monotonic() < deadline:
        start = store.get('dgc/start').decode()
        if start != seen:
            store.set(f'dgc/{start}/answer/{rank}', own)
            seen = start
        listing = f'dgc/{start}/answers'
        if store.check([listing]):
            listed = json.loads(store.get(listing))
            if rank < len(listed) and listed[rank] == own:  # there may have been fewer
                return f'dgc/{start}'
        time.sleep(0.02)
    raise RuntimeError(f'rank 0 has not listed rank {rank} within {timeout}')


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


def default_size() -> int:
    """Return the size of the default process group; 0 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def check_size(engine: Engine) -> None:
    """Raise EngineError where an engine that is not of torch.distributed lacks ranks of its default
    process group, which would train without them."""
    if engine.size < default_size():
        raise EngineError(
            f'engine {engine.name} has {engine.size} rank{"s" * (engine.size > 1)}, and '
            f'init_process_group was called for {default_size()}, of which this process is rank '
            f'{dist.get_rank()}: call dgc.create() after init_process_group and without a name, or '
            'pass TorchEngine(group=...) for some of these ranks'
        )


def members_of(group: dist.ProcessGroup | None) -> list[int]:
    """Return the ranks, in the default group, of the members of ``group``, this process among them.

    Raises:
        TypeError: It is no process group.
        EngineError: This process is not a member.
    """
    if group is None:
        return [*range(dist.get_world_size())]
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise EngineError(
            f'TorchEngine(group=...): rank {dist.get_rank()} is not a member of that group: make '
            'the engine on the members only'
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f'TorchEngine(group=...) must be a process group, got {type(group).__name__}: pass '
            "what dist.new_group(...) returns, or mesh.get_group('name') of a device mesh"
        )
    return dist.get_process_group_ranks(group)


def new_group(ranks: list[int], backend: str, timeout: timedelta) -> dist.ProcessGroup:
    """Make a process group of some ranks of the default group. A collective of these ranks.

    ``dist.new_group`` would name it by the number of groups that each rank has made before. Members
    of several groups have made more than others, and would then wait under different names.
    """
    made[tuple(ranks)] += 1
    name = f'dgc/{"-".join(map(str, ranks))}/{made[tuple(ranks)]}'
    c10d = dist.distributed_c10d
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        backend,
        c10d._get_default_store(),
        name,  # type: ignore[arg-type]
        timeout=timeout,
    )
    assert isinstance(group, dist.ProcessGroup)
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


class TorchEngine(Engine):
    """Collectives in a process group of its own, apart from those of the rest of the program.

    Uses the default group where the program has made one, and makes it otherwise, from the
    environment that ``torchrun`` sets (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    Args:
        device: of the tensors.
        backend: 'gloo' or 'nccl'; by default 'nccl' for CUDA devices, else 'gloo'.
        patience: how long a call waits for the other ranks.
        group: a process group of torch.distributed, such as ``dist.new_group(ranks)`` or
            ``mesh.get_group('name')``; by default the default group. ``rank``, ``size`` and place
            are those within the group, also in messages. All members make the engine, in the same
            order as other engines of the same members; other ranks take no part.

    Raises:
        TypeError: ``group`` is no process group.
        EngineError: the default group cannot be made, or this process is not in the group.
    """

    name = 'torch'
    engines: ClassVar[set[TorchEngine]] = set()  # those that are open
    made_default_group: ClassVar[bool] = False  # by one of them

    def __init__(
        self,
        device: torch.device | str = 'cpu',
        backend: str | None = None,
        patience: Patience | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        patience = patience or Patience()
        self._arguments = device, backend, patience, group
        backend = backend or ('nccl' if torch.device(device).type == 'cuda' else 'gloo')
        if not dist.is_initialized():
            start_default_group(backend, patience)
            TorchEngine.made_default_group = True
        self._ranks = members_of(group)
        timeout = timedelta(seconds=patience.library_seconds)
        launcher, store = detect(), dist.distributed_c10d._get_default_store()
        if self._ranks == members_of(None):
            own = dist.new_group(backend=backend, timeout=timeout)
            assert isinstance(own, dist.ProcessGroup)
        else:
            own = new_group(self._ranks, backend, timeout)
            launcher, store = replace(launcher, placed=False), PrefixStore(own.group_name, store)
        self._group = own
        rank, size = own.rank(), own.size()
        super().__init__(rank, size, *place(launcher, store, rank, size))
        TorchEngine.engines.add(self)
        channel = StoreChannel(store, f'dgc/beat/{own.group_name}', rank, size)
        self._watch = watch(self, patience, channel)
        if backend == 'gloo':
            atexit.register(self._leave_at_exit)

    def close(self) -> None:
        """Destroy the group that this engine made; the last engine, also a default group that one
        of them made."""
        if self.is_closed:
            return
        if self._watch is not None:
            self._watch.stop()
        super().close()
        self._leave()
        TorchEngine.engines.discard(self)
        if TorchEngine.made_default_group and not TorchEngine.engines:
            TorchEngine.made_default_group = False
            dist.destroy_process_group()

    def _leave(self) -> None:
        """Destroy the group that this engine made, and with it gloo's threads.

        A thread that releases a tensor while the interpreter shuts down would abort the process.
        """
        atexit.unregister(self._leave_at_exit)
        with contextlib.suppress(ValueError):  # the program has destroyed all groups
            dist.destroy_process_group(self._group)
        del self._group

    def _leave_at_exit(self) -> None:
        """Leave the group of an engine that was not closed, unless a call of it is not complete:
        gloo would wait for it, and a peer may have died."""
        assert self._thread is not None
        if self._thread.end(seconds=EXIT_SECONDS):
            self._leave()

    def _duplicate(self) -> Engine:
        return TorchEngine(*self._arguments)

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
            return self._to_itself(tensor, destination, source)
        received = None
        operations = []  # torch numbers the other rank as in the default group
        if destination is not None:
            operations.append(dist.P2POp(dist.isend, tensor, self._ranks[destination], self._group))
        if source is not None:
            received = torch.empty_like(tensor)
            operations.append(dist.P2POp(dist.irecv, received, self._ranks[source], self._group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        dist.broadcast(tensor, self._ranks[root], group=self._group)
        return tensor

    def _barrier(self) -> None:
        dist.barrier(group=self._group)
