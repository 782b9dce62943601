"""A workload with each of several algorithms at equal epochs: `python -m bench.parity --help`."""
