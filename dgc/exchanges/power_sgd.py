"""Low-rank approximation: PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec, MemberSpec
from dgc.codec import Codec
from dgc.exchanges.base import DENSE_ONLY, Context, Exchange, Exchanged, ring_bytes
from dgc.nonfinite import finite
from dgc.sparse import Payload, Sparse
from dgc.state import Entries, PerParameter, Resize


class PowerSGD(Exchange):
    """Approximates each gradient matrix by one of low rank, in one step of subspace iteration.

    For the matrix ``M [n, m]`` of a parameter (its first dimension by all others), Algorithm 1:

        P ← mean(M·Q)        [n, r]   first all-reduce
        P ← orthonormalize(P)
        Q_i ← Mᵀ·P           [m, r]
        Q ← mean(Q_i)                 second all-reduce
        result ← P·Qᵀ,  error ← M - P·Q_iᵀ

    All matrices of a bucket share the two all-reduces. Parameters for which the factors are not
    smaller than the gradient, such as vectors, are summed as they are. ``Q`` starts the next step's
    iteration; it is kept by parameter. The release subtracts ``P·Qᵀ`` instead of the rank's own
    ``P·Q_iᵀ`` from M: equal in the sum over the ranks, but not for each rank.

    All ranks must orthonormalize alike, so they need the same processors and libraries.

    Args:
        rank: ``r``, columns of the factors.

    Raises:
        ValueError: For a rank below 1.
    """

    accepts = DENSE_ONLY
    approximates = True

    def __init__(self, rank: int = 4) -> None:
        if rank < 1:
            raise ValueError(f'the rank of PowerSGD must be at least 1, got {rank}')
        self.rank = rank

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare ``Q`` of each matrix that is approximated."""
        return {'Q': PerParameter(self._initial_factor, Resize.REPLICATED)}

    def writes(self, payload: Payload) -> Payload | None:
        """Return None: factors are summed in float32, without a codec."""
        return None

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return the sum of the ranks' approximations, dense."""
        engine, bucket = context.engine, context.bucket
        factors: dict[str, Tensor] = context.state['Q']
        matrices = dict(self._matrices(selected.values, bucket.spec))
        low_rank = [name for name in matrices if name in factors]
        as_is = [name for name in matrices if name not in factors]

        # 1. P = Σ M·Q over the ranks; the uncompressed parameters share this all-reduce.
        products = [matrices[name] @ factors[name] for name in low_rank]
        products += [matrices[name].clone() for name in as_is]
        sums = all_reduce_together(products, context)
        if not finite(*sums):  # alike on all ranks; on a GPU this waits for the device
            result = Sparse(bucket.total.fill_(torch.nan), None, selected.numel)
            return Exchanged([result], non_finite=True)

        # 2. Orthonormalize: the scale of P has no effect, so the sum serves as the mean.
        columns = {
            name: torch.linalg.qr(total).Q
            for name, total in zip(low_rank, sums[: len(low_rank)], strict=True)
        }

        # 3. Q = Σ Mᵀ·P over the ranks.
        own = {name: matrices[name].T @ columns[name] for name in low_rank}
        sums_of_own = all_reduce_together([own[name] for name in low_rank], context)
        totals = dict(zip(low_rank, sums_of_own, strict=True))

        # 4. The rank's own error, before the result overwrites what may be the same storage.
        residual = torch.zeros_like(selected.values)
        for name, view in self._matrices(residual, bucket.spec):
            if name in columns:
                view.copy_(matrices[name] - columns[name] @ own[name].T)
        uncompressed = dict(zip(as_is, sums[len(low_rank) :], strict=True))
        approximated = bucket.total
        for name, view in self._matrices(approximated, bucket.spec):
            if name in columns:
                view.copy_(columns[name] @ totals[name].T)
                factors[name].copy_(totals[name] / engine.size)
            else:
                view.copy_(uncompressed[name])
        contributions = [Sparse(approximated, None, selected.numel)]
        return Exchanged(contributions, Sparse(residual, None, selected.numel))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of all-reducing ``r·n + r·m`` numbers per matrix, and the rest."""
        first = second = 0
        for member in spec.members:
            if self._is_low_rank(member):
                rows, columns = matrix_of(member.shape)
                first += self._columns(member) * rows
                second += self._columns(member) * columns
            else:
                first += member.numel
        return ring_bytes(first, world_size) + ring_bytes(second, world_size)

    def _columns(self, member: MemberSpec) -> int:
        """Return ``r``, or fewer where a side of the matrix is shorter."""
        return min(self.rank, *matrix_of(member.shape))

    def _is_low_rank(self, member: MemberSpec) -> bool:
        rows, columns = matrix_of(member.shape)
        return len(member.shape) > 1 and self._columns(member) * (rows + columns) < member.numel

    def _initial_factor(self, member: MemberSpec) -> Tensor | None:
        """Draw normal numbers, the same on all ranks."""
        if not self._is_low_rank(member):
            return None
        draw = torch.Generator().manual_seed(zlib.crc32(member.name.encode()))
        _, columns = matrix_of(member.shape)
        return torch.randn(columns, self._columns(member), generator=draw, dtype=torch.float32)

    def _matrices(self, flat: Tensor, spec: BucketSpec) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and its view of ``flat[n]`` as a matrix."""
        for member in spec.members:
            values = flat[member.offset : member.offset + member.numel]
            yield member.name, values.view(matrix_of(member.shape))


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return a parameter's shape as a matrix: its first dimension by all others."""
    if not shape:
        return 1, 1
    return shape[0], math.prod(shape[1:])


def all_reduce_together(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
    """Sum tensors over the ranks in one all-reduce; an empty list needs none."""
    if not tensors:
        return []
    flat = context.engine.all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
