"""The engine over Horovod, which uses gloo, MPI or NCCL, as it was built and started."""

from __future__ import annotations

import http.client
import itertools
import os
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from dgc.engines.base import Engine, EngineError
from dgc.engines.watch import Patience, watch

GLOO_TIMEOUT = 'HOROVOD_GLOO_TIMEOUT_SECONDS'
STORE = ('HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_RENDEZVOUS_PORT')
LONGEST = 1000  # bytes of a beat that are read
numbers = itertools.count()  # of the engines of this process
engines: set[int] = set()  # the numbers of those that are open


@cache
def built_with_mpi() -> bool:
    """Return whether Horovod is installed and built with MPI: otherwise horovodrun starts it."""
    try:
        import horovod.torch as hvd
    except ImportError:
        return False
    return bool(hvd.mpi_built())


class RendezvousChannel:
    """The beats of ranks under ``horovodrun --gloo``, on its rendezvous server (plain HTTP).

    Args:
        address, port: Of that server.
        scope: Of the keys: the same on all ranks, and another for each engine.
        rank, size: Of this process.
    """

    host = 'horovodrun'

    def __init__(self, address: str, port: int, scope: str, rank: int, size: int) -> None:
        self._server, self._scope = (address, port), scope
        self._rank, self._size = rank, size

    def publish(self, text: str) -> None:
        """Write this rank's text."""
        self._request('PUT', self._rank, text.encode())

    def read(self) -> Mapping[int, str]:
        """Return all texts that are there."""
        texts = {rank: self._request('GET', rank) for rank in range(self._size)}
        return {r: text.decode(errors='replace') for r, text in texts.items() if text is not None}

    def _request(self, method: str, rank: int, body: bytes | None = None) -> bytes | None:
        """Return the answer's content; None where there is no such text."""
        connection = http.client.HTTPConnection(*self._server, timeout=5)
        try:
            connection.request(method, f'/{self._scope}/{rank}', body)
            answer = connection.getresponse()
            content = answer.read(LONGEST)
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        return content if answer.status == http.client.OK else None


class HorovodEngine(Engine):
    """Horovod's collectives, blocking, one at a time.

    Horovod matches collectives across ranks by name and caches the negotiation for names that it
    has seen. Only one collective of an engine is ever pending, so one name per engine, kind, type
    and length is enough, and is found in that cache in every step. Engines are numbered in the
    order in which they are made, which must be the same on all ranks.

    Under ``horovodrun --gloo`` Horovod ends the job where a rank makes a pause of over 30 s. The
    limit is set to that of ``patience``, unless HOROVOD_GLOO_TIMEOUT_SECONDS is set.

    Args:
        patience: How long a call waits for the other ranks.

    Raises:
        EngineError: Horovod is not installed.
    """

    name = 'horovod'

    def __init__(self, patience: Patience | None = None) -> None:
        patience = patience or Patience()
        try:
            import horovod.torch as hvd
        except ImportError as error:
            raise EngineError(
                f'engine horovod is not installed ({error}): run tools/install_horovod.sh, '
                'or start with torchrun and --configs.engine.name torch'
            ) from error
        os.environ.setdefault(GLOO_TIMEOUT, str(patience.library_seconds))  # read by init()
        hvd.init()
        self._hvd, self._patience = hvd, patience
        self._number = next(numbers)
        engines.add(self._number)
        super().__init__(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        channel = None
        if all(os.environ.get(name) for name in STORE):
            address, port = (os.environ[name] for name in STORE)
            scope = f'dgc.beats.{self._number}'
            channel = RendezvousChannel(address, int(port), scope, self.rank, self.size)
        self._watch = watch(self, patience, channel)

    def close(self) -> None:
        """Shut Horovod down, unless another engine uses it."""
        if self.is_closed:
            return
        if self._watch is not None:
            self._watch.stop()
        super().close()
        engines.discard(self._number)
        if not engines:
            self._hvd.shutdown()

    def _duplicate(self) -> Engine:
        return HorovodEngine(self._patience)

    def _label(self, kind: str, tensor: Tensor) -> str:
        """Return the name by which Horovod matches a collective across ranks."""
        return f'dgc.{self._number}.{kind}.{tensor.dtype}.{tensor.numel()}'

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return self._hvd.allreduce_(
            tensor, op=self._hvd.Sum, name=self._label('all_reduce', tensor)
        )

    def _all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self._hvd.allgather(tensor, name=self._label('all_gather', tensor))
        return gathered.view(self.size, -1)

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        # Horovod has no point-to-point messages. An all-to-all in which each rank sends to at most
        # one other does the same; its name leaves out the length, which differs between ranks.
        splits = torch.zeros(self.size, dtype=torch.int32)
        if destination is not None:
            splits[destination] = tensor.numel()
        outgoing = tensor if destination is not None else tensor[:0]
        received, _ = self._hvd.alltoall(
            outgoing, splits=splits, name=f'dgc.{self._number}.send_recv.{tensor.dtype}'
        )
        return received if source is not None else None

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return self._hvd.broadcast_(tensor, root, name=self._label('broadcast', tensor))

    def _barrier(self) -> None:
        # Horovod's own barrier has one name, which two engines cannot use at a time.
        nothing = torch.zeros(1)
        self._hvd.allreduce_(nothing, op=self._hvd.Sum, name=self._label('barrier', nothing))
