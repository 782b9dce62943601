"""Asynchronous DiLoCo by a clock of its own: rounds, late and dead learners, faults, restarts."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from async_diloco_reference import PlainLearner, PlainServer
from dgc_helpers import loss, parameters
from ps_helpers import BUFFERS, Wire, World, random_faults

import dgc
from dgc.algorithms import ALGORITHMS, Law
from dgc.algorithms.async_diloco import async_diloco
from dgc.clipping import ClipByNorm
from dgc.compressors import TopK
from dgc.memory import Residual
from dgc.parameter_server import (
    AsynchronousSteps,
    Budget,
    DirectLink,
    Entry,
    Observer,
    OuterServer,
    Rounds,
    ServerError,
    WorkerOptimizer,
    dual_way,
    protocol,
)
from dgc.parameter_server.protocol import Kind, Message
from dgc.planner import PerTensor

OUTER = {'lr': 0.5, 'momentum': 0.5, 'nesterov': True}
DENSE = async_diloco
SPARSE = partial(async_diloco, 0.05, compressor=TopK(), secondary=TopK())


class Recorder(Observer):
    """Keeps what a journal would."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def accepted(self, entry):
        body = bytes(entry.body)
        self.entries.append(entry._replace(body=body))


class Learner:
    """A model whose parameters are pulled towards targets, and its optimizer."""

    def __init__(self, field: Field, number: int = 0, link=None, **settings) -> None:
        self.field, self.number, self.steps = field, number, 0
        self.named = [(n, torch.nn.Parameter(p + 1)) for n, p in parameters()]
        inner = torch.optim.SGD([p for _, p in self.named], lr=0.125)
        own = {'samples_per_step': 1, **settings}
        self.link = link or DirectLink(field.server, lambda: field.now)
        self.optimizer = AsynchronousSteps(
            inner, self.named, [torch.ones(BUFFERS)], field.make(), self.link, field.rounds, **own
        )

    def step(self, seconds: float = 0.0) -> None:
        """Take a step, after so many seconds."""
        self.field.now += seconds
        self.optimizer.zero_grad()
        loss(self.named, self.number, self.steps).backward()
        self.steps += 1
        self.optimizer.step()

    def steps_of(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def assert_recorded(self) -> None:
        """The server's record of this learner is θ_w, bit for bit."""
        records = self.field.server.model.records[self.optimizer.slot]
        assert all(map(torch.equal, records, self.optimizer._agreed))


class Field:
    """A server, the time, and what learners share."""

    def __init__(
        self, make=DENSE, slots=3, updates=10_000, outer=OUTER, seen=None, max_norm_ratio=None,
        **rounds,
    ):  # fmt: skip
        self.make, self.now, self.slots, self.updates = make, 0.0, slots, updates
        self.max_norm_ratio = max_norm_ratio
        self.faults, self.patience, self.late = (lambda: ''), 0.0, []  # see ps_helpers.Wire
        self.outer = outer
        self.rounds = Rounds(**{'every': 4, 'quorum': min(2, slots), 'grace': 1.0, **rounds})
        self.seen = seen
        self.server = self.new_server()

    def new_server(self) -> OuterServer:
        self.named = parameters()
        outer = torch.optim.SGD([p for _, p in self.named], **self.outer)
        budget = Budget(self.slots, 4, self.updates)
        return OuterServer(
            outer, self.named, [torch.zeros(BUFFERS)], self.make(), budget, self.rounds,
            observer=self.seen, timeout=10, max_norm_ratio=self.max_norm_ratio,
        )  # fmt: skip

    def join(self, number: int = 0, **settings) -> Learner:
        return Learner(self, number, **settings)

    def join_wired(self, number: int) -> Learner:
        """A learner whose messages have the faults of ``faults``."""
        return Learner(self, number, link=Wire(self))

    def deliver(self, frame: bytes) -> bytes | None:
        return self.server.handle(frame, self.now)

    @property
    def ended(self) -> list[int]:
        return [each.number for each in self.server.open_rounds]

    def model(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for _, p in self.named])


def flat(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in learner.named])


# Rounds.


def test_a_round_ends_with_a_quorum_and_a_grace_time():
    field = Field(slots=3, quorum=2, grace=5.0)
    one, two, _ = (field.join(number) for number in range(3))
    one.steps_of(4)
    assert field.ended == [0] and one.optimizer.is_waiting == [True]
    two.steps_of(4)
    field.now += 4.9
    field.server.tick(field.now)
    assert field.ended == [0]
    field.now += 0.2
    field.server.tick(field.now)
    assert field.ended == [1]
    one.step()  # which looks for it
    assert one.optimizer.is_waiting == [False]
    one.assert_recorded()


