"""Which parameters travel together. Each file replaces the planner of the stack before it."""
