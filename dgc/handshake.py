"""What the ranks must agree on before the first byte of a gradient moves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dgc import codec, ops
from dgc.engines.base import Engine, EngineError, as_bytes


class HandshakeError(EngineError):
    """The ranks do not agree on what they are about to train."""


class AgreementError(RuntimeError):
    """The ranks' parameters are not the same any more."""


def describe_parameters(
    named_parameters: Iterable[tuple[str, Tensor]], more: str = ''
) -> dict[str, str]:
    """What a rank is about to train, by aspect: names, shapes, types, and ``more``, any text."""
    parameters = list(named_parameters)
    return {
        'parameter names': '\n'.join(name for name, _ in parameters),
        'parameter shapes': '\n'.join(str(tuple(p.shape)) for _, p in parameters),
        'parameter types': '\n'.join(str(p.dtype) for _, p in parameters),
        'the codec version': str(codec.VERSION),
        # Which round the parameters' update differently.
        'whether the fused kernels are compiled (python -m dgc.ops.build)': kernel_sets(parameters),
        'the configuration': more,
    }


def kernel_sets(parameters: list[tuple[str, Tensor]]) -> str:
    """The names of the kernels that serve the parameters' devices."""
    return ' '.join(sorted({ops.kernels(p.device).__name__ for _, p in parameters}))


def shake_hands(engine: Engine, aspects: Mapping[str, str], device: torch.device | str) -> None:
    """Raise HandshakeError on every rank where any rank differs from rank 0 in any aspect."""
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
    """Everybody's ``raw`` by rank, of the same length on all."""
    ours = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)
    return [row.tobytes() for row in engine.all_gather(ours).cpu().numpy()]


def gather_text(engine: Engine, text: str, device: torch.device | str, limit: int) -> list[str]:
    """Everybody's ``text`` by rank, cut to ``limit`` bytes."""
    raw = text.encode()[:limit].ljust(limit, b'\0')
    rows = gather_bytes(engine, raw, device)
    return [row.rstrip(b'\0').decode(errors='ignore') for row in rows]


def check_agreement(engine: Engine, tensors: Iterable[Tensor]) -> None:
    """Raise AgreementError on every rank where ``tensors`` are not bit-identical on all ranks.

    Every exchange promises that they are. A library that breaks it (collectives on the wrong
    stream, two threads in one group) does so silently, and training goes on with different models.
    """
    digest, device = hashlib.sha256(), torch.device('cpu')
    for tensor in tensors:
        digest.update(as_bytes(tensor).cpu().numpy().tobytes())
        device = tensor.device
    first, *others = gather_bytes(engine, digest.digest(), device)
    for rank, other in enumerate(others, 1):
        if other != first:
            raise AgreementError(f'rank {rank} and rank 0 hold different parameters')


def broadcast_tensors(engine: Engine, tensors: Iterable[Tensor], root: int = 0) -> None:
    """Overwrite ``tensors``, of any type and shape, with those of ``root``.

    They travel as bytes: engines refuse 0-dimensional, bool and some integer tensors.
    """
    for tensor in tensors:
        if tensor.numel():
            sent = engine.broadcast(as_bytes(tensor), root)
            with torch.no_grad():
                tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))


def average_tensors(engine: Engine, tensors: Iterable[Tensor]) -> None:
    """Overwrite floating point ``tensors`` with their mean over the ranks, in one all-reduce.

    For BatchNorm's running statistics, which each rank gathers from its own share of the data.
    Tensors of other types, such as BatchNorm's step count, are left alone.
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not floating or engine.size == 1:
        return
    flat = torch.cat([tensor.detach().float().reshape(-1) for tensor in floating])
    engine.all_reduce(flat).div_(engine.size)
    for tensor, mean in zip(floating, flat.split([t.numel() for t in floating]), strict=True):
        with torch.no_grad():
            tensor.copy_(mean.view(tensor.shape))
