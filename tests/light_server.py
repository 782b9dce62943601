"""A rank of a world without torch, which starts at once: for the tests of worlds themselves.

RANK=0 python light_server.py SOCKET
"""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

from world_server import serve

if __name__ == '__main__':
    never = threading.Event()  # a rank that waits for one that has failed
    serve(SimpleNamespace(rank=int(os.environ['RANK']), barrier=never.wait))
