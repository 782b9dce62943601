"""A plain twin of asynchronous DiLoCo: lists of vectors, written from the rule; no messages."""

from __future__ import annotations

from torch import Tensor


class PlainServer:
    """θ, by fragment, and what is pushed of each.

    Args:
        model: A vector for each fragment.
        quorum, grace: Of a round.
        lr, momentum: Of the outer SGD, with Nesterov's momentum.
    """

    def __init__(
        self, model: list[Tensor], quorum: int, grace: float, lr: float, momentum: float
    ) -> None:
        self.model = [part.clone() for part in model]
        self.velocity: list[Tensor | None] = [None for _ in model]
        self.rounds = [0 for _ in model]
        self.pushed: list[dict[str, tuple[int, Tensor]]] = [{} for _ in model]
        self.since: list[float | None] = [None for _ in model]
        self.live: list[str] = []
        self.quorum, self.grace, self.lr, self.momentum = quorum, grace, lr, momentum

    def end_rounds(self, now: float) -> None:
        for fragment, pushed in enumerate(self.pushed):
            if not pushed:
                continue
            if self.since[fragment] is None and len(pushed) >= min(self.quorum, len(self.live)):
                self.since[fragment] = now
            since = self.since[fragment]
            if all(name in pushed for name in self.live) or (
                since is not None and now - since >= self.grace
            ):
                self.outer_step(fragment)

    def outer_step(self, fragment: int) -> None:
        pushed = self.pushed[fragment].values()
        mean = sum(samples * delta for samples, delta in pushed) / sum(n for n, _ in pushed)
        before = self.velocity[fragment]
        velocity = mean if before is None else self.momentum * before + mean
        self.velocity[fragment] = velocity
        self.model[fragment] = self.model[fragment] - self.lr * (mean + self.momentum * velocity)
        self.rounds[fragment] += 1
        self.pushed[fragment], self.since[fragment] = {}, None

    def push(
        self, name: str, fragment: int, delta: Tensor, samples: int, base: int, now: float
    ) -> tuple[Tensor, int]:
        """Returns the parameters of a fragment, and the round that they are of."""
        self.end_rounds(now)
        factor = 1 / (1 + self.rounds[fragment] - base)
        before = self.pushed[fragment].get(name, (0, 0 * delta))
        self.pushed[fragment][name] = before[0] + samples, before[1] + factor * delta
        return self.pull(fragment, now)

    def pull(self, fragment: int, now: float) -> tuple[Tensor, int]:
        self.end_rounds(now)
        return self.model[fragment].clone(), self.rounds[fragment]


class PlainLearner:
    """θ, θ_w and what is pushed and not part of θ_w, by fragment."""

    def __init__(self, name: str, server: PlainServer, every: int, samples: int) -> None:
        self.name, self.server, self.samples = name, server, samples
        self.period = every // len(server.model)
        server.live.append(name)
        self.now_at = [part.clone() for part in server.model]
        self.got = list(server.rounds)
        self.pushed_at = [part.clone() for part in server.model]  # θ at the last push, or θ_w
        self.count = [0 for _ in server.model]
        self.waits: set[int] = set()  # fragments of which the open round has something from here
        self.steps = 0

    def step(self, moves: list[Tensor], now: float) -> None:
        """Take a local step that adds ``moves``."""
        for fragment, move in enumerate(moves):
            self.now_at[fragment] = self.now_at[fragment] + move
            self.count[fragment] += self.samples
        self.steps += 1
        due = None
        if self.steps % self.period == 0:
            due = (self.steps // self.period - 1) % len(moves)
            delta = self.pushed_at[due] - self.now_at[due]
            self.pushed_at[due] = self.now_at[due].clone()
            samples, self.count[due] = self.count[due], 0
            answer = self.server.push(self.name, due, delta, samples, self.got[due], now)
            self.take(due, *answer)
            return
        for fragment in sorted(self.waits):
            self.take(fragment, *self.server.pull(fragment, now))

    def take(self, fragment: int, model: Tensor, number: int) -> None:
        if number > self.got[fragment]:
            moved = self.now_at[fragment] - self.pushed_at[fragment]
            self.now_at[fragment], self.pushed_at[fragment] = model + moved, model.clone()
            self.got[fragment] = number
        if self.name in self.server.pushed[fragment]:
            self.waits.add(fragment)
        else:
            self.waits.discard(fragment)
