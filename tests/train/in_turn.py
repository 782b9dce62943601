"""Run train.py several times in one process: starting a launcher for each would take minutes.

    torchrun --nproc-per-node 2 tests/train/in_turn.py CASES.json FOLDER

CASES.json: {name: [words]}. Each rank leaves FOLDER/RANK.json: {name: [exit code, output]}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from launching import here  # noqa: E402
from torch import distributed  # noqa: E402

from utils import launch  # noqa: E402

if __name__ == '__main__':
    launch.PATIENCE = 0.0  # nobody ends anybody between the cases
    # Once for all: a second default group would find the first one's addresses in the store.
    distributed.init_process_group('gloo')
    cases, folder = Path(sys.argv[1]), Path(sys.argv[2])
    results = {}
    for name, words in json.loads(cases.read_text()).items():
        done = here(*words)
        results[name] = [done.code, done.output]
    distributed.destroy_process_group()
    (folder / f'{os.environ.get("RANK", "0")}.json').write_text(json.dumps(results))
