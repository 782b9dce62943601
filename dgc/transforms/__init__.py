"""Changes of basis before selection, inverted after the exchange, one per file."""

from dgc.transforms.base import Identity, Transform
from dgc.transforms.blocks import BlockLayout, Run
from dgc.transforms.dct import BlockDCT

__all__ = ['BlockDCT', 'BlockLayout', 'Identity', 'Run', 'Transform']
