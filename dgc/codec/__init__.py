"""Writes a message as bytes and reads it back: see ``message.py`` for the format."""

from dgc.codec.indices import INDICES, IndexCoding
from dgc.codec.message import HEADER, MAGIC, VERSION, Codec
from dgc.codec.raw import CodecError
from dgc.codec.values import VALUES, Contraction, Unbiased, ValueCoding

__all__ = [
    'HEADER',
    'INDICES',
    'MAGIC',
    'VALUES',
    'VERSION',
    'Codec',
    'CodecError',
    'Contraction',
    'IndexCoding',
    'Unbiased',
    'ValueCoding',
]
