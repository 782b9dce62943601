"""Single process: collectives are the identity."""

from __future__ import annotations

from torch import Tensor

from dgc.engines.base import Engine


class LocalEngine(Engine):
    """World size 1: compression, codec and memory run as in a larger job; no bytes are sent."""

    name = 'local'
    has_thread = False

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return tensor[None]

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        if (destination, source) not in ((None, None), (0, 0)):
            raise ValueError(
                f'rank 0 is alone: it cannot send to {destination} or receive from {source}'
            )
        return tensor.clone() if source == 0 else None

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return tensor

    def _barrier(self) -> None:
        pass
