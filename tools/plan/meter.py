"""Wrappers that measure what happens inside the path of a bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from dgc.codec import Codec
from dgc.engines import Engine
from dgc.sparse import Sparse

T = TypeVar('T')


class Metered(Engine):
    """Passes all calls to another engine, and measures their processor time.

    Attributes:
        processor: seconds that this thread has spent inside the other engine. For a simulated
            engine they are not those of a real one.
    """

    name = 'metered'
    has_thread = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.rank, engine.size, engine.local_rank, engine.local_size)
        self._engine = engine
        self.processor = 0.0

    def _meter(self, call: Callable[[], T]) -> T:
        before = time.thread_time()
        result = call()
        self.processor += time.thread_time() - before
        return result

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return self._meter(partial(self._engine.all_reduce, tensor))

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return self._meter(partial(self._engine.all_gather, tensor))

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        return self._meter(partial(self._engine.send_recv, tensor, destination, source))

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return self._meter(partial(self._engine.broadcast, tensor, root))

    def _barrier(self) -> None:
        self._meter(self._engine.barrier)


class Counting(Codec):
    """A codec with the codings of another one, which counts messages.

    Attributes:
        handled: number of messages encoded or decoded so far.
    """

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.values, codec.indices)
        self.handled = 0

    def encode(self, sparse: Sparse, seed: int = 0) -> Tensor:
        """See :meth:`Codec.encode`."""
        self.handled += 1
        return super().encode(sparse, seed)

    def decode_all(self, messages: Sequence[Tensor]) -> list[Sparse]:
        """See :meth:`Codec.decode_all`."""
        self.handled += len(messages)
        return super().decode_all(messages)
