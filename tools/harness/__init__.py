"""What the benchmarks (``bench/``) and the tools (``tools/``) share.

Command lines, starting and ending workers, workloads, the list of algorithms, tables and figures.
This package imports neither ``bench`` nor another tool.
"""
