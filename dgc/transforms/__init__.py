"""Changes of basis before selection, inverted after the exchange, one per file."""

from dgc.transforms.base import Identity, Transform
from dgc.transforms.blocks import BlockLayout, ChunkLayout, Layout, Run
from dgc.transforms.dct import BlockDCT
from dgc.transforms.tiles import Tiles

__all__ = [
    'BlockDCT',
    'BlockLayout',
    'ChunkLayout',
    'Identity',
    'Layout',
    'Run',
    'Tiles',
    'Transform',
]
