"""A rank of a client's variants: ``torchrun worker.py JOB``.

It imports the client's libraries once, and runs each variant in a child of its own.

JOB is a JSON file: ``libraries`` is a list, and ``runs`` a list of ``program``, a path, and
``environment``, with a MASTER_PORT for each run.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path


def run(program: str, environment: dict[str, str]) -> None:
    """Run a program as the main one, in this process."""
    os.environ.update(environment)
    os.environ['TORCHELASTIC_USE_AGENT_STORE'] = 'False'  # torchrun's is for one group of a name
    sys.argv = [program]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name='__main__')


def main() -> int:
    """Run the variants one after another; return 1 after the first that fails."""
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.path[0] = os.devnull  # this folder is no part of the programs
    for library in job['libraries']:
        importlib.import_module(library)
    for each in job['runs']:
        child = os.fork()
        if child == 0:
            run(**each)
            sys.stdout.flush()
            sys.stderr.flush()
            return 0
        if os.waitpid(child, 0)[1]:
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
