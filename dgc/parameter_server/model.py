"""A model in flat tensors, as server and workers hold it, and the server's records of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc.buckets import Bucket, part_of
from dgc.corrected import Corrected
from dgc.handshake import describe_parameters
from dgc.parameter_server import protocol
from dgc.parameter_server.composition import Asynchronous
from dgc.sparse import Sparse

ASPECTS = ('parameter names', 'parameter shapes', 'parameter types', 'the codec version')


@torch.no_grad()
def flatten(buckets: Sequence[Bucket]) -> list[Tensor]:
    """Copy the parameters of each bucket into one float32 ``[n]``, of which they become views.

    An answer is then added in one call per bucket, by the same arithmetic on server and worker.
    """
    flats = []
    for bucket in buckets:
        flat = torch.cat([member.parameter.reshape(-1) for member in bucket.members])
        for member in bucket.members:
            member.parameter.data = part_of(flat, member.offset, member.parameter)
        flats.append(flat)
    return flats


def apply_answer(values: Tensor, answer: Sparse) -> None:
    """Add a sparse answer to ``values[n]``, or replace them by a dense one, in place.

    The server's record and the worker's parameters go through the same two calls, so that they stay
    equal bit for bit, on any device.
    """
    there = answer.values.to(values.device)
    if answer.indices is None:
        values.copy_(there)
    else:
        answer._replace(values=there, indices=answer.indices.to(values.device)).add_to(values)


class Model:
    """θ, and for each worker slot w the record θ_w: float32 ``[n]`` per bucket, on the CPU.

    On an update, θ ← θ − update. The answer is the top part of θ − θ_w as its codec delivers it,
    and θ_w ← θ_w + answer. The worker adds the same bytes to its parameters, which therefore equal
    θ_w bit for bit. The unsent rest stays in θ − θ_w. Where the answer would be dense, it is θ
    itself, and θ_w ← θ.

    Attributes:
        buckets: What the buckets hold.
        flats: θ, by bucket.
        records: θ_w, by worker slot and bucket.
    """

    def __init__(self, buckets: Sequence[Bucket], composition: Asynchronous) -> None:
        self.flats = flatten(buckets)
        self.records: dict[int, list[Tensor]] = {}
        self.buckets = buckets
        self._composition = composition
        self._scratch = [torch.empty_like(values) for values in self.flats]
        # What the secondary compressor remembers, by worker slot and bucket.
        self._searches: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}

    @property
    def numels(self) -> list[int]:
        """Elements of each bucket."""
        return [len(values) for values in self.flats]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return the parameters' names, and views of θ in their shapes."""
        for bucket, values in zip(self.buckets, self.flats, strict=True):
            yield from bucket.views(values)

    def start_record(self, slot: int) -> bytes:
        """Set θ_w ← θ for a worker that joins; returns θ as dense sections."""
        self.records[slot] = [values.clone() for values in self.flats]
        parts = (Sparse(values, None, len(values)) for values in self.records[slot])
        return b''.join(protocol.encode_section(part, self._composition.codec) for part in parts)

    def apply_update(self, update: Sequence[Sparse], factor: float) -> None:
        """Compute ``θ ← θ − factor · update``."""
        for values, part in zip(self.flats, update, strict=True):
            part.add_to(values, alpha=-factor)

    def answer(
        self, slot: int, step: int, steps_per_epoch: int, places: Sequence[int] | None = None
    ) -> tuple[bytes, int]:
        """Select the answer for one worker and add it to its record.

        Args:
            slot: The worker's slot.
            step: Steps of one worker, which the schedule of the density follows.
            steps_per_epoch: Steps of one worker in an epoch.
            places: Indices of the buckets to answer; None for all.

        Returns:
            The body of the ANSWER, and the number of elements in it.
        """
        codec, body, elements = self._composition.codec, [], 0
        for place in range(len(self.flats)) if places is None else places:
            bucket, values = self.buckets[place], self.flats[place]
            record, scratch = self.records[slot][place], self._scratch[place]
            compressor = self._composition.download_compressor(bucket, step, steps_per_epoch)
            difference = torch.sub(values, record, out=scratch)  # θ − θ_w
            state = self._searches.setdefault((slot, bucket.spec.names), {})
            density = 1.0 if bucket.density is None else bucket.density
            corrected = Corrected(difference, state=state, spec=bucket.spec)
            part = compressor.select(corrected, density)
            if part.is_dense or self._composition.prefers_dense(part.numel, len(part.values)):
                part = Sparse(values, None, part.numel)
            section = protocol.encode_section(part, codec)
            # Decoded again, because the worker receives the values as the codec rounds them.
            (delivered,) = protocol.decode_sections(section, [part.numel], codec)
            apply_answer(record, delivered)  # θ_w ← θ_w + answer
            body.append(section)
            elements += len(part.values)
        return b''.join(body), elements


class FloatBuffers:
    """A model's floating-point buffers, such as BatchNorm's running statistics, as one vector."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        self._tensors = [tensor for tensor in buffers if tensor.is_floating_point()]
        self.numel = sum(tensor.numel() for tensor in self._tensors)

    def read(self) -> Tensor:
        """Return a copy, float32 ``[numel]`` on the CPU."""
        parts = [tensor.detach().float().cpu().reshape(-1) for tensor in self._tensors]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float32)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Overwrite the buffers with ``values[numel]``."""
        parts = values.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def agreement_digests(
    named: list[tuple[str, Parameter]], buffers: int, configuration: str, rounds: str = ''
) -> dict[str, bytes]:
    """Return a SHA-256 digest of each aspect that a worker and its server must have in common.

    Args:
        named: All parameters of the model. The values of frozen ones are an aspect, since frozen
            parameters are never sent.
        buffers: Elements of the model's floating-point buffers.
        configuration: Any text.
        rounds: What they must have in common of rounds of local steps; '' where there are none.
    """
    frozen = [protocol.tensor_to_bytes(p.reshape(-1)) for _, p in named if not p.requires_grad]
    described = describe_parameters(named)
    texts = {aspect: described[aspect].encode() for aspect in ASPECTS} | {
        'the number of buffers': str(buffers).encode(),
        'the frozen parameters': b''.join(frozen),
        'the configuration': configuration.encode(),
        'the rounds of local steps': rounds.encode(),
    }
    return {aspect: hashlib.sha256(text).digest() for aspect, text in texts.items()}
