"""How a message is written on the wire: see ``message.py`` for its bytes."""

from dgc.codec.indices import INDICES, IndexCoding
from dgc.codec.message import HEADER, MAGIC, VERSION, Codec
from dgc.codec.raw import CodecError
from dgc.codec.values import VALUES, ValueCoding

__all__ = [
    'HEADER',
    'INDICES',
    'MAGIC',
    'VALUES',
    'VERSION',
    'Codec',
    'CodecError',
    'IndexCoding',
    'ValueCoding',
]