def test_a_round_ends_at_once_where_nobody_is_missing():
    field = Field(slots=3, quorum=2, grace=1e6)
    one, two = field.join(0), field.join(1)
    one.steps_of(4)
    two.steps_of(4)
    assert field.ended == [1] and two.optimizer.is_waiting == [False]


def test_without_a_quorum_learners_go_on_and_their_pushes_add_up():
    """Three pushes of one learner count as one movement, of all its samples."""
    field = Field(slots=3, quorum=2, grace=0.0, outer={'lr': 1.0})
    one, two = field.join(0, samples_per_step=3), field.join(1, samples_per_step=1)
    begin = field.model()
    one.steps_of(12)
    assert field.ended == [0]
    moved = begin - flat(one)
    two.steps_of(4)
    other = field.rounds.every * 1
    mine = 12 * 3
    gone = begin - field.model()
    expected = (mine * moved + other * (begin - after_4(1))) / (mine + other)
    assert torch.allclose(gone, expected, atol=1e-6)


def after_4(number: int) -> torch.Tensor:
    """Where four steps of SGD lead from the first parameters."""
    named = parameters()
    inner = torch.optim.SGD([p for _, p in named], lr=0.125)
    for step in range(4):
        inner.zero_grad()
        loss(named, number, step).backward()
        inner.step()
    return torch.cat([p.detach().flatten() for _, p in named])


def test_a_late_learner_gets_the_newest_parameters_at_once_and_counts_less():
    field = Field(slots=3, quorum=2, grace=0.0, outer={'lr': 1.0})
    fast = [field.join(0), field.join(1)]
    slow = field.join(2)
    slow.steps_of(3)
    for _ in range(8):
        for each in fast:
            each.step()
    assert field.ended == [2]
    begin, newest = torch.cat([p.detach().flatten() for _, p in parameters()]), field.model()
    slow.step()
    assert torch.equal(flat(slow), newest)  # nothing of its own: that is in the open round
    slow.assert_recorded()
    movement = begin - after_4(2)
    (own,) = field.server.open_rounds[0]._own.values()
    held = torch.cat(own.movement)
    found = dict(zip(names_and_sizes()[0], movement.split(names_and_sizes()[1]), strict=True))
    names = [name for bucket in field.server.model.buckets for name in bucket.spec.names]
    assert torch.allclose(held, torch.cat([found[name] for name in names]) / 3, atol=1e-6)


def names_and_sizes() -> tuple[list[str], list[int]]:
    """Of the parameters."""
    return [name for name, _ in parameters()], [p.numel() for _, p in parameters()]


def test_a_dead_learner_holds_up_nobody():
    field = Field(slots=2, quorum=2, grace=0.0)
    one, dead = field.join(0), field.join(1)
    dead.steps_of(4)  # it has contributed, and is not heard of again
    one.steps_of(4)
    assert field.ended == [1]
    for _ in range(8):
        one.step(seconds=2.0)
        field.server.tick(field.now)
    assert len(field.server.workers) == 1  # it timed out after 10 s
    assert field.ended == [3]  # each push of the other ends a round from then on


def test_what_a_dead_learner_has_pushed_is_applied():
    field = Field(slots=2, quorum=2, grace=0.0, outer={'lr': 1.0})
    dead, other = field.join(1), field.join(0)
    dead.steps_of(4)
    other.optimizer.close()
    field.now += 11
    field.server.tick(field.now)
    assert field.ended == [1] and not len(field.server.workers)
    assert torch.allclose(field.model(), after_4(1), atol=1e-6)


def test_the_last_push_ends_all_rounds():
    field = Field(slots=2, updates=3, quorum=2, grace=1e6, fragments=2)
    one, two = field.join(0), field.join(1)
    one.steps_of(4)
    assert field.ended == [0, 0]
    two.steps_of(2)
    assert field.server.finished and field.ended == [1, 1]
    assert not any(len(each) for each in field.server.open_rounds)
    two.step()
    assert two.optimizer.finished


# The plain twin, and the laws of the table.


