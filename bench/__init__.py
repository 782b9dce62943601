"""Benchmarks: each a command that measures, prints one table and can write it as JSON."""
