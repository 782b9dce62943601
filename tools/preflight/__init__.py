"""Whether hosts are ready to train together, and what their network is worth: before training.

LAUNCHER … python -m tools.preflight
"""
