"""``python -m tools.figures``: draw the figures of the documents, and their table of methods.

Everything is drawn from docs/data/*.json, which hold measured numbers with the page and the command
that they come from. Nothing is measured here.

draw.py       step times, bytes, scaling, timeline
methods.py    the table of methods in docs/methods.md
"""
