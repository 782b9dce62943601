"""Checks before training: whether hosts fit together, and how fast the network between them is.

LAUNCHER … python -m tools.preflight
"""
