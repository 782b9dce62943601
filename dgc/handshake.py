"""Comparison of the ranks before training, and of their parameters during training."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dgc import codec, ops
from dgc.engines.base import Engine, EngineError, as_bytes

CHUNK = 2**26  # bytes of a broadcast of a saved state


class HandshakeError(EngineError):
    """The ranks differ in parameters, code or configuration, so they cannot train together."""


class AgreementError(RuntimeError):
    """The ranks' parameters are no longer bit-identical."""


def describe_parameters(
    named_parameters: Iterable[tuple[str, Tensor]], more: str = ''
) -> dict[str, str]:
    """Return what the ranks must have in common, as texts that ``shake_hands`` compares.

    Args:
        named_parameters: The model's parameters, in the order of the model.
        more: Any text, such as the configuration.

    Returns:
        Aspect, as named in error messages → text.
    """
    parameters = list(named_parameters)
    return {
        'parameter names': '\n'.join(name for name, _ in parameters),
        'parameter shapes': '\n'.join(str(tuple(p.shape)) for _, p in parameters),
        'parameter types': '\n'.join(str(p.dtype) for _, p in parameters),
        'the codec version': str(codec.VERSION),
        # Fused and plain kernels round the parameters' update differently.
        'whether the fused kernels are compiled (python -m dgc.ops.build)': kernel_sets(parameters),
        'the configuration': more,
    }


def kernel_sets(parameters: list[tuple[str, Tensor]]) -> str:
    """Return the names of the kernel modules that the parameters' devices use."""
    return ' '.join(sorted({ops.kernels(p.device).__name__ for _, p in parameters}))


def shake_hands(engine: Engine, aspects: Mapping[str, str], device: torch.device | str) -> None:
    """Check that all ranks have the same aspects. A collective.

    Args:
        engine: Carries the digests.
        aspects: Name → text, with the same names on all ranks.
        device: Of the tensors that the engine carries.

    Raises:
        HandshakeError: On all ranks, where a rank differs from rank 0.
    """
    # Digests are gathered instead of the texts: they are short and have the same length everywhere.
    digests = [hashlib.sha256(text.encode()).digest() for text in aspects.values()]
    first, *others = gather_bytes(engine, b''.join(digests), device)
    length = len(digests[0])
    for rank, other in enumerate(others, 1):
        for number, aspect in enumerate(aspects):
            part = slice(number * length, (number + 1) * length)
            if other[part] != first[part]:
                raise HandshakeError(
                    f'rank {rank} and rank 0 differ in {aspect}: '
                    'start all ranks with the same code, configuration and command line'
                )


def gather_bytes(engine: Engine, raw: bytes, device: torch.device | str) -> list[bytes]:
    """Return every rank's ``raw``, in order of rank; the length must be the same on all ranks."""
    ours = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)
    return [row.tobytes() for row in engine.all_gather(ours).cpu().numpy()]


def gather_text(engine: Engine, text: str, device: torch.device | str, limit: int) -> list[str]:
    """Return every rank's ``text``, in order of rank, each cut to ``limit`` bytes of UTF-8."""
    raw = text.encode()[:limit].ljust(limit, b'\0')
    rows = gather_bytes(engine, raw, device)
    return [row.rstrip(b'\0').decode(errors='ignore') for row in rows]


def gather_states(engine: Engine, state: Any, device: torch.device | str) -> list[Any]:
    """Return every rank's ``state`` on the CPU, in order of rank. A collective.

    Args:
        engine: Carries each state as the bytes of a file, in broadcasts of at most ``CHUNK`` bytes.
        state: Tensors and plain values in dictionaries, lists and tuples; of any size on each rank.
        device: Of the tensors that the engine carries.
    """
    file = io.BytesIO()
    torch.save(state, file)
    ours = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    lengths = [
        int.from_bytes(each, 'little')
        for each in gather_bytes(engine, len(ours).to_bytes(8, 'little'), device)
    ]
    states = []
    for root, length in enumerate(lengths):
        whole = ours if root == engine.rank else torch.empty(length, dtype=torch.uint8)
        for chunk in whole.split(CHUNK):
            sent = engine.broadcast(chunk.to(device, copy=True), root)
            if root != engine.rank:
                chunk.copy_(sent)
        received = io.BytesIO(whole.numpy().data)
        states.append(torch.load(received, map_location='cpu', weights_only=True))
    return states


def check_agreement(
    engine: Engine, named_tensors: Iterable[tuple[str, Tensor]], where: str = ''
) -> None:
    """Check that tensors are bit-identical on all ranks. A collective.

    Every exchange guarantees it. An error in a library beneath (collectives on the wrong stream,
    two threads in one group) breaks it silently, and each rank would then train a different model.

    Args:
        engine: Carries a digest of each rank's tensors, and one of each tensor where they differ.
        named_tensors: With their names, in the same order on all ranks.
        where: Follows in the message.

    Raises:
        AgreementError: On all ranks, with the first tensor that differs, and the rank whose tensor
            is not that of most ranks.
    """
    digests, device = {}, torch.device('cpu')
    for name, tensor in named_tensors:
        digests[name] = hashlib.sha256(as_bytes(tensor).cpu().numpy().tobytes()).digest()
        device = tensor.device
    whole = hashlib.sha256(b''.join(digests.values())).digest()
    if len({*gather_bytes(engine, whole, device)}) == 1:
        return
    ranks = gather_bytes(engine, b''.join(digests.values()), device)
    for number, name in enumerate(digests):
        part = slice(number * len(whole), (number + 1) * len(whole))
        found = [own[part] for own in ranks]
        if len({*found}) > 1:
            usual = max(found, key=found.count)  # of several, that of the lowest rank
            other = next(rank for rank, digest in enumerate(found) if digest != usual)
            raise AgreementError(
                f'rank {other} and rank {found.index(usual)} hold different values of {name}{where}'
            )


def broadcast_tensors(engine: Engine, tensors: Iterable[Tensor], root: int = 0) -> None:
    """Overwrite ``tensors`` with those of rank ``root``. A collective.

    Args:
        engine: Carries them.
        tensors: Of any type and shape, in the same order on all ranks.
        root: The rank whose values all ranks receive.
    """
    for tensor in tensors:
        if tensor.numel():
            # Sent as bytes, since engines refuse 0-dimensional, bool and some integer tensors.
            sent = engine.broadcast(as_bytes(tensor), root)
            with torch.no_grad():
                tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))


def average_tensors(engine: Engine, tensors: Iterable[Tensor]) -> None:
    """Overwrite floating-point ``tensors`` with their mean over the ranks, in one all-reduce.

    For BatchNorm's running statistics, which each rank computes from its own part of the data.
    Tensors of other types, such as BatchNorm's step count, are not changed. The mean is computed in
    float64, and so that no sum of finite numbers overflows.

    Args:
        engine: Sums them.
        tensors: In the same order on all ranks.
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not floating or engine.size == 1:
        return
    flat = torch.cat([tensor.detach().double().reshape(-1) for tensor in floating])
    # By a power of two of at least the world size, which rounds nothing, before the sum.
    scale = 2.0 ** -(engine.size - 1).bit_length()
    engine.all_reduce(flat.mul_(scale)).div_(engine.size * scale)
    for tensor, mean in zip(floating, flat.split([t.numel() for t in floating]), strict=True):
        with torch.no_grad():
            tensor.copy_(mean.view(tensor.shape))
