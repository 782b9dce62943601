"""Clipping before the exchange (local) or of the mean after it. Use after a composition's files."""
