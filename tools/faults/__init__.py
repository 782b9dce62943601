"""Faults that are done to real runs, by a seed: ``python -m tools.faults --help``."""
