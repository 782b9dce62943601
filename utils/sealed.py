"""A file of a checkpoint: the archive of torch.save, and a seal by which damage is found.

    archive    torch.save of the state; its entry 'manifest' says what the file holds, and has a
               checksum of every tensor
    seal       40 bytes: SHA-256 of the archive, and MAGIC

``torch.load(path, weights_only=True)`` reads such a file too, without checking it. It is torch.save
and not safetensors since a state is nested, with numbers as keys and plain values between tensors,
for which safetensors has no place but a text; and no further library is needed.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from utils.files import replacing

MAGIC = b'dgcseal2'
LENGTH = hashlib.sha256().digest_size + len(MAGIC)
FORMAT = 2  # of the manifest; files of format 1 had neither manifest nor seal
BLOCK = 2**20  # bytes that are read at a time


class Unusable(Exception):
    """A file that cannot be used. The message follows the file's name: 'is damaged'."""


def plain(value: Any, tensor: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Any:
    """``value`` in types that ``torch.load(weights_only=True)`` reads, such as no NumPy scalars.

    Args:
        value: Dictionaries, lists, tuples, tensors and plain values.
        tensor: Maps each tensor.
    """
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(item, tensor) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a named tuple too, whose class torch.load refuses
        kind = list if isinstance(value, list) else tuple
        return kind(plain(item, tensor) for item in value)
    return value


def snapshot(value: Any) -> Any:
    """A copy of ``value`` in the memory of the CPU, which later steps do not change."""
    return plain(value, lambda tensor: tensor.detach().to('cpu', copy=True))


def tensors(value: Any, path: str = '') -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dictionaries, lists and tuples, by their path: 'model.conv.weight'."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from tensors(item, f'{path}.{key}' if path else str(key))


def checksum(tensor: Tensor) -> str:
    """A digest of the bytes of a tensor, its type and its shape."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(f'{tensor.dtype} {tuple(tensor.shape)}'.encode())
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


class Hashed:
    """A file to write, which computes the SHA-256 of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write ``data``."""
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()


def write(state: dict[str, Any], manifest: dict[str, Any], path: Path) -> None:
    """Replace ``path``, atomically: a process killed meanwhile leaves the old file.

    Args:
        state: Tensors and plain values.
        manifest: What the file holds, in plain values; format and checksums are added.
        path: The file.

    Raises:
        WriteError: If it cannot be written.
    """
    state = plain(state)
    checksums = {name: checksum(tensor) for name, tensor in tensors(state)}
    manifest = {'format': FORMAT, **plain(manifest), 'checksums': checksums}
    with replacing(path, path.with_suffix('.partial')) as file:
        hashed = Hashed(file)
        torch.save({**state, 'manifest': manifest}, cast('IO[bytes]', hashed))
        file.write(hashed.digest.digest() + MAGIC)


def read(path: Path) -> dict[str, Any]:
    """The state in ``path``, checked; with its manifest, which files of earlier versions lack.

    Raises:
        Unusable: If the file is missing, damaged, or of a later version.
    """
    if not path.is_file():
        raise Unusable('is missing')
    try:
        sealed = is_intact(path)
    except OSError as error:
        raise Unusable(f'cannot be read ({error.strerror or error})') from error
    try:
        if sealed is None and (record := zipfile.ZipFile(path).testzip()):
            raise Unusable(f'is damaged ({record})')  # the archive's own checksums
        state = torch.load(path, map_location='cpu', weights_only=True)
        is_cut = sealed is None and 'manifest' in state
        name = damaged_tensor(state)
    except Unusable:
        raise
    except Exception as error:  # torch raises errors of many types for a damaged archive
        raise Unusable('is damaged') from error
    if is_cut or name or sealed is False:
        raise Unusable(f'is damaged ({name})' if name else 'is damaged')
    if sealed and state['manifest']['format'] > FORMAT:
        raise Unusable(f'is of a later version (format {state["manifest"]["format"]})')
    return state


def is_intact(path: Path) -> bool | None:
    """Whether the seal of a file is that of its content; None where it has none."""
    length = path.stat().st_size - LENGTH
    digest = hashlib.sha256()
    with path.open('rb') as file:
        if length < 0:
            return None
        for start in range(0, length, BLOCK):
            digest.update(file.read(min(BLOCK, length - start)))
        seal = file.read()
    return seal == digest.digest() + MAGIC if seal.endswith(MAGIC) else None


def damaged_tensor(state: dict[str, Any]) -> str:
    """The path of the first tensor that differs from its checksum; '' where none does."""
    checksums = state.get('manifest', {}).get('checksums', {})
    found = dict(tensors({key: item for key, item in state.items() if key != 'manifest'}))
    for name, expected in checksums.items():
        if name not in found or checksum(found[name]) != expected:
            return str(name)
    return ''
