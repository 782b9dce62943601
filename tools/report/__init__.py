"""``python -m tools.report``: what runs have measured, as one HTML page, figures or tables.

__main__.py   the command line
find.py       which folders are runs
read.py       one run folder to a ``Run``: its numbers by epoch, settings, and what is damaged
updates.py    updates.csv of a parameter server: staleness, and updates of each worker
state.py      whether a run goes on, has finished or has stopped
summary.py    one line of numbers per run
collect.py    all runs, as the data of the page
page.py       the page: page/ with the data in it
serve.py      the page and its data over HTTP, for runs that go on
tables.py     JSON and CSV
figures.py    PNG

The charts are drawn by uPlot (page/uplot.min.js, MIT licence beside it): 50 kB without
dependencies, and quick with a hundred curves. Nothing here imports torch.
"""