@pytest.mark.parametrize(('fragments', 'quorum', 'grace'), [(1, 2, 0.0), (2, 2, 3.0), (1, 3, 2.5)])
def test_it_equals_the_plain_twin(fragments, quorum, grace):
    """Four learners, one of which is four times as slow and one of which joins later."""
    make = partial(async_diloco, planner=PerTensor())
    field = Field(make, slots=4, fragments=fragments, quorum=quorum, grace=grace)
    learners = [field.join(number, samples_per_step=number + 1) for number in range(3)]
    order = [
        [field.server.model.buckets[place].spec.names for place in places]
        for places in field.server._places
    ]

    def parts(named) -> list[torch.Tensor]:
        found = dict(named)
        return [
            torch.cat([found[n].detach().flatten() for names in part for n in names])
            for part in order
        ]

    plain = PlainServer(parts(field.named), quorum, grace, OUTER['lr'], OUTER['momentum'])
    twins = [PlainLearner(str(n), plain, field.rounds.every, n + 1) for n in range(3)]
    draw = random.Random(f'{fragments} {quorum} {grace}')
    for event in range(150):
        if event == 60:
            learners.append(field.join(3, samples_per_step=4))
            twins.append(PlainLearner('3', plain, field.rounds.every, 4))
        number = draw.choices(range(len(learners)), [4, 4, 1, 4][: len(learners)])[0]
        learner, twin = learners[number], twins[number]
        field.now += 0.5
        before = parts(learner.named)
        gradients = torch.autograd.grad(
            loss(learner.named, number, learner.steps), [p for _, p in learner.named]
        )
        pushed = parts([(n, g) for (n, _), g in zip(learner.named, gradients, strict=True)])
        assert all(map(partial(torch.allclose, atol=1e-5), before, twin.now_at))
        twin.step([-0.125 * gradient for gradient in pushed], field.now)
        learner.step()
        assert all(map(partial(torch.allclose, atol=1e-5), parts(field.named), plain.model))
        assert field.ended == plain.rounds
    assert min(field.ended) > 4


def test_the_table_declares_the_laws_that_are_tested_here():
    assert ALGORITHMS['async-diloco'].laws == {Law.CONSERVES, Law.EQUALS_DENSE, Law.FLUSHES}


@pytest.mark.parametrize('settings', [{}, {'values': 'int8'}, {'values': 'int4'}])
def test_conserves(settings):
    """Per learner, pushed + residual = movement; applied + in open rounds = pushed."""
    make = partial(SPARSE, **settings)
    field = Field(make, slots=2, quorum=1, grace=1e6, outer={'lr': 1.0})
    learners = [field.join(0), field.join(1, samples_per_step=5)]
    begin, moved = field.model(), [torch.zeros(1451), torch.zeros(1451)]
    for _ in range(12):  # rounds, each with a movement of both learners
        for number, learner in enumerate(learners):
            for _ in range(4):
                learner.step()
                gradients = [p.grad.flatten() for _, p in learner.named]
                moved[number] += 0.125 * torch.cat(gradients)
    (contributions,) = field.server.open_rounds
    assert field.ended == [12] and len(contributions) == 0
    pushed = [moved[number] - residual(learners[number]) for number in range(2)]
    mean = (4 * pushed[0] + 20 * pushed[1]) / 24
    assert residual(learners[0]).any()
    assert torch.allclose(begin - field.model(), mean, atol=1e-4)
    before = field.model()
    learners[0].steps_of(4)
    assert (len(contributions), contributions.samples) == (1, 4)
    assert torch.equal(field.model(), before)


def residual(learner: Learner) -> torch.Tensor:
    """What a learner has not sent, in the order of its parameters."""
    found = {
        name: part
        for bucket in learner.optimizer.buckets
        for name, part in bucket.views(bucket.buffers['residual'])
    }
    return torch.cat([found[name].flatten() for name, _ in learner.named])


def test_equals_dense():
    """Where nobody is late it is DiLoCo: LocalSteps in a simulation of as many ranks."""
    rounds, size = 5, 3

    def synchronous(engine: dgc.Engine) -> torch.Tensor:
        named = parameters()
        inner = torch.optim.SGD([p for _, p in named], lr=0.125)
        outer = torch.optim.SGD([p for _, p in named], **OUTER)
        optimizer = dgc.LocalSteps(inner, outer, named, engine=engine, every=4)
        for step in range(4 * rounds):
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for _, p in named])

    (expected, *_) = dgc.simulate(size, synchronous)
    field = Field(slots=size, quorum=size, grace=0.0)
    learners = [field.join(number) for number in range(size)]
    for _ in range(rounds):
        for learner in learners:
            learner.steps_of(4)
        for learner in learners:
            learner.optimizer.pull()
    assert field.ended == [rounds]
    assert torch.allclose(field.model(), expected, atol=1e-5)
    assert all(torch.equal(flat(learner), field.model()) for learner in learners)


