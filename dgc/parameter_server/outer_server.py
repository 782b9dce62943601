"""The server of asynchronous DiLoCo: it gathers movements in rounds, and takes outer steps."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.checks import check_part
from dgc.outer_settings import OuterSettings
from dgc.parameter_server import protocol
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.proportion import Proportion
from dgc.parameter_server.protocol import Budget, Kind, Message, ProtocolError
from dgc.parameter_server.rounds import Round, Rounds, places_of
from dgc.parameter_server.server import ConnectedWorker, Observer, Pushed, Server, Traffic
from dgc.planner import Fragments
from dgc.wiring import Named

COUNT = struct.Struct('<Q')  # of the rounds that ended before an update, in a journal


class OuterServer(Server):
    """The server of workers that take local steps (``AsynchronousSteps``).

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        server = OuterServer(outer, model.named_parameters(), model.buffers(), async_diloco(),
                             Budget(worker_slots=4, steps_per_epoch=100, updates=1000), Rounds())

    A push adds a learner's movement of one fragment to the open round of that fragment. The round
    ends when a quorum of learners has contributed and a grace time has passed since, or earlier
    where every connected learner has contributed. Then, with the mean movement in the place of a
    gradient, the outer optimizer steps on that fragment alone. A movement from parameters that are
    s rounds older is multiplied by the factor of ``rounds.scaling`` for s.

    No reply waits for anything: a learner gets the newest parameters, or PENDING where none are
    newer than its own. An update of the budget is a push.

    What is pushed and not applied is in ``state_dict()``, and a restarted server applies it when
    it begins, as all rounds end for which no connected learner is missing.

    Args:
        outer: Steps on the model's parameters; any optimizer of torch.
        named_parameters, buffers, budget, configuration, observer, timeout, max_norm_ratio: As of
            Server; the norms of each fragment are compared with its own.
        composition: What movements and answers go through.
        rounds: As the learners have it.

    Attributes:
        rounds: The settings.
        open_rounds: The open round of each fragment.

    Raises:
        TypeError, ValueError: For settings with which this is impossible.
    """

    def __init__(
        self,
        outer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        budget: Budget,
        rounds: Rounds,
        configuration: str = '',
        observer: Observer | None = None,
        timeout: float = 20.0,
        max_norm_ratio: float | None = None,
    ) -> None:
        check_part('outer', outer, Optimizer, 'torch.optim.SGD(model.parameters(), lr=0.7)')
        check_part('rounds', rounds, Rounds, 'Rounds(every=30)')
        if rounds.quorum is not None and rounds.quorum > budget.worker_slots:
            raise ValueError(
                f'quorum = {rounds.quorum} is more than the {budget.worker_slots} workers that may '
                'train at the same time: set it lower'
            )
        self.rounds, self.outer = rounds, outer
        self._outer_settings = OuterSettings(outer)
        super().__init__(
            outer,
            named_parameters,
            buffers,
            for_movements(composition, rounds),
            budget,
            configuration,
            observer,
            timeout,
        )
        self._now, self._traffic = 0.0, Traffic()
        numels = self.model.numels
        held = [bucket.spec.names for bucket in self.model.buckets]
        self._places = places_of(rounds.fragments, self._names, held)
        self.open_rounds = [
            Round([numels[place] for place in places], budget.worker_slots)
            for places in self._places
        ]
        self._proportions = [Proportion(max_norm_ratio) for _ in self._places]
        self._ended: list[int] = []  # fragments whose rounds ended since the last push

    def _trained(self, settings: Optimizer, named: list[tuple[str, Parameter]]) -> list[Named]:
        moved = moved_by(self.composition, settings, named)
        self._names = [name for name, parameter, _ in moved if parameter.numel()]
        return moved

    def _agreement(self) -> str:
        return agreement(self.rounds, self.model.numels)

    @property
    def models_held(self) -> int:
        """Also each learner's contribution, the sum of those, and the outer momentum."""
        return super().models_held + self.budget.worker_slots + 2

    def handle(self, frame: bytes | memoryview, now: float, sender: str = '') -> bytes | None:
        """See ``Server.handle``; ends the rounds that are due before and after."""
        self._end_rounds(now)
        self._now = now
        reply = super().handle(frame, now, sender)
        self._end_rounds(now)
        return reply

    def tick(self, now: float) -> None:
        """See ``Server.tick``; ends the rounds that are due."""
        super().tick(now)
        self._end_rounds(now)

    def state_dict(self) -> dict[str, Any]:
        """See ``Server.state_dict``; with the outer optimizer's state and the open rounds."""
        return {
            **super().state_dict(),
            'outer': copy.deepcopy(self.outer.state_dict()),
            'outer_settings': self._outer_settings.state_dict(),
            'rounds': [each.state_dict() for each in self.open_rounds],
            'norms': [each.state() for each in self._proportions],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Server.load_state_dict``, and ``OuterSettings``."""
        if len(state.get('rounds', ())) != len(self.open_rounds):
            raise ValueError(
                f'the checkpoint has {len(state.get("rounds", ()))} fragments, and the server '
                f'{len(self.open_rounds)}: resume with as many'
            )
        super().load_state_dict({**state, 'norms': ()})
        self._outer_settings.load_state_dict(state['outer'], state.get('outer_settings'))
        for each, held in zip(self.open_rounds, state['rounds'], strict=True):
            each.load_state_dict(held)
        for proportion, norms in zip(self._proportions, state['norms'], strict=True):
            proportion.load(norms)

    def _begin(self, worker: ConnectedWorker) -> bytes:
        worker.rounds = [each.number for each in self.open_rounds]
        return b''.join(map(protocol.NUMBER.pack, worker.rounds))

    def _pull(self, message: Message, worker: ConnectedWorker | None) -> bytes | None:
        """Answer whether the round of a fragment has ended, and with what has changed since."""
        if worker is not None and message.sequence <= worker.sequence:
            return self._repeated_reply(message, worker)
        if worker is None or message.ticket != worker.ticket:
            return self._plain_reply(message, Kind.REJOIN)
        if self.finished:
            return self._plain_reply(message, Kind.FINISHED)
        if len(message.body) != protocol.NUMBER.size:
            raise ProtocolError(f'{len(message.body)} bytes are no number of a fragment')
        (fragment,) = protocol.NUMBER.unpack(message.body)
        body, elements = self._answer(worker, self._known(fragment))
        kind = Kind.ANSWER if body else Kind.PENDING
        reply = self._stored_reply(message, worker, kind, body)
        before, received = self._traffic, protocol.HEADER.size + len(message.body)
        self._traffic = Traffic(
            before.received + received, before.sent + len(reply), before.elements + elements
        )
        return reply

    def _pulled(self) -> Traffic:
        traffic, self._traffic = self._traffic, Traffic()
        return traffic

    def _decode(self, body: bytes | memoryview) -> Pushed:
        if len(body) < protocol.MOVEMENT.size:
            raise ProtocolError(f'{len(body)} bytes are no movement')
        fragment, samples, base = protocol.MOVEMENT.unpack_from(body)
        places = self._places[self._known(fragment)]
        if not 1 <= samples <= protocol.MAX_SAMPLES:
            raise ProtocolError(f'a movement of {samples} samples')
        numels = [self.model.numels[place] for place in places]
        parts = self._sections(memoryview(body)[protocol.MOVEMENT.size :], numels)
        return Pushed(parts, fragment, samples, base)

    def _known(self, fragment: int) -> int:
        """Return ``fragment``. Raises ProtocolError where there is none of that number."""
        if fragment >= len(self._places):
            raise ProtocolError(f'fragment {fragment}, where there are {len(self._places)}')
        return fragment

    def _objection(self, update: Pushed) -> str:
        return self._proportions[update.fragment].objection(update.parts)

    def _staleness(self, worker: ConnectedWorker, update: Pushed) -> int:
        """Return how many rounds of the fragment have ended since the learner got it."""
        return max(self.open_rounds[update.fragment].number - update.base, 0)

    def _to_restore(self, body: bytes | memoryview) -> bytes:
        """Return the fragments whose rounds ended since the update before, and the update."""
        ended, self._ended = self._ended, []
        numbers = b''.join(COUNT.pack(each) for each in (len(ended), *ended))
        return numbers + bytes(body)

    def _restored(self, body: bytes | memoryview) -> memoryview:
        """End the rounds that had ended before the update. One that is empty, since the checkpoint
        is of a later time, has ended already."""
        body = memoryview(body)
        (count,) = COUNT.unpack_from(body)
        end = COUNT.size * (1 + count)
        for (fragment,) in COUNT.iter_unpack(body[COUNT.size : end]):
            if len(self.open_rounds[fragment]):
                self._end(fragment)
        self._ended = []  # they are on record
        return body[end:]

    def _apply(self, update: Pushed, staleness: int, session: int, number: int) -> None:
        """Add a movement to the open round of its fragment, and record that it is there."""
        factor = self.rounds.scaling.factor(staleness)
        self.open_rounds[update.fragment].add(session, update.parts, update.samples, factor)
        self._count(session, number)
        if self.finished:  # nothing comes any more
            for fragment, each in enumerate(self.open_rounds):
                if len(each):
                    self._end(fragment)

    def _answer(self, worker: ConnectedWorker, fragment: int) -> tuple[bytes, int]:
        """See ``Server._answer``; empty where nothing is newer than the learner's parameters."""
        self._end_rounds(self._now)  # for which this update may have been the last one missing
        if self.open_rounds[fragment].number == worker.rounds[fragment]:
            return b'', 0
        return self._changed(worker, fragment)

    def _changed(self, worker: ConnectedWorker, fragment: int) -> tuple[bytes, int]:
        open_round = self.open_rounds[fragment]
        worker.rounds[fragment] = open_round.number
        step = self.version * self.rounds.period // self.budget.worker_slots
        body, elements = self.model.answer(
            worker.slot, step, self.budget.steps_per_epoch, self._places[fragment]
        )
        head = protocol.ROUND.pack(open_round.number, worker.session in open_round)
        return head + body, elements

    def _end_rounds(self, now: float) -> None:
        """End the rounds that are due."""
        live = [worker.session for worker in self.workers]
        needed = self.rounds.needed(self.budget.worker_slots, len(live))
        for fragment, each in enumerate(self.open_rounds):
            if not len(each):
                continue
            if len(each) >= needed and each.quorum_at is None:
                each.quorum_at = now
            is_over = each.quorum_at is not None and now - each.quorum_at >= self.rounds.grace
            if is_over or not each.lacks(live):
                self._end(fragment)

    @torch.no_grad()
    def _end(self, fragment: int) -> None:
        """Take the outer step on a fragment with the mean movement of its round."""
        mean = self.open_rounds[fragment].end()
        self._ended.append(fragment)
        members = [member for bucket in self.model.buckets for member in bucket.members]
        for member in members:
            member.parameter.grad = None
        for place, values in zip(self._places[fragment], mean, strict=True):
            bucket = self.model.buckets[place]
            for member, (_, part) in zip(bucket.members, bucket.views(values), strict=True):
                member.parameter.grad = part
        self.outer.step()
        for member in members:
            member.parameter.grad = None


def for_movements(composition: Asynchronous, rounds: Rounds) -> Asynchronous:
    """Return a composition whose buckets lie in one fragment each.

    Raises:
        TypeError: Where it is of another kind.
        ValueError: For parts that fit no movement.
    """
    check_part('composition', composition, Asynchronous, 'async_diloco()')
    memory = type(composition.memory).__name__
    if composition.memory.holds_momentum:
        raise ValueError(
            f'{memory} holds a momentum, and movements go through that of the outer optimizer: use '
            'Residual or NoMemory'
        )
    for name in ('ratio_follows_rate', 'rate_when_sent'):
        if getattr(composition, name):
            raise ValueError(f'{name} is for gradients, and movements are sent: leave it out')
    if composition.clipping is not None:
        raise ValueError('clipping is for gradients, and movements are sent: leave it out')
    return replace(composition, planner=Fragments(composition.planner, rounds.fragments))


def moved_by(
    composition: Asynchronous, optimizer: Optimizer, named: list[tuple[str, Parameter]]
) -> list[Named]:
    """Return the parameters that ``optimizer`` moves, without its settings, by which a server and
    its learners, whose optimizers differ, would divide them into other buckets."""
    return [(name, p, {}) for name, p, _ in composition.moved(optimizer, named)]


def agreement(rounds: Rounds, numels: Iterable[int]) -> str:
    """Return what a server and its learners must have in common of their rounds, as text."""
    return f'{rounds.fragments} fragments, buckets of {list(numels)}'
