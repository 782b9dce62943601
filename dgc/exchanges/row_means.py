"""One bit per element and two means per row: 1-bit SGD (Seide et al., Interspeech 2014)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec, CodecError
from dgc.codec.raw import pack, typed, unpack
from dgc.exchanges.base import DENSE_ONLY, Context, Exchange, Exchanged, starts_with_nan
from dgc.sparse import Payload, Sparse
from dgc.transforms.blocks import matrix_shape

MEANS = 8  # bytes of the two means of a row, float32 each


class RowMeans(Exchange):
    """An all-gather of signs, each worth the mean of the elements of its sign in its row.

    A parameter is a matrix, its first dimension by all others; a vector is one row. A row holds the
    weights into one unit: a column in the paper's layout. For the elements x of a row,

        Q(x) = mean of x over x ≥ 0, where x ≥ 0;  mean of x over x < 0, elsewhere

    which of all pairs of values has the least squared error. The message is the pair of each row,
    then one bit per element: the codec has no part in it. The rows are those of the bucket's
    parameters, so a fixed length of blocks would not do.

    The paper sends a row's share to an owner that rounds the sum again, with an error of its own;
    here every rank receives every message, and nothing is rounded twice.
    """

    accepts = DENSE_ONLY
    approximates = True

    def writes(self, payload: Payload) -> Payload | None:
        """Return None: no codec is involved."""
        return None

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return all ``P`` decoded messages; the error is this rank's quantization error."""
        spec, engine = context.bucket.spec, context.engine
        gathered = engine.all_gather(encode(selected.values, spec))
        parts = [Sparse(decode(part, spec), None, spec.numel) for part in gathered]
        error = Sparse(selected.values - parts[engine.rank].values, None, spec.numel)
        return Exchanged(parts, error, non_finite=starts_with_nan(parts))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``(P-1)·(8·rows + n/8)``."""
        return (world_size - 1) * message_bytes(spec)


def encode(values: Tensor, spec: BucketSpec) -> Tensor:
    """Write float32 ``values[n]`` as uint8: the rows' means, then the signs, lowest bit first.

    The mean over no elements is 0. Both means of a row with a NaN are NaN. Sums are float64, which
    float32 values cannot overflow.
    """
    pairs = []
    for matrix in matrices(values, spec):
        count = (matrix >= 0).sum(1)
        above = matrix.clamp(min=0).sum(1, dtype=torch.float64) / count.clamp(min=1)
        below = matrix.clamp(max=0).sum(1, dtype=torch.float64)
        below /= (matrix.shape[1] - count).clamp(min=1)
        pairs.append(torch.stack([above, below], 1).float())
    means = torch.cat(pairs).view(-1)
    return torch.cat([means.view(torch.uint8), pack((values >= 0).to(torch.uint8), 1)])


def decode(message: Tensor, spec: BucketSpec) -> Tensor:
    """Read float32 ``[n]`` from what ``encode`` wrote.

    Raises:
        CodecError: The message has another length.
    """
    if len(message) != message_bytes(spec):
        raise CodecError(
            f'a message of {spec.name} has {message_bytes(spec)} bytes, received {len(message)}'
        )
    end = MEANS * rows(spec)
    means = typed(message[:end], torch.float32).view(-1, 2)
    values = unpack(message[end:], 1)[: spec.numel].to(torch.float32)
    begin = 0
    for matrix in matrices(values, spec):
        above, below = means[begin : begin + len(matrix)].unsqueeze(2).unbind(1)
        matrix.copy_(torch.where(matrix.bool(), above, below))
        begin += len(matrix)
    return values


def matrices(flat: Tensor, spec: BucketSpec) -> Iterator[Tensor]:
    """Yield each parameter's view of ``flat[n]`` as a matrix."""
    for member in spec.members:
        values = flat[member.offset : member.offset + member.numel]
        yield values.view(matrix_shape(member.shape))


def rows(spec: BucketSpec) -> int:
    """Return the number of rows of all parameters of a bucket."""
    return sum(matrix_shape(member.shape)[0] for member in spec.members)


def message_bytes(spec: BucketSpec) -> int:
    """Return the length of a message in bytes."""
    return MEANS * rows(spec) + -(-spec.numel // 8)