def test_flushes():
    field = Field(SPARSE, slots=1)
    learner = field.join()
    learner.steps_of(8)
    assert residual(learner).any()
    for bucket in learner.optimizer.buckets:
        bucket.spec = replace(bucket.spec, schedule=None)  # uncompressed from here on
    learner.steps_of(4)
    assert not residual(learner).any()


# Faults and restarts.


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('fragments', [1, 2])
def test_a_record_is_what_its_learner_got_at_any_interleaving(fragments, seed):
    """Learners step, leave, die and join; messages are lost, repeated and delayed; the server is
    killed and continues from a checkpoint."""
    draw = random.Random(f'{fragments} {seed}')
    make = partial(SPARSE, values=draw.choice(['fp32', 'int8']))
    grace = draw.choice([0.0, 2.0])
    field = Field(make, slots=3, fragments=fragments, grace=grace, seen=Recorder())
    field.faults, field.patience = random_faults(draw, 0.2), 60.0
    learners, saved, checked = [field.join_wired(0)], field.server.state_dict(), 0
    events = ['step', 'join', 'leave', 'die', 'late', 'save', 'restart']
    for _ in range(150):
        event = draw.choices(events, [80, 8, 3, 3, 4, 3, 2])[0]
        if event == 'join' and len(learners) < 3:
            learners.append(field.join_wired(len(learners)))
        elif event == 'step':
            draw.choice(learners).step(seconds=0.3)
        elif event == 'leave' and len(learners) > 1:
            learners.pop(draw.randrange(len(learners))).optimizer.close()
        elif event == 'die' and len(learners) > 1:
            learners.pop(draw.randrange(len(learners)))
            field.now += 11
            field.server.tick(field.now)
        elif event == 'late':
            while field.late:
                field.deliver(field.late.pop(0))
        elif event == 'save':
            saved = field.server.state_dict()
        elif event == 'restart':
            field.server = field.new_server()
            field.server.load_state_dict(saved)
        for learner in learners:
            member = field.server.workers.get(learner.link.session)
            if member is not None and member.ticket == learner.optimizer._ticket:
                learner.assert_recorded()
                checked += 1
        assert all(len(each._own) <= 3 for each in field.server.open_rounds)
    assert checked > 100 and len(field.seen.entries) > 20


@pytest.mark.parametrize('kept', [0, 7, 20])
def test_a_restarted_server_has_every_push_and_the_same_bits(kept):
    """From a checkpoint and a journal of the pushes after it; rounds ended by time in between."""
    seen = Recorder()
    field = Field(SPARSE, slots=3, fragments=2, quorum=2, grace=1.5, seen=seen, updates=40)
    learners = [field.join(number) for number in range(3)]
    saved = field.server.state_dict()
    draw = random.Random(kept)
    while not field.server.finished:
        draw.choices(learners, [4, 4, 1])[0].step(seconds=0.4)
        if field.server.version <= kept:
            saved = field.server.state_dict()
    assert saved['version'] == kept
    again = Field(SPARSE, slots=3, fragments=2, quorum=2, grace=1.5, updates=40)
    again.server.load_state_dict(saved)
    for entry in seen.entries[kept:]:
        again.server.replay(entry)
    assert again.ended == field.ended and sum(field.ended) > 10
    assert torch.equal(again.model(), field.model())
    states = (each.server.outer.state_dict()['state'] for each in (again, field))
    for one, other in zip(*map(dict.values, states), strict=True):
        assert torch.equal(one['momentum_buffer'], other['momentum_buffer'])


def test_an_open_round_survives_a_restart_and_is_applied_then():
    field = Field(slots=2, outer={'lr': 1.0})
    one, _ = field.join(0), field.join(1)
    begin = field.model()
    one.steps_of(4)
    saved = field.server.state_dict()
    assert torch.equal(field.model(), begin)
    field.server = field.new_server()
    field.server.load_state_dict(saved)
    field.server.tick(field.now)  # nobody is connected that could contribute
    assert torch.allclose(field.model(), after_4(0), atol=1e-6)


