"""How messages are summed over the workers: each exchange is one file."""

from dgc.exchanges.all_gather import AllGather
from dgc.exchanges.all_reduce import AllReduce
from dgc.exchanges.base import Exchange, Exchanged

__all__ = ['AllGather', 'AllReduce', 'Exchange', 'Exchanged']
