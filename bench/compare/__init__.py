"""All methods of a workload on a stated link: `python -m bench.compare --help`.

curves.py    from the bytes and messages of a run to its quality after so many seconds on the link
report.py    the table
plots.py     the figures
"""
