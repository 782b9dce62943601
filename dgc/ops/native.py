"""The kernels in C++, for the CPU. Their source is in csrc/."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dgc.ops import reference
from dgc.ops.contract import FUSED_TYPES, Found, Step, Target, Update, is_aligned
from dgc.sparse import Sparse, indices_of

log = logging.getLogger('dgc')

PLAINLY = 'compressing in plain PyTorch, several times slower'
PLAIN, MOMENTUM, NESTEROV = range(3)  # Rule in csrc/kernels.h
SETTINGS = 4  # of a parameter, kSettings in csrc/updates.h


def load() -> bool:
    """Load the compiled library, which is compiled first where there is none.

    Returns:
        False where it cannot be compiled or read, is damaged, or could have been written by another
        user. One line says why.
    """
    # Imported here, since ``python -m dgc.ops.build`` would warn of a module imported before.
    from dgc.ops.build import BuildError, find
    from dgc.ops.on_demand import build_once

    path, problems = find()
    if path is None and not problems:
        try:
            path = build_once()
        except BuildError as error:
            problems = [str(error)]
    if path is None:
        log.warning('dgc: %s: %s', PLAINLY, '; '.join(problems))
        return False
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        log.warning(
            'dgc: %s: delete %s, which cannot be loaded (%s), and build again', PLAINLY, path, error
        )
        return False
    return True


def accumulate(accumulated: Tensor, update: Update, threshold: float, limit: int) -> Found:
    """Compute ``reference.accumulate`` in one pass over memory."""
    indices, values, count, is_finite = torch.ops.dgc.accumulate(
        accumulated, *_arguments(update), threshold, limit, update.into, update.rounding or ()
    )
    return Found(count, indices, values, is_finite or not update.into)


def collect(values: Tensor, threshold: float, limit: int) -> Found:
    """Compute ``reference.collect`` in one reading pass."""
    indices, chosen, count = torch.ops.dgc.collect(readable(values), threshold, limit)
    return Found(count, indices, chosen)


def sample(accumulated: Tensor, update: Update, positions: Tensor) -> Tensor:
    """Compute ``reference.sample``, reading at ``positions`` alone."""
    arguments = (*_arguments(update), update.rounding or (), readable(positions))
    return torch.ops.dgc.sample(accumulated, *arguments)


def spread(pieces: Sequence[Tensor], contributions: Sequence[Sparse], scale: float) -> None:
    """Compute ``reference.spread`` in one pass, for float32 pieces and sparse contributions."""
    if any(piece.dtype != torch.float32 or not is_aligned(piece) for piece in pieces):
        reference.spread(pieces, contributions, scale)
        return
    indices = [readable(indices_of(contribution)) for contribution in contributions]
    values = [readable(contribution.values) for contribution in contributions]
    torch.ops.dgc.spread(pieces, indices, values, scale)


def step(parameter: Tensor, gradient: Tensor, buffer: Tensor, group: dict[str, Any]) -> None:
    """Compute ``dgc.optim.sgd.step_plainly`` in one pass, for contiguous float32 tensors."""
    torch.ops.dgc.step(
        parameter,
        gradient,
        buffer,
        group['lr'],
        group['momentum'],
        group['weight_decay'],
        group['nesterov'],
    )
    note_written([parameter, buffer])


def apply(
    targets: Sequence[Target],
    contributions: Sequence[Sparse],
    scale: float = 1.0,
    gradient: Tensor | None = None,
) -> None:
    """Compute ``reference.apply`` in one pass over the parameters and their buffers."""
    settings: list[float] = []
    for target in targets:
        settings += target.settings
        settings += [0.0] * (SETTINGS - len(target.settings))
    buffers = [target.buffer for target in targets if target.buffer is not None]
    with torch.no_grad():
        torch.ops.dgc.apply(
            [target.parameter for target in targets],
            buffers,
            [target.step for target in targets],
            settings,
            [readable(indices_of(contribution)) for contribution in contributions],
            [readable(contribution.values) for contribution in contributions],
            scale,
            None if gradient is None else readable(gradient),
        )
    written = [target.parameter for target in targets if target.step is not Step.NONE]
    note_written([*written, *buffers])


def note_written(tensors: Sequence[Tensor]) -> None:
    """Raise the versions of tensors, so that autograd refuses a graph that needs what they were."""
    torch.autograd.graph.increment_version([each for each in tensors if not each.is_inference()])


def finite(tensors: Sequence[Tensor]) -> bool:
    """Compute ``reference.finite`` in one pass that ends soon after a non-finite element."""
    if all(each.dtype in FUSED_TYPES and each.is_contiguous() and is_aligned(each)
           for each in tensors):  # fmt: skip
        return torch.ops.dgc.finite([tensor.view(-1) for tensor in tensors])
    return reference.finite(tensors)


def in_order(indices: Tensor, numel: int) -> bool:
    """Compute ``dgc.codec.indices.in_order_plainly`` in one pass."""
    return torch.ops.dgc.in_order(readable(indices), numel)


def linear_encode(values: Tensor, bits: int, block: int) -> Tensor:
    """Compute ``Linear.encode_plainly`` in two passes over each block."""
    return torch.ops.dgc.linear_encode(readable(values), bits, block)


def qsgd_encode(values: Tensor, bits: int, block: int, first: int, second: int) -> Tensor:
    """Compute ``QSGD.encode_plainly``, with the two keys of its seed."""
    return torch.ops.dgc.qsgd_encode(readable(values), bits, block, first, second)


def linear_decode(section: Tensor, count: int, bits: int, block: int) -> tuple[Tensor, bool]:
    """Compute ``Linear.decode_plainly``, and whether all scales are valid."""
    return torch.ops.dgc.linear_decode(readable(section), count, bits, block)


def elias_fano_encode(indices: Tensor, numel: int, low: int) -> Tensor:
    """Compute ``dgc.codec.elias_fano.encode_plainly`` in one pass over the indices."""
    return torch.ops.dgc.elias_fano_encode(readable(indices), numel, low)


def elias_fano_decode(section: Tensor, numel: int, count: int, low: int) -> tuple[Tensor, int]:
    """Compute ``elias_fano.decode_plainly``, and the number of indices in the section."""
    return torch.ops.dgc.elias_fano_decode(readable(section), numel, count, low)


def is_even(indices: Tensor, numel: int, chunk: int) -> bool:
    """Compute ``dgc.codec.even.is_even_plainly``."""
    return torch.ops.dgc.is_even(readable(indices), numel, chunk)


def even_encode(indices: Tensor, numel: int, chunk: int, length: int) -> Tensor:
    """Compute ``dgc.codec.even.encode_plainly``, which has ``length`` bytes."""
    return torch.ops.dgc.even_encode(readable(indices), numel, chunk, length)


def even_decode(section: Tensor, numel: int, count: int, chunk: int) -> tuple[Tensor, int]:
    """Compute ``even.decode_plainly``, and the first chunk that is damaged; -1 for none."""
    return torch.ops.dgc.even_decode(readable(section), numel, count, chunk)


def cosine(
    source: Tensor, target: Tensor, across: int, left: Tensor, right: Tensor, inverse: bool
) -> None:
    """Compute ``dgc.transforms.dct.exact_product`` of all tiles of a matrix.

    Args:
        source: Flat, of any floating point type.
        target: Flat and as long, float32; overwritten.
        across: Tiles next to each other in a row of the matrix.
        left, right: The cosines of a tile's height and width.
        inverse: Whether ``source`` has tiles one after another, and ``target`` is a matrix.
    """
    torch.ops.dgc.cosine(readable(source.detach().float()), target, across, left, right, inverse)


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor of the same elements as C++ reads them: contiguous and aligned."""
    tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()


def _arguments(update: Update) -> tuple[list[Tensor], Tensor | None, int, float]:
    """Return the gradient, momentum buffer, rule and momentum that the C++ functions take."""
    rule = PLAIN
    if update.momentum_buffer is not None:
        rule = NESTEROV if update.nesterov else MOMENTUM
    gradients = [readable(gradient) for gradient in update.gradients]
    return gradients, update.momentum_buffer, rule, update.momentum
