"""Mutation testing: which small faults in dgc/ the tests find.

python -m tools.mutate --seed 14 --count 30 --run
"""
