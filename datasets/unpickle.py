"""Read pickled dictionaries of NumPy arrays without executing other code that a pickle names.

A pickle names functions for the reader to call. Here every name outside a short table is refused,
and the names in the table are mapped to the substitutes below, so that unchecked bytes do not reach
NumPy's own unpickling either.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ['load']

KINDS = 'iuf'  # integers and floats: no objects, no records


def load(path: Path) -> dict[str, Any]:
    """Read the dictionary in a file, with read-only arrays; also from a pickle of Python 2.

    Raises:
        pickle.UnpicklingError: For a name that is not in the table, a damaged or truncated file, or
            anything but a dictionary.
    """
    with open(path, 'rb') as file:
        try:
            entries = _Unpickler(file, encoding='latin1').load()
        except pickle.UnpicklingError:
            raise
        except Exception as error:  # damaged bytes can raise almost any type
            raise pickle.UnpicklingError(f'damaged ({type(error).__name__}: {error})') from error
    if not isinstance(entries, dict):
        raise pickle.UnpicklingError(f'holds a {type(entries).__name__}, not a dictionary')
    return {
        str(name): value.array if isinstance(value, _Array) else value
        for name, value in entries.items()
    }


class _DType:
    """Replaces numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.dtype = np.dtype(code)
        if self.dtype.kind not in KINDS:
            raise pickle.UnpicklingError(f'an array of {self.dtype} is refused')

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Replaces numpy.ndarray; filled by __setstate__, or by `_from_buffer` (protocol 5)."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        self._fill(data, dtype, shape, 'F' if fortran else 'C')

    def _fill(self, data: str | bytes, dtype: _DType, shape: tuple[int, ...], order: Any) -> None:
        data = data.encode('latin1') if isinstance(data, str) else bytes(data)
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order=order)


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(
    data: bytes, dtype: _DType, shape: tuple[int, ...], order: str, *_: object
) -> _Array:
    array = _Array()
    array._fill(data, dtype, shape, order)
    return array


def _latin1(text: str, _: str) -> bytes:
    return text.encode('latin1')


ALLOWED = {
    'numpy.ndarray': _Array,
    'numpy.dtype': _DType,
    'numpy.core.multiarray._reconstruct': _reconstruct,  # NumPy 1
    'numpy._core.multiarray._reconstruct': _reconstruct,
    'numpy.core.numeric._frombuffer': _from_buffer,
    'numpy._core.numeric._frombuffer': _from_buffer,
    '_codecs.encode': _latin1,  # bytes in protocol 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[f'{module}.{name}']
        except KeyError:
            raise pickle.UnpicklingError(f'{module}.{name} is refused') from None
