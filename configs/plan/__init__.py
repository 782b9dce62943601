"""How parameters are grouped into buckets: each file replaces the planner of the stack so far."""
