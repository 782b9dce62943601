"""Error feedback: what each rank keeps of its gradients and adds to later ones.

A memory is a rule without storage: its tensors ``[n]`` live in the bucket, which saves them by
parameter name. ``select`` makes the message of a step in two parts, which a fused kernel may do
in one pass over memory:

    compensate   corrected = residual (or velocity) + gradient
    compress     selected = the part of it that is sent

After the exchange, ``update`` makes the residual of the next step:

    remove_sent  what was delivered leaves the residual
    add_error    quantization error and truncation error return to it

Removal obeys, bit for bit: sent + residual = corrected. SAMomentum has a law of its own.

Some memories can keep their tensors in bfloat16 (``dtype='bfloat16'``), half of the bytes. What
``compensate`` computes in float32 is then rounded at random (``dgc.ops.rounding``), and what is
sent is taken from the rounded numbers. The law above holds for these bit for bit, and

    corrected = residual (or velocity) + gradient + ε,  E[ε] = 0,  |ε| < 2⁻⁷·|corrected|

for each element and step; in the normal range of float32, and of a momentum as well. Seeds are
those of ``Bucket.next_seed``: other ones for each rank, bucket and step, the same on resuming.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.exchanges.base import Exchanged
from dgc.ops import Update
from dgc.ops.rounding import Keys, add_rounded, draws, rounded
from dgc.ops.uniform import keys
from dgc.sparse import Sparse
from dgc.state import Elements, Entries

DTYPES = ('float32', 'bfloat16')


class Memory(ABC):
    """The error feedback of one rank.

    Attributes:
        buffers: Names of the tensors ``[n]`` that a bucket holds for this memory.
        dtype: Their type, 'float32' or 'bfloat16'.
        meaning: What their numbers are, as the name of the memory that defines them; '' for the
            memory's own class. State is loaded by memories of the same meaning only.
        unsent: The one of ``buffers`` in which unsent elements add up; '' for none.
        holds_momentum: The velocity is kept here, so the optimizer must not apply momentum again.
        sends_gradients: What is sent are gradients, with what was left unsent of earlier ones; not
            momenta or velocities, whose mean is no gradient that could be clipped.
        needs_mean: ``update`` reads the mean over the ranks, which no parameter server returns.
        applies_rate: It multiplies gradients by the learning rate.
        feeds_back: Unsent elements and quantization errors are added to later messages.
        continues: It supports a gradient that comes in several parts, each with an exchange
            (``Bucket.continued``): momentum and decay are applied with the first part only.
    """

    buffers: tuple[str, ...] = ()
    dtype = 'float32'
    meaning = ''
    unsent = ''
    holds_momentum = False
    sends_gradients = True
    feeds_back = True
    needs_mean = False
    applies_rate = False
    continues = False

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the tensors of ``buffers``; ranks' residuals add up."""
        return {name: Elements(dtype=getattr(torch, self.dtype)) for name in self.buffers}

    def check(self, momentum: float, nesterov: bool) -> None:
        """Raise ValueError where this memory has no rule for an optimizer's momentum."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError where the result of the exchange means nothing to ``optimizer``."""

    def check_buckets(self, buckets: Sequence[BucketSpec]) -> None:
        """Raise ValueError where this memory cannot serve a division into buckets."""

    def check_clipped_mean(self) -> None:
        """Raise ValueError where ``clip_mean`` cannot clip the mean gradient."""
        if not self.sends_gradients:
            name = type(self).__name__
            raise ValueError(
                f'gradient_clipping.dense_after_mean clips the mean gradient, and {name} sends '
                'momenta: leave dense_after_mean out, or use Residual or MeanMomentum'
            )

    def clip_mean(self, bucket: Bucket, clip: Callable[[Bucket], None]) -> None:
        """Clip the mean gradient in the result of an uncompressed bucket, in place.

        Args:
            bucket: Whose gradients are the result of the exchange.
            clip: Clips the gradients of a bucket.
        """
        clip(bucket)

    @abstractmethod
    def compensate(self, bucket: Bucket) -> Tensor:
        """Add the bucket's gradient to the residual; return the sum, float32 ``[n]``."""

    @abstractmethod
    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Remove ``sent`` from the residual."""

    @abstractmethod
    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """Add quantization and truncation errors to the residual."""

    def renewed(self, bucket: Bucket) -> Sequence[str]:
        """Return the ``buffers`` that ``select`` writes anew, apart from the present ones, where
        the bucket keeps these (``Bucket.renews``).

        It then raises ``NotFiniteError`` where the gradient or a sum is not finite, so that neither
        needs a pass of its own.
        """
        return ()

    def rounding(self, bucket: Bucket) -> Keys | None:
        """Return new keys of the numbers by which tensors are rounded; None for float32."""
        return None if self.dtype == 'float32' else keys(bucket.next_seed())

    def widened(self, bucket: Bucket) -> dict[str, Tensor]:
        """Return the tensors of ``buffers`` in float32: they themselves, or copies."""
        return {name: bucket.buffers[name].float() for name in self.buffers}

    def keep(self, bucket: Bucket, wide: Mapping[str, Tensor]) -> None:
        """Make what became of ``widened`` the tensors of ``buffers``, and round ``wide`` alike."""
        seed = self.rounding(bucket)
        if seed is None:
            return
        of_unsent, of_momentum = draws(seed, torch.arange(bucket.numel, device=bucket.device))
        for name, tensor in wide.items():
            draw = of_unsent if name == self.unsent else of_momentum
            tensor.copy_(bucket.buffers[name].copy_(rounded(tensor, draw)))

    def parts(self, bucket: Bucket, *flats: Tensor) -> Iterator[tuple[bool, tuple[Tensor, ...]]]:
        """Yield whether a gradient begins or goes on (``Bucket.continued``), and its elements.

        Args:
            bucket: Whose gradients are added.
            flats: Of the bucket ``[n]``; each yields a view.
        """
        if not bucket.continued:
            yield True, flats
            return
        for views in zip(*map(bucket.views, flats), strict=True):
            yield views[0][0] not in bucket.continued, tuple(view for _, view in views)

    def add(self, bucket: Bucket, name: str, part: Sparse) -> None:
        """Compute ``buffer += part`` for one of ``buffers``."""
        seed = self.rounding(bucket)
        if seed is None:
            part.add_to(bucket.buffers[name])
        else:
            add_rounded(bucket.buffers[name], part, seed)

    def corrected(self, bucket: Bucket) -> Corrected:
        """Return what ``compensate`` computes, deferred where a fused kernel can compute it."""
        return deferred(bucket, self.compensate(bucket))

    def select(self, bucket: Bucket, compressor: Compressor) -> Sparse:
        """Return this step's message, which is still part of the residual.

        A dense message is the memory's own storage, not a copy.
        """
        density = 1.0 if bucket.density is None else bucket.density
        return compressor.select(self.corrected(bucket), density)

    def commit(self, bucket: Bucket) -> None:
        """Called for every bucket once no rank has skipped the step, before the optimizer's step.

        For what lies outside the state of buckets, which alone is restored where a step is skipped.
        """

    def update(
        self, bucket: Bucket, selected: Sparse, exchanged: Exchanged, result: Sequence[Tensor]
    ) -> None:
        """Compute the residual of the next step.

        Args:
            bucket: Whose state is updated.
            selected: What ``select`` returned.
            exchanged: What was delivered of it, and which errors return.
            result: The mean over the ranks, unless the exchange says otherwise, as flat tensors
                one after another. May be empty where the memory does not declare ``needs_mean``:
                a sparse result is then added up only in ``Bucket.publish``.
        """
        self.remove_sent(bucket, selected if exchanged.sent is None else exchanged.sent)
        if exchanged.error is not None:
            self.add_error(bucket, exchanged.error)


def storage_type(dtype: str | torch.dtype) -> str:
    """Return the name of a memory's ``dtype``.

    Raises:
        ValueError: Where memories are not kept in that type.
    """
    name = str(dtype).removeprefix('torch.')
    if name not in DTYPES:
        raise ValueError(f"a memory's dtype must be one of {list(DTYPES)}, got {name!r}")
    return name


def deferred(bucket: Bucket, residual: Tensor, update: Update | None = None) -> Corrected:
    """Return the corrected gradient of a bucket, with what its compressor remembers."""
    state = bucket.state.get('compressor', {}).get('search')
    return Corrected(residual, update, state, bucket.spec)


def clear(flat: Tensor, sent: Sparse) -> None:
    """``flat[n] ← 0`` at the positions of ``sent``."""
    if sent.indices is None:
        flat.zero_()
    else:
        flat.index_fill_(0, sent.indices, 0.0)


def first_moment_of(optimizer: Optimizer) -> tuple[str, float]:
    """Return an optimizer's name and the first beta1 above 0 of its groups; 0 without one."""
    found = (group.get('betas', (0.0,))[0] for group in optimizer.param_groups)
    return type(optimizer).__name__, next(filter(None, found), 0.0)


def refuse_momentum(name: str, own: str, momentum: float) -> None:
    """Raise ValueError for a momentum of the optimizer beside that of the memory ``name``."""
    if momentum:
        raise ValueError(
            f"{name} has a momentum of its own ({own}) and the optimizer's is {momentum}: "
            "set the optimizer's momentum to 0"
        )
