"""Reading pickles that nobody has checked."""

import os
import pickle
import pickletools
import time
import tracemalloc

import numpy as np
import pytest

from datasets.unpickle import load


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def written(path, entries, protocol=2):
    path.write_bytes(pickle.dumps(entries, protocol=protocol))
    return path


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize('dtype', ['u1', '<i8', '>i4', '<f4'])
@pytest.mark.parametrize('order', ['C', 'F'])
def test_arrays_of_every_protocol(tmp_path, protocol, dtype, order):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype, order=order)
    entries = load(written(tmp_path / 'file', {'data': array, 'labels': [1, 2]}, protocol))
    assert entries['labels'] == [1, 2]
    assert entries['data'].dtype == array.dtype
    assert np.array_equal(entries['data'], array)


def test_pickles_of_python_2(tmp_path):
    """As in the published archives: str is bytes, and NumPy 1 names its modules differently."""
    path = tmp_path / 'file'
    path.write_bytes(
        b'\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01b'
        b'tR(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff'
        b'J\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x7f\x80\xfftbU\x06labels]K\x07au.'
    )
    entries = load(path)
    assert entries['data'].tolist() == [[0, 127], [128, 255]]
    assert entries['labels'] == [7]


@pytest.mark.parametrize(
    ('function', 'arguments'),
    [
        (os.system, ('touch pwned',)),
        (eval, ("open('pwned', 'w')",)),
        (getattr, ({}, 'clear')),
        (np.load, ('file',)),
        (np.frombuffer, (b'abc',)),
    ],
)
@pytest.mark.parametrize('protocol', [0, 2, 4])
def test_every_other_call_is_refused(tmp_path, monkeypatch, function, arguments, protocol):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / 'file', {'data': Malicious(function, *arguments)}, protocol)
    with pytest.raises(pickle.UnpicklingError, match='refused'):
        load(path)
    assert not (tmp_path / 'pwned').exists()


def test_arrays_of_objects_are_refused(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match='array of object is refused'):
        load(written(tmp_path / 'file', {'data': np.array([{}, []], dtype=object)}))


def test_names_reached_through_an_allowed_module_are_refused(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.')
    assert 'STACK_GLOBAL' in {code.name for code, *_ in pickletools.genops(path.read_bytes())}
    with pytest.raises(pickle.UnpicklingError, match='refused'):
        load(path)


def test_every_cut_of_a_file_is_refused(tmp_path):
    whole = pickle.dumps({'data': np.zeros((2, 8), 'u1'), 'labels': [3, 4]}, protocol=4)
    path = tmp_path / 'file'
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(pickle.UnpicklingError):
            load(path)


def test_damaged_bytes_are_refused_or_read_but_raise_nothing_else(tmp_path):
    whole = pickle.dumps({'data': np.zeros((2, 8), 'u1'), 'labels': [3, 4]}, protocol=2)
    path = tmp_path / 'file'
    refused = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        try:
            load(path)
        except pickle.UnpicklingError:
            refused += 1
    assert refused > len(whole) / 4


def test_anything_but_a_dictionary_is_refused(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match='list'):
        load(written(tmp_path / 'file', [1]))


def of_array(data: bytes) -> bytes:
    """A dictionary with an array of bytes [2, 2] whose content is the opcode ``data``."""
    return (
        b'\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01b'
        b'tR(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89' + data + b'tbs.'
    )


LARGE = (2**28).to_bytes(8, 'little')
NESTED = b')' + b'2\x86' * 26  # a tuple of a tuple twice, and so on: 2^26 elements to hash
AMPLIFIED = {  # a few bytes that ask for 256 MB, or for many seconds
    'an index of the memo': b'\x80\x02}r\xff\xff\xff\x01.',
    'a length of bytes': b'\x80\x05}\x8e' + LARGE + b'x.',
    'a length of a bytearray': b'\x80\x05}\x96' + LARGE + b'x.',
    'a length of a text': b'\x80\x05}\x8d' + LARGE + b'x.',
    'a frame': b'\x80\x05\x95' + LARGE + b'}.',
    'a number for the bytes of an array': of_array(b'J\xff\xff\xff\x0f'),
    'nested tuples as a key': b'\x80\x02}' + NESTED + b'K\x01s.',
    'nested tuples as a key of several': b'\x80\x02}(' + NESTED + b'K\x01u.',
    'nested tuples as a key, protocol 0': b'(' + NESTED + b'K\x01d.',
    'nested tuples in a set': b'\x80\x04\x8f(' + NESTED + b'\x90.',
    'nested tuples as a type': b'\x80\x02cnumpy\ndtype\n' + NESTED + b'\x85R.',
    'nested tuples as a byte order': (
        b'\x80\x02cnumpy\ndtype\nU\x02u1\x85R(K\x03' + NESTED + b'tb.'
    ),
}
READ = ('an index of the memo', 'a frame')  # only a name; and nothing is missing in the frame


@pytest.mark.parametrize('name', AMPLIFIED)
def test_memory_and_time_are_bounded_by_the_size_of_the_file(tmp_path, name):
    """docs/failures.md, row 24."""
    path = tmp_path / 'file'
    path.write_bytes(AMPLIFIED[name])
    tracemalloc.start()
    begin = time.process_time()
    try:
        load(path)
        refused = False
    except pickle.UnpicklingError:
        refused = True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert refused == (name not in READ)
    assert peak < 10e6 and time.process_time() - begin < 1
