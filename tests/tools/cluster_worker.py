"""One worker of test_cluster_tool.py: sums with the others, says who it is, and fails on rank 1."""

from __future__ import annotations

import os
import socket
import sys
import time

import torch

import dgc

if __name__ == '__main__':
    engine = dgc.create()
    total = engine.all_reduce(torch.ones(50_000))
    name = socket.gethostname()
    print(engine.name, engine.rank, engine.size, engine.local_size, float(total[-1]))
    print('here', socket.gethostbyname(name), os.environ['OMP_NUM_THREADS'], flush=True)
    engine.close()
    if engine.rank == 0:
        time.sleep(0.7)  # so that rank 1 fails first
    sys.stdout.flush()
    os._exit(int(sys.argv[1 + engine.rank]))
