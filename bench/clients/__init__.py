"""Nine programs in the style of published ones, with and without dgc: ``python -m bench.clients``.

    __main__.py  the command: starts what is missing, and writes the tables
    measure.py   runs the versions of a program
    program.py   a program's two versions, and their difference
    worker.py    one rank under torchrun: runs the variants of a program
    results.py   the lines of the results, and the tables
    programs/    the programs

docs/integrations.md has the results.
"""
