"""Predict the time of a training step on a given network, and which composition is the fastest.

A step without exchange and the processor time of each composition are measured on this host; the
time that messages take on the network is computed. `python -m tools.plan --help`
"""
