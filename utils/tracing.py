"""A trace of some steps of a run, by bucket: trace.json and trace.txt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dgc import Trace
from dgc.parameter_server import WorkerOptimizer
from dgc.spans import events
from utils.build import Parts
from utils.config import Config, ConfigError

if TYPE_CHECKING:
    from utils.log import Log


class StepTrace:
    """Traces the steps of an epoch that are asked for, on all ranks.

    A trace ends with the epoch of its first step: it is not replaced by one of the next epoch.

    Args:
        parts: What this rank trains with.
        log: Receives the trace.
        steps: The first and the last step, counted from 0 over all epochs; None for none.
        begin: The first step of the epoch.
    """

    def __init__(self, parts: Parts, log: Log, steps: tuple[int, int] | None, begin: int) -> None:
        self._log = log
        self._steps = None if steps is None or steps[0] < begin else steps
        self._optimizer = parts.optimizer
        self._trace: Trace | None = None

    def before_step(self, step: int) -> None:
        """Begin or end the trace, if it is time to. A collective where it ends.

        Args:
            step: The number of the next step.
        """
        if self._steps is None:
            return
        first, last = self._steps
        if self._trace is not None and not first <= step <= last:
            self.finish()
        elif self._trace is None and first <= step <= last:
            assert not isinstance(self._optimizer, WorkerOptimizer)  # see check_asynchronous
            self._trace = Trace(self._optimizer)
            self._trace.start()

    def finish(self) -> None:
        """End the trace, and log it. A collective, where it has begun."""
        if self._trace is None:
            return
        trace, self._trace = self._trace, None
        trace.stop()
        if trace.steps:  # else an epoch is continued behind them
            self._log.trace(json.dumps(events(trace.gather())), trace.table())


def check_trace(configs: Config, parts: Parts) -> None:
    """Raise ConfigError for steps that this run does not make."""
    steps = configs.log.trace_steps
    if steps is None:
        return
    planned = parts.steps(configs.train.num_epochs)
    if steps[0] >= planned:
        raise ConfigError(
            f'configs.log.trace_steps = {steps}: the run has {planned} steps, from 0 on; choose '
            'some of these'
        )
