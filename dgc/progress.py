"""What a rank has sent and received, and how long it took: counters since the start."""

from __future__ import annotations

from dataclasses import dataclass

from dgc.engines.base import Traffic


@dataclass
class Progress:
    """A rank's counters since the start. Rates are differences of two copies.

    Attributes:
        steps: Optimizer steps; of LBFGS, evaluations of its closure.
        sent_elements, elements: Elements sent, and elements of all gradients, over all buckets and
            steps; their quotient is the mean density.
        sent, received: Bytes of gradients, without start-up, metrics, evaluation, and what tells
            the ranks of unused parameters.
        dense_sent: Bytes that float32 all-reduces of the same steps would have sent.
        rounds, path: Messages that followed one another, and their bytes; see Traffic.
        compress, communicate: Seconds outside and inside the engine, while processing buckets.
        wait: Seconds for which the training loop waited for buckets.
    """

    steps: int = 0
    sent_elements: int = 0
    elements: int = 0
    sent: int = 0
    received: int = 0
    dense_sent: int = 0
    rounds: int = 0
    path: int = 0
    compress: float = 0.0
    communicate: float = 0.0
    wait: float = 0.0

    def count(self, before: Traffic, after: Traffic) -> None:
        """Add the bytes and messages that an engine moved between two copies of its traffic."""
        self.sent += after.sent - before.sent
        self.received += after.received - before.received
        self.rounds += after.rounds - before.rounds
        self.path += after.path - before.path
