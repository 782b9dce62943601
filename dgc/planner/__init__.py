"""Which parameters travel together: by size, by measured times, or as a saved plan has it."""

from dgc.planner.base import Named, Planner
from dgc.planner.by_size import BySize, PerTensor, Whole
from dgc.planner.saved import Plan, PlanError, Replay
from dgc.planner.timed import Adaptive, Merged, MergedGreedily, Timed, extremes

__all__ = [
    'Adaptive',
    'BySize',
    'Merged',
    'MergedGreedily',
    'Named',
    'PerTensor',
    'Plan',
    'PlanError',
    'Planner',
    'Replay',
    'Timed',
    'Whole',
    'extremes',
]