def test_what_is_not_pushed_remains_when_the_connection_is_lost():
    """The server forgets a learner, which has taken two steps since its push."""
    field = Field(slots=1, fragments=1)
    learner = field.join()
    learner.steps_of(6)
    moved = learner.optimizer._start[0] - learner.optimizer.flats[0]
    field.now += 11
    field.server.tick(field.now)
    learner.optimizer.is_waiting = [True]
    learner.optimizer.pull()  # REJOIN
    newest = field.server.model.flats[0]
    assert moved.any() and torch.equal(learner.optimizer.flats[0], newest - moved)


def test_a_push_that_is_repeated_after_a_pause_is_late_all_the_same():
    """A learner is forgotten during a push, whose movement is two rounds old when it arrives."""
    field = Field(slots=2, quorum=1, grace=0.0)
    fast, slow = field.join(0), field.join(1)
    slow.steps_of(3)
    fast.steps_of(8)
    field.now += 11
    field.server.tick(field.now)
    seen = field.seen = field.server.observer = Recorder()
    slow.step()  # REJOIN, and the push again
    assert [entry.update.staleness for entry in seen.entries] == [2]


def test_two_learners_over_sockets():
    """Threads with connections of their own; the server by the real clock."""
    from dgc.parameter_server import Address
    from dgc.parameter_server.sockets import Service, SocketLink

    field = Field(SPARSE, slots=2, updates=12, quorum=2, grace=0.05)
    with Service(field.server, Address('127.0.0.1', 0)) as service:

        def train(number: int) -> Learner:
            link = SocketLink(service.address, heartbeat=0.5, patience=20)
            learner = Learner(field, number, link=link)
            while not learner.optimizer.finished:
                learner.step()
            learner.optimizer.close()
            return learner

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(train, number) for number in range(2)]
            service.run(lambda: not any(each.done() and each.exception() for each in running))
            steps = [each.result().steps for each in running]
    assert min(steps) > 0 and sum(steps) >= 20  # one may begin when the other has made rounds alone
    # A learner that pushes twice before the other one does adds to the same round.
    assert field.server.version == 12 and 0 < field.ended[0] <= 12


# Refusals.


@pytest.mark.parametrize(
    ('settings', 'error'),
    [
        ({'every': 0}, 'every must be a whole number from 1 on, got 0'),
        ({'every': '30'}, 'every must be a number, got .30.: write every=30, without quotes'),
        ({'quorum': 0}, 'quorum must be a whole number from 1 on, got 0'),
        ({'every': 10, 'fragments': 3}, 'every = 10 must be a multiple of fragments = 3'),
        ({'grace': -1.0}, 'grace must be at least 0 seconds'),
        ({'grace': float('nan')}, 'grace must be at least 0 seconds'),
        ({'scaling': 0.5}, 'scaling must be an object of the class Scaling'),
        ({'every': 4, 'quorum': 4}, 'quorum = 4 is more than the 3 workers'),
        ({'every': 9, 'fragments': 9}, 'fragments must be 1 to 4, the number of layers'),
    ],
)
def test_rounds_that_cannot_be_meant(settings, error):
    with pytest.raises((ValueError, TypeError), match=error):
        Field(slots=3, **settings)


@pytest.mark.parametrize(
    ('make', 'error'),
    [
        (dual_way, 'SAMomentum holds a momentum, .* use Residual or NoMemory'),
        (partial(dual_way, memory=Residual(), gradient_clipping=ClipByNorm(1.0)), 'clipping'),
        (partial(dual_way, memory=Residual(), rate_when_sent=True), 'rate_when_sent is for'),
        (dgc.dense, 'composition must be an object of the class Asynchronous'),
    ],
)
def test_parts_that_fit_no_movement(make, error):
    with pytest.raises((ValueError, TypeError), match=error):
        Field(make)


def test_an_inner_optimizer_that_cannot_take_local_steps():
    field = Field()
    named = parameters()
    inner = dgc.DGCSGD([p for _, p in named], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match='DGCSGD leaves its momentum to a memory'):
        AsynchronousSteps(inner, named, [], DENSE(), DirectLink(field.server), field.rounds)


def test_its_inner_optimizer_may_not_step_by_itself():
    learner = Field().join()
    with pytest.raises(RuntimeError, match='call step\\(\\) of the AsynchronousSteps around it'):
        learner.optimizer.inner.step()
    learner.optimizer.close()
    learner.optimizer.inner.step()


