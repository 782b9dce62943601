"""Read pickled dictionaries of NumPy arrays without executing other code that a pickle names.

A pickle names functions for the reader to call. Here every name outside a short table is refused,
and the names in the table are mapped to the substitutes below, so that unchecked bytes do not reach
NumPy's own unpickling either.

Memory and time are bounded by the size of the file. Python's unpickler in C allocates what a length
or an index in the file says, and hashes a tuple of nested tuples in exponential time. So this is
the unpickler in Python, which keeps its memo in a dictionary, and it reads from memory, where no
read returns more than is there.
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

__all__ = ['load']

KINDS = 'iuf'  # integers and floats: no objects, no records
DTYPE_LENGTH = 8  # characters of a type's code, such as '<f8'
KEYS = (str, bytes, int, float, bool, type(None))  # of dictionaries; hashed in linear time


def load(path: Path) -> dict[str, Any]:
    """Read the dictionary in a file, with read-only arrays; also from a pickle of Python 2.

    Raises:
        pickle.UnpicklingError: For a name that is not in the table, a damaged or truncated file, or
            anything but a dictionary.
    """
    raw = path.read_bytes()
    try:
        entries = _Unpickler(io.BytesIO(raw), encoding='latin1').load()
        if not isinstance(entries, dict):
            raise pickle.UnpicklingError(f'holds a {type(entries).__name__}, not a dictionary')
        return {
            str(name): value.array if isinstance(value, _Array) else value
            for name, value in entries.items()
        }
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged bytes can raise almost any type
        raise pickle.UnpicklingError(f'damaged ({type(error).__name__}: {error})') from error


class _DType:
    """Replaces numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, str) or len(code) > DTYPE_LENGTH:  # no nested records
            raise pickle.UnpicklingError('an array of an unnamed type is refused')
        self.dtype = np.dtype(code)
        if self.dtype.kind not in KINDS:
            raise pickle.UnpicklingError(f'an array of {self.dtype} is refused')

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ('<', '>', '=', '|'):
            raise pickle.UnpicklingError('a byte order is damaged')
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Replaces numpy.ndarray; filled by __setstate__, or by `_from_buffer` (protocol 5)."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        self._fill(data, dtype, shape, 'F' if fortran else 'C')

    def _fill(self, data: str | bytes, dtype: _DType, shape: tuple[int, ...], order: Any) -> None:
        if not isinstance(data, str | bytes | bytearray):  # bytes(n) would allocate n bytes
            raise pickle.UnpicklingError('an array without bytes is refused')
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


_InPython: Any = pickle._Unpickler  # type stubs lack its methods


class _Unpickler(_InPython):
    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[f'{module}.{name}']
        except KeyError:
            raise pickle.UnpicklingError(f'{module}.{name} is refused') from None

    def load_bytearray8(self) -> None:
        """Read the bytes that are there; the standard method allocates the length first."""
        length = int.from_bytes(self.read(8), 'little')
        data = self.read(length)
        if len(data) < length:
            raise pickle.UnpicklingError('truncated')
        self.append(bytearray(data))

    def load_setitem(self) -> None:
        """Add an entry to a dictionary."""
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Add the entries since the last mark."""
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        """Make a dictionary of the entries since the last mark."""
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_set(self) -> None:
        """Refuse sets, which hash their elements; no array needs one."""
        raise pickle.UnpicklingError('a set is refused')


def _check_keys(keys: list[Any]) -> None:
    if not all(type(key) in KEYS for key in keys):
        raise pickle.UnpicklingError('a key of a dictionary that is no text or number is refused')


for _method, _codes in {
    _Unpickler.load_bytearray8: (pickle.BYTEARRAY8,),
    _Unpickler.load_setitem: (pickle.SETITEM,),
    _Unpickler.load_setitems: (pickle.SETITEMS,),
    _Unpickler.load_dict: (pickle.DICT,),
    _Unpickler.load_set: (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
}.items():
    _Unpickler.dispatch |= {code[0]: _method for code in _codes}
