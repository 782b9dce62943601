"""How long a training step will take on a network that is not there yet, and who wins there.

A step is measured here without its exchange, and so is what each composition costs the processor;
how long its messages travel is arithmetic. `python -m tools.plan --help`
"""
