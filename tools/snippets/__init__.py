"""The snippets of the documentation: ``python tools/snippets/run.py --help`` executes them."""
