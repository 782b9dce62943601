"""Checks that modules import downwards only: ``python -m tools.imports``."""
