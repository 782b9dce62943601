"""The idx format of MNIST's files: a magic number, the sizes, then bytes."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from datasets.errors import DatasetError

__all__ = ['find', 'read']

BYTES = 8  # the code of the type uint8


def find(folder: Path, name: str) -> Path | None:
    """The file of this name, or the packed one. None where there is neither."""
    paths = (folder / name, folder / f'{name}.gz')
    return next((path for path in paths if path.is_file()), None)


def read(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Read an array uint8 of an idx file, packed or not.

    Raises:
        DatasetError: Where there is no such file, or it is damaged. It names the file.
    """
    path = find(folder, name)
    if path is None:
        raise _refused(folder, f'{name} is missing, and so is {name}.gz')
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == '.gz' else content
    except (OSError, EOFError, zlib.error) as error:
        raise _refused(folder, f'{path.name} cannot be read ({error})') from error
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, BYTES, dimensions)) or len(content) < header:
        raise _refused(folder, f'{path.name} is no idx file of {dimensions} dimensions')
    sizes = [int(size) for size in np.frombuffer(content[4:header], '>u4')]
    if len(content) != header + math.prod(sizes):
        raise _refused(
            folder,
            f'{path.name} has {len(content) - header} bytes for {" x ".join(map(str, sizes))}',
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes).copy()


def _refused(folder: Path, problem: str) -> DatasetError:
    return DatasetError.about('root', str(folder), problem, 'get the file anew')
