"""Dense inside a machine, sparse between machines."""

from __future__ import annotations

from typing import Any

import torch

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.engines.group import Group
from dgc.exchanges.base import FLOAT32_BYTES, Exchange, Exchanged
from dgc.sparse import Sparse


class Hierarchical(Exchange):
    """Sums each machine's gradients on its first worker, who takes part in another exchange for
    all of them and tells them the result.

    The memory lives with the machine's sum: on its first worker. The gradient of the others is
    zero from then on; what their memories held, such as the momentum of a run without this
    exchange, moves there when a bucket passes for the first time. They take part in an exchange of
    their own, of empty messages, since some engines have all ranks enter every message.

    exchange: between machines.
    local_size: workers of a machine, which have consecutive ranks; by default what the engine says.
    """

    def __init__(self, exchange: Exchange, local_size: int | None = None) -> None:
        if local_size is not None and local_size < 1:
            raise ValueError(f'local_size must be at least 1, got {local_size}')
        self.exchange = exchange
        self.local_size = local_size
        self.selects = exchange.selects
        self.loses = exchange.loses
        self._per_machine = local_size or 1
        self._moved: set[str] = set()

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """See :meth:`Exchange.check`; learns how many workers a machine has."""
        local_size = self._per_machine = self._workers(engine)
        if self.local_size is None:
            ours = torch.tensor([local_size], dtype=torch.int32, device=device)
            sizes = sorted(set(engine.all_gather(ours).view(-1).tolist()))
            if len(sizes) > 1:
                raise ValueError(
                    f'machines have {sizes} workers: start as many on each, or set local_size'
                )
        if engine.size % local_size:
            raise ValueError(
                f'local_size={local_size} does not divide {engine.size} workers: start as many on '
                'every machine, or set another local_size'
            )
        if self.local_size is None and engine.rank % local_size != engine.local_rank:
            raise ValueError(
                f'rank {engine.rank} is number {engine.local_rank} of the {local_size} on its '
                'machine: give the workers of a machine consecutive ranks'
            )
        self.exchange.check(self._peers(engine), device)

    def prepare(self, bucket: Bucket, engine: Engine, healthy: bool) -> bool:
        """The machine's sum becomes its first worker's gradient, and the others' zero. It is of the
        gradient's type, so half precision rounds it."""
        machine = self._machine(engine)
        machine.reduce(bucket.gradient)
        if bucket.name not in self._moved:
            self._moved.add(bucket.name)
            for flat in bucket.buffers.values():
                machine.reduce(flat)
                if machine.rank:
                    flat.zero_()
        if machine.rank:
            bucket.gradient.zero_()
            return True
        return bool(bucket.gradient.isfinite().all())

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """The sum over the machines, dense; left out is what the exchange between them did."""
        exchanged = self.exchange.sum(bucket, sparse, codec, self._peers(engine))
        total = bucket.total.zero_()
        for part in exchanged.parts:
            part.add_to(total)
        self._machine(engine).broadcast(total, root=0)
        return exchanged._replace(parts=[Sparse(total, None, bucket.numel)])

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """Between machines only."""
        return self.exchange.bytes_sent(numel, k, codec, max(workers // self._per_machine, 1))

    def bytes_inside(self, numel: int) -> float:
        """Bytes that a machine's first worker sends the others: ``4n`` to each whom it tells."""
        return FLOAT32_BYTES * numel * (self._per_machine - 1).bit_length()

    def state_dict(self) -> dict[str, Any]:
        """That of the exchange between machines."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave; memories may lie elsewhere now."""
        self.exchange.load_state_dict(state)
        self._moved.clear()

    def _workers(self, engine: Engine) -> int:
        return engine.local_size if self.local_size is None else self.local_size

    def _machine(self, engine: Engine) -> Group:
        """The workers of this one's machine."""
        first = engine.rank - engine.rank % self._workers(engine)
        return Group(engine, range(first, first + self._workers(engine)))

    def _peers(self, engine: Engine) -> Group:
        """Those of the same number on every machine."""
        size = self._workers(engine)
        return Group(engine, range(engine.rank % size, engine.size, size))