def test_other_fragments_or_no_rounds_are_refused():
    field = Field(fragments=2)
    other = Field(fragments=1)
    with pytest.raises(ServerError, match='differ in the rounds of local steps'):
        Learner(other, link=DirectLink(field.server))
    named = parameters()
    sgd = torch.optim.SGD([p for _, p in named], lr=0.1)
    with pytest.raises(ServerError, match='differ in the rounds of local steps'):
        WorkerOptimizer(sgd, named, [torch.ones(BUFFERS)], dual_way(memory=Residual()),
                        DirectLink(field.server))  # fmt: skip
    with pytest.raises(ValueError, match='the checkpoint has 2 fragments, and the server 1'):
        other.server.load_state_dict(field.server.state_dict())


def test_a_movement_that_is_not_finite_is_named_and_not_sent():
    learner = Field().join()
    learner.steps_of(3)
    with torch.no_grad():
        dict(learner.named)['bias'][0] = float('nan')
    with pytest.raises(dgc.NonFiniteGradientError, match='worker 0: not finite: movement of bias'):
        learner.step()
    assert learner.field.server.version == 0


@pytest.mark.parametrize(
    ('kind', 'body', 'error'),
    [
        (Kind.PUSH, bytes(8), '8 bytes are no movement'),
        (Kind.PUSH, protocol.MOVEMENT.pack(2, 1, 0), 'fragment 2, where there are 2'),
        (Kind.PUSH, protocol.MOVEMENT.pack(0, 0, 0), 'a movement of 0 samples'),
        (Kind.PUSH, protocol.MOVEMENT.pack(0, 2**50, 0), 'a movement of 1125899906842624 samples'),
        (Kind.PUSH, protocol.MOVEMENT.pack(0, 1, 0) + bytes(40), 'elements, where'),
        (Kind.PULL, bytes(4), '4 bytes are no number of a fragment'),
        (Kind.PULL, protocol.NUMBER.pack(7), 'fragment 7, where there are 2'),
    ],
)
def test_messages_that_do_not_fit_change_nothing(kind, body, error):
    field = Field(fragments=2)
    learner = field.join()
    before, optimizer = field.model(), learner.optimizer
    message = Message(kind, learner.link.session, 2, 0, optimizer._ticket, 0, 1, body)
    reply = protocol.decode(field.server.handle(message.encode(), 0.0), protocol.FROM_SERVER)
    assert reply.kind is Kind.REFUSED and error in reply.text
    assert torch.equal(field.model(), before) and field.server.version == 0


def test_a_server_without_rounds_refuses_to_be_pulled():
    world = World(partial(dual_way, memory=Residual()), momentum=0.0)
    worker = world.join()
    link, optimizer = worker.optimizer._link, worker.optimizer
    message = Message(Kind.PULL, link.session, 2, 0, optimizer._ticket, 0, 0, bytes(8))
    reply = protocol.decode(world.deliver(message.encode()), protocol.FROM_SERVER)
    assert reply.kind is Kind.REFUSED and 'no rounds of local steps' in reply.text


def test_a_movement_out_of_proportion_is_refused_and_its_learner_gets_the_newest():
    field = Field(slots=1, outer={'lr': 0.1}, fragments=2, max_norm_ratio=20.0)
    learner = field.join()
    learner.steps_of(44)  # 22 pushes, 11 of each fragment
    with torch.no_grad():
        dict(learner.named)['wide.weight'].add_(1000.0)
    ended = sum(field.ended)
    learner.steps_of(4)
    assert sum(field.ended) == ended + 1  # of the other fragment
    assert dict(learner.named)['wide.weight'].abs().max() < 100
    learner.assert_recorded()


def test_the_kept_apart_contributions_are_as_many_as_slots():
    """Learners that join, push and die one after another while no round ends."""
    field = Field(slots=2, quorum=2, grace=1e6, outer={'lr': 1.0})
    stays = field.join(0)
    begin = field.model()
    for number in (1, 2, 3, 4):
        learner = field.join(number)
        learner.steps_of(4)
        learner.optimizer.close()
        field.server.open_rounds[0].quorum_at = None
        assert len(field.server.open_rounds[0]._own) <= 2
    assert len(field.server.open_rounds[0]) == 4 and field.ended == [0]
    stays.steps_of(4)
    assert field.ended == [1]
    moves = [begin - after_4(number) for number in range(5)]
    assert torch.allclose(begin - field.model(), sum(moves) / 5, atol=1e-6)
