"""Draws the picture of docs/architecture.md: ``python -m tools.picture``."""
