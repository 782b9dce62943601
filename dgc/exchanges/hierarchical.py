"""Dense inside a machine, sparse between machines."""

from __future__ import annotations

import torch

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.engines.group import Group
from dgc.exchanges.base import (
    FLOAT32_BYTES,
    Context,
    Exchange,
    Exchanged,
    Scale,
    starts_with_nan,
)
from dgc.sparse import Payload, Sparse
from dgc.state import Entries, Values


class Hierarchical(Exchange):
    """Sums each machine's gradients on its first rank, which takes part in another exchange on
    behalf of the machine and broadcasts the result inside it.

    Error feedback acts on the machine's sum, in the memory of its first rank. The gradient of the
    others is zero from then on; what their memories held, such as the momentum of a run without
    this exchange or on other machines, is added to the first rank's when a bucket passes for the
    first time, and where an uncompressed phase has ended. The others take part in an exchange of
    empty messages among themselves, since some engines require all ranks to enter every message.

    Args:
        exchange: Between machines.
        local_size: Ranks of a machine, which must be consecutive; by default the engine's.

    Raises:
        ValueError: For a local_size below 1, or an exchange whose result is no sum.
    """

    def __init__(self, exchange: Exchange, local_size: int | None = None) -> None:
        if local_size is not None and local_size < 1:
            raise ValueError(f'local_size must be at least 1, got {local_size}')
        if exchange.scale is not Scale.WORLD_SIZE:
            raise ValueError(
                f'{type(exchange).__name__} gives no sum, so it cannot go between machines: choose '
                'an exchange that sums'
            )
        self.exchange = exchange
        self.local_size = local_size
        self.accepts, self.selects, self.loses = exchange.accepts, exchange.selects, exchange.loses
        self.approximates, self.unbiased = exchange.approximates, exchange.unbiased
        self.recodes, self.feeds_back = exchange.recodes, exchange.feeds_back
        self._per_machine = local_size or 1

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the inner exchange's state, and when memories were moved last."""
        return {**self.exchange.state_for(spec), 'moved': Values()}

    def writes(self, payload: Payload) -> Payload | None:
        """Return the payload that the exchange between machines encodes."""
        return self.exchange.writes(payload)

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """Check the ranks of the machines; also looks up how many a machine has."""
        local_size = self._per_machine = self._workers(engine)
        places: list[list[int]] = []
        if self.local_size is None:  # gathered, so that all ranks refuse alike
            ours = torch.tensor([engine.local_rank, local_size], dtype=torch.int32, device=device)
            places = engine.all_gather(ours).tolist()
            sizes = sorted({size for _, size in places})
            if len(sizes) > 1:
                raise ValueError(
                    f'machines have {sizes} ranks: start as many on each, or set local_size'
                )
        if engine.size % local_size:
            raise ValueError(
                f'local_size={local_size} does not divide {engine.size} ranks: start as many on '
                'every machine, or set another local_size'
            )
        for rank, (local_rank, _) in enumerate(places):
            if rank % local_size != local_rank:
                raise ValueError(
                    f'rank {rank} is number {local_rank} of the {local_size} on its machine: give '
                    'the processes of a machine consecutive ranks'
                )
        self.exchange.check(self._peers(engine), device)

    def prepare(self, bucket: Bucket, engine: Engine, is_finite: bool) -> bool:
        """Replace the first rank's gradient by the machine's sum, and the others' by zeros.

        The sum is computed in the gradient's type, so half precision rounds it.
        """
        machine = self._machine(engine)
        machine.reduce(bucket.gradient)
        moved = bucket.state['exchange']['moved']
        # After an uncompressed phase MeanMomentum has the momentum of the mean on all ranks.
        present = {'ranks': machine.size, 'is_dense': bucket.density is None}
        if moved != present:
            moved.clear()
            moved.update(present)
            for flat in bucket.buffers.values():
                wide = flat.float()  # of bfloat16 a copy
                machine.reduce(wide)
                flat.copy_(wide)
                if machine.rank:
                    flat.zero_()
        if machine.rank:
            bucket.gradient.zero_()
            return True
        return bool(bucket.gradient.isfinite().all())

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return the sum over the machines, dense; the error is the inner exchange's."""
        bucket, machine = context.bucket, self._machine(context.engine)
        exchanged = self.exchange.reduce(selected, context.within(self._peers(context.engine)))
        first, *others = exchanged.contributions
        # A dense contribution may lie in the bucket's total already.
        dense = first.is_dense
        total = bucket.copy_to_total(first.values) if dense else first.add_to(bucket.total.zero_())
        for part in others:
            part.add_to(total)
        if exchanged.non_finite:
            total[0] = torch.nan  # the inner exchange may report it at another element
        machine.broadcast(total, root=0)
        # The other ranks' exchange of empty messages saw no NaN: the broadcast sum shows it.
        contributions = [Sparse(total, None, bucket.numel)]
        return exchanged._replace(
            contributions=contributions, non_finite=starts_with_nan(contributions)
        )

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes that a machine's first rank sends to other machines."""
        machines = max(world_size // self._per_machine, 1)
        return self.exchange.bytes_sent(spec, k, codec, machines)

    def bytes_inside(self, numel: int) -> float:
        """Return the bytes that a machine's first rank sends inside it: ``4n`` to each child of the
        broadcast tree."""
        return FLOAT32_BYTES * numel * (self._per_machine - 1).bit_length()

    def _workers(self, engine: Engine) -> int:
        return engine.local_size if self.local_size is None else self.local_size

    def _machine(self, engine: Engine) -> Group:
        """Return the ranks of this rank's machine."""
        first = engine.rank - engine.rank % self._workers(engine)
        return Group(engine, range(first, first + self._workers(engine)))

    def _peers(self, engine: Engine) -> Group:
        """Return the ranks of the same local number on every machine."""
        size = self._workers(engine)
        return Group(engine, range(engine.rank % size, engine.size, size))
