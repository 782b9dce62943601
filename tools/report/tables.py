"""The runs as JSON, and as CSV with a row for each epoch of each run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write what the page shows."""
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + '\n')


def write_csv(data: dict[str, Any], path: Path) -> None:
    """Write the numbers of every epoch; a cell is empty where a run has not measured it."""
    runs = data['runs']
    names = sorted({name for run in runs for name in run['columns']} - {'epoch'})
    with path.open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['run', 'task', 'state', 'workers', 'epoch', *names])
        for run in runs:
            about = [run['name'], run['task'], run['state'], run['summary']['workers']]
            for i, epoch in enumerate(run['columns'].get('epoch', [])):
                cells = [run['columns'].get(name, [])[i : i + 1] for name in names]
                writer.writerow([*about, epoch, *(cell[0] if cell else None for cell in cells)])
