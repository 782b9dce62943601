"""Planners divide parameters into buckets: by size, by measured times, or by a saved plan."""

from dgc.planner.base import Planner, PlanRequest
from dgc.planner.by_size import BySize, PerTensor, Whole
from dgc.planner.fragments import Fragments
from dgc.planner.plan import Plan, PlanError
from dgc.planner.replay import Kept, Replay
from dgc.planner.timed import Adaptive, Merged, MergedGreedily, Timed, extremes

__all__ = [
    'Adaptive',
    'BySize',
    'Fragments',
    'Kept',
    'Merged',
    'MergedGreedily',
    'PerTensor',
    'Plan',
    'PlanError',
    'PlanRequest',
    'Planner',
    'Replay',
    'Timed',
    'Whole',
    'extremes',
]
