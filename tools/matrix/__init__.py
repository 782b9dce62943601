"""The project under several versions of Python and torch: ``python -m tools.matrix --help``."""
