"""The engine over Horovod, which uses gloo, MPI or NCCL, as it was built and started."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.engines.base import Engine, EngineError


class HorovodEngine(Engine):
    """Horovod's collectives, blocking, one at a time.

    Horovod matches collectives across ranks by name and caches the negotiation for names that it
    has seen. Only one collective is ever pending, so one name per kind, type and length is enough,
    and is found in that cache in every step.

    Raises:
        EngineError: Horovod is not installed.
    """

    name = 'horovod'

    def __init__(self) -> None:
        try:
            import horovod.torch as hvd
        except ImportError as error:
            raise EngineError(
                f'engine horovod is not installed ({error}): run tools/install_horovod.sh, '
                'or start with torchrun and --configs.engine.name torch'
            ) from error
        hvd.init()
        self._hvd = hvd
        super().__init__(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())

    def close(self) -> None:
        """Shut Horovod down."""
        super().close()
        self._hvd.shutdown()

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=label('all_reduce', tensor))

    def _all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self._hvd.allgather(tensor, name=label('all_gather', tensor))
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
            outgoing, splits=splits, name=f'dgc.send_recv.{tensor.dtype}'
        )
        return received if source is not None else None

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return self._hvd.broadcast_(tensor, root, name=label('broadcast', tensor))

    def _barrier(self) -> None:
        self._hvd.barrier()


def label(kind: str, tensor: Tensor) -> str:
    """Return the name by which Horovod matches a collective across ranks."""
    return f'dgc.{kind}.{tensor.dtype}.{tensor.numel()}'
