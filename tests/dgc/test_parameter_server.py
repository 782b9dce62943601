"""The server and its workers, without a network: invariants at random interleavings, and faults."""

from __future__ import annotations

import io
import random
from functools import partial

import pytest
import torch
from dgc_helpers import loss, parameters
from pairwise import by_pairs
from ps_helpers import BUFFERS, Plain, World, random_faults, reply_kind

from dgc.codec import INDICES, VALUES, Unbiased
from dgc.compressors import SampledTopK, TopK
from dgc.memory import MomentumCorrection, Residual, SAMomentum
from dgc.parameter_server import Changed, InverseStaleness, ServerError, dual_way, protocol
from dgc.parameter_server.protocol import Kind
from dgc.planner import PerTensor

# Unbiased codings do not fit the memory of a worker.
CODECS = [
    (values, indices)
    for values, coding in VALUES.items()
    for indices in INDICES
    if indices not in ('none', 'even') and not isinstance(coding.error, Unbiased)
]
exact = partial(dual_way, compress_ratio=0.05, compressor=TopK(), secondary=TopK())


@pytest.mark.parametrize(
    *by_pairs({
        'values': list(dict.fromkeys(values for values, _ in CODECS)),
        'indices': list(dict.fromkeys(indices for _, indices in CODECS)),
        'memory': (SAMomentum, MomentumCorrection),
        'secondary': (SampledTopK, TopK, Changed),
    })
)  # fmt: skip
def test_a_record_is_its_workers_parameters_at_any_interleaving(values, indices, memory, secondary):
    """Workers step, leave, die and join; messages are lost, repeated and delayed; the server is
    killed and continues from a checkpoint. Each pair of codings, memory and secondary compression
    has one run, in which chance decides what happens."""
    draw = random.Random(f'{values} {indices}')
    make = partial(dual_way, 0.05, values=values, indices=indices)
    world = World(
        lambda: make(memory=memory(), secondary=secondary()),
        faults=random_faults(draw, 0.2),
        patience=60,
    )
    workers, checkpoint, checked = [world.join()], world.server.state_dict(), 0
    for _ in range(80):
        event = draw.choices(
            ['step', 'join', 'leave', 'die', 'late', 'save', 'restart'], [80, 8, 3, 3, 4, 3, 2]
        )[0]
        if event == 'join' and len(workers) < world.budget.worker_slots:
            workers.append(world.join())
        elif event == 'step' and workers:
            draw.choice(workers).step()
        elif event == 'leave' and len(workers) > 1:
            workers.pop(draw.randrange(len(workers))).optimizer.close()
        elif event == 'die' and len(workers) > 1:  # without a LEAVE: it times out
            workers.pop(draw.randrange(len(workers)))
            world.now += 11
            world.server.tick(world.now)
        elif event == 'late':
            world.deliver_late()
        elif event == 'save':
            checkpoint = world.server.state_dict()
        elif event == 'restart':
            world.restart(checkpoint)
        for worker in workers:
            if worker.is_known:
                worker.assert_recorded()
                checked += 1
    assert checked > 60
    assert len(world.notes.updates) > 20


def test_an_update_for_an_earlier_record_is_not_applied():
    """Of a worker that has begun again since: its record may differ from what the update is for."""
    world = World(exact)
    worker = world.join()
    world.faults = lambda: 'again later'
    worker.step()
    pushed = protocol.decode(world.late.pop(), protocol.FROM_WORKER)
    assert pushed.kind is Kind.PUSH and world.server.version == 1
    later = pushed._replace(sequence=pushed.sequence + 5, update=pushed.update + 5)
    before = [parameter.clone() for _, parameter in world.named]
    stale = later._replace(ticket=pushed.ticket ^ 1)
    assert reply_kind(world.deliver(stale.encode())) is Kind.REJOIN
    assert world.server.version == 1
    assert all(torch.equal(p, was) for (_, p), was in zip(world.named, before, strict=True))
    assert reply_kind(world.deliver(later.encode())) is Kind.ANSWER  # all else fits
    assert world.server.version == 2


def test_the_server_equals_the_reference_of_the_paper():
    """Every element that is sent equals that of a reference with dense vectors."""
    make = partial(exact, memory=Residual(), planner=PerTensor())
    world = World(make, slots=3, momentum=0.0)
    name, k = 'wide.weight', 64
    plain = Plain(dict(parameters())[name].detach().flatten())
    workers = [world.join() for _ in range(3)]
    residuals, copies = [torch.zeros(1280) for _ in workers], [plain.join(w) for w in range(3)]
    draw = random.Random(1)
    for _ in range(30):
        number = draw.randrange(3)
        worker = workers[number]
        gradient = torch.autograd.grad(
            loss(worker.named, number, worker.steps), dict(worker.named)[name]
        )[0].flatten()
        residuals[number] += 0.1 * gradient
        top = residuals[number].abs().topk(k).indices
        update = torch.zeros(1280).index_copy(0, top, residuals[number][top])
        residuals[number][top] = 0
        copies[number] += plain.push(number, update, k)
        worker.step()
        assert torch.allclose(dict(worker.named)[name].flatten(), copies[number], atol=1e-6)
    assert torch.allclose(dict(world.named)[name].flatten(), plain.model, atol=1e-6)


def sgd_steps(steps: int, **settings) -> list[torch.Tensor]:
    named = parameters()
    sgd = torch.optim.SGD([p for _, p in named], **settings)
    for step in range(steps):
        sgd.zero_grad()
        loss(named, 0, step).backward()
        sgd.step()
    return [p.detach() for _, p in named]


@pytest.mark.parametrize('memory', [SAMomentum, MomentumCorrection])
def test_one_dense_worker_equals_momentum_sgd_bit_for_bit(memory):
    """At rates that are powers of two, where (lr·u) and lr·(u) are the same number."""
    settings = {'lr': 0.25, 'momentum': 0.5}
    world = World(lambda: dual_way(1.0, memory=memory()), slots=1, **settings)
    worker = world.join()
    for _ in range(20):
        worker.step()
    for (_, parameter), right in zip(worker.named, sgd_steps(20, **settings), strict=True):
        assert torch.equal(parameter, right)


@pytest.mark.parametrize('memory', [SAMomentum, MomentumCorrection])
def test_one_dense_worker_equals_momentum_sgd(memory):
    settings = {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.01}
    world = World(lambda: dual_way(1.0, memory=memory()), slots=1, **settings)
    worker = world.join()
    for _ in range(20):
        worker.step()
    for (_, parameter), right in zip(worker.named, sgd_steps(20, **settings), strict=True):
        torch.testing.assert_close(parameter.detach(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('codec', CODECS, ids='-'.join)
@pytest.mark.parametrize('ratio', [1.0, 0.05])
def test_dense_parameters_equal_the_servers_after_each_step(codec, ratio):
    """Compared with θ itself: the record follows a wrong answer as the worker does."""
    values, indices = codec
    world = World(lambda: dual_way(ratio, values=values, indices=indices), slots=2)
    workers = [world.join(), world.join()]
    for number in range(6):
        worker = workers[number % 2]
        worker.step()
        servers = dict(world.named)
        for name, parameter in worker.named:
            if ratio == 1.0 or parameter.dim() < 2:
                assert torch.equal(parameter, servers[name]), name


@pytest.mark.parametrize('always_sparse', [True, False])
def test_messages_longer_than_dense_are_sent_on_request(always_sparse):
    """failures row 6"""
    world = World(lambda: dual_way(0.8, always_sparse=always_sparse), slots=1)
    worker = world.join()
    for _ in range(3):
        worker.step()
    numel = sum(parameter.numel() for _, parameter in worker.named)
    elements = [update.elements for update in world.notes.updates]
    assert all((each < 2 * numel) == always_sparse for each in elements), (elements, numel)


def test_nesterov_needs_momentum_correction():
    settings = {'lr': 0.1, 'momentum': 0.9, 'nesterov': True}
    world = World(lambda: dual_way(1.0, memory=MomentumCorrection()), slots=1, **settings)
    worker = world.join()
    for _ in range(20):
        worker.step()
    for (_, parameter), right in zip(worker.named, sgd_steps(20, **settings), strict=True):
        torch.testing.assert_close(parameter.detach(), right, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match='no Nesterov form'):
        World(dual_way, **settings)


def test_unsent_elements_of_an_answer_are_sent_later():
    """A worker with zero gradients receives all updates of another, and nothing remains."""
    world = World(lambda: exact(memory=Residual()), slots=2, momentum=0.0)
    first, second = world.join(), world.join()
    for _ in range(5):
        first.step()
    model = [values.clone() for values in world.server.model.flats]
    behind = [
        float((mine - theirs).abs().max())
        for mine, theirs in zip(second.optimizer.flats, model, strict=True)
    ]
    assert max(behind) > 0.01
    for _ in range(40):
        second.optimizer.zero_grad()
        second.optimizer.step()
    for mine, theirs in zip(second.optimizer.flats, model, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_staleness_counts_the_updates_of_others():
    world = World(exact, slots=3)
    a, b, c = (world.join() for _ in range(3))
    for worker in (a, b, a, a, c):
        worker.step()
    assert [update.staleness for update in world.notes.updates] == [0, 1, 1, 0, 4]
    assert [update.slot for update in world.notes.updates] == [0, 1, 0, 0, 2]
    assert [update.version for update in world.notes.updates] == [1, 2, 3, 4, 5]


def test_stale_updates_are_scaled_on_request():
    def moved(**parts):
        world = World(lambda: dual_way(1.0, **parts), slots=2)
        a, b = world.join(), world.join()
        for _ in range(3):
            a.step(rank=0)
        before = torch.cat(world.server.model.flats)
        b.step(rank=1)
        return torch.cat(world.server.model.flats) - before

    torch.testing.assert_close(moved(scaling=InverseStaleness()), moved() / 3, rtol=1e-4, atol=1e-6)


def test_learning_rates_and_densities_follow_the_servers_progress():
    world = World(exact, slots=2)
    a, b = world.join(), world.join()
    for _ in range(5):
        a.step()
    assert (a.optimizer.steps, b.optimizer.steps) == (2, 0)
    b.step()
    assert b.optimizer.steps == 3


def test_statistics_are_the_mean_of_the_workers_reports():
    world = World(lambda: exact(statistics_period=1), slots=2)
    a, b = world.join(), world.join()
    assert torch.equal(a.buffers[0], torch.zeros(BUFFERS))  # the server's
    a.buffers[0].fill_(1.0)
    b.buffers[0].fill_(4.0)
    a.step()
    assert torch.equal(world.server.average(), torch.full((BUFFERS,), 1.0))
    b.step()
    assert torch.equal(world.server.average(), torch.full((BUFFERS,), 2.5))
    b.optimizer.close()
    assert torch.equal(world.join().buffers[0], torch.full((BUFFERS,), 2.5))


def test_a_buffer_that_is_infinite_everywhere_stays_so():
    """Such as an attention mask among the buffers of a model."""
    world = World(lambda: exact(statistics_period=1), slots=1)
    world.buffers[0][1] = -torch.inf
    worker = world.join()
    assert worker.buffers[0][1] == -torch.inf
    worker.buffers[0][0] = 3.0
    worker.step()
    worker.step()
    assert world.server.average().tolist() == [3.0, -torch.inf, *[0.0] * (BUFFERS - 2)]


def test_a_statistic_that_has_overflowed_does_not_reach_the_server():
    world = World(lambda: exact(statistics_period=1), slots=1)
    worker = world.join()
    worker.buffers[0].copy_(torch.tensor([2.0, torch.nan, torch.inf, 1.0, 1.0, 1.0]))
    worker.step()
    assert world.server.average().tolist() == [2.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_losses_arrive():
    world = World(exact, slots=1)
    world.join().optimizer.report_losses([1.5, 0.25])
    assert world.notes.losses_seen == [(0, [1.5, 0.25])]


def test_training_ends_after_the_exact_number_of_updates_and_drains():
    world = World(exact, slots=2, updates=7)
    a, b = world.join(), world.join()
    while not (a.optimizer.finished and b.optimizer.finished):
        for worker in (a, b):
            worker.step()
    assert world.server.version == 7 and len(world.notes.updates) == 7
    assert world.server.finished and not world.server.drained
    a.optimizer.close()
    assert not world.server.drained
    b.optimizer.close()
    assert world.server.drained
    late = world.join()
    assert late.optimizer.finished
    late.step()
    assert world.server.version == 7


def test_a_silent_worker_loses_its_slot_and_gets_the_whole_model_when_it_returns():
    world = World(exact, slots=2)
    a, b = world.join(), world.join()
    with pytest.raises(ServerError, match='all worker slots of the server have been taken'):
        world.join()
    world.now = 9
    a.step()
    world.now = 15
    world.server.tick(world.now)  # b has been silent for 15 seconds, a for 6
    c = world.join()
    assert c.optimizer.slot == 1
    a.optimizer.close()
    b.step()  # its slot is taken, another one is free
    assert b.optimizer.slot == 0
    for worker in (b, c):
        worker.assert_recorded()


def test_a_restarted_server_applies_each_update_once():
    """The update is in the checkpoint, its answer is lost: it is sent again, and skipped."""
    world = World(lambda: dual_way(1.0), slots=1)
    worker = world.join()
    worker.step()
    states = []

    def lose_reply_and_restart():
        if states:
            return ''
        states.append(None)
        return 'reply lost'

    deliver = world.deliver

    def deliver_then_die(frame):
        reply = deliver(frame)
        if len(states) == 1:
            states.append(world.server.state_dict())
            world.restart(states[1])
        return reply

    world.faults, world.deliver = lose_reply_and_restart, deliver_then_die
    worker.step()
    assert world.server.version == 2 and worker.optimizer.version == 2
    worker.assert_recorded()
    worker.step()
    assert world.server.version == 3


def test_an_update_after_the_checkpoint_of_a_killed_server_is_made_again():
    world = World(lambda: dual_way(1.0), slots=1)
    worker = world.join()
    worker.step()
    world.restart(world.server.state_dict())
    worker.step()
    assert world.server.version == 2
    worker.assert_recorded()


def test_a_checkpoint_is_read_without_pickle_and_restores_the_same_model():
    world = World(exact, slots=2)
    workers = [world.join(), world.join()]
    for step in range(6):
        workers[step % 2].step()
    file = io.BytesIO()
    torch.save(world.server.state_dict(), file)
    file.seek(0)
    before = [values.clone() for values in world.server.model.flats]
    world.restart(torch.load(file, weights_only=True))
    assert world.server.version == 6
    assert all(map(torch.equal, before, world.server.model.flats))


def test_a_gradient_that_is_not_finite_is_named_and_never_sent():
    from dgc import NonFiniteGradientError

    world = World(exact, slots=1)
    worker = world.join()
    worker.step()
    dict(worker.named)['bias'].grad = torch.full((10,), torch.nan)
    with pytest.raises(NonFiniteGradientError, match='gradient of bias'):
        worker.optimizer.step()
    assert world.server.version == 1


def test_bytes_and_elements_are_counted_alike_on_both_sides():
    world = World(exact, slots=1)
    worker = world.join()
    before = worker.optimizer.progress.sent, worker.optimizer.progress.received
    worker.step()
    (update,) = world.notes.updates
    progress = worker.optimizer.progress
    assert (progress.sent - before[0], progress.received - before[1]) == (
        update.received,
        update.sent,
    )
    assert update.elements == 2 * (72 + 11)  # 5 % of 1,440, and what has one dimension or none


def test_every_byte_of_a_worker_is_counted():
    """Also of messages without a reply: losses, statistics, the end."""
    world = World(lambda: exact(statistics_period=1), slots=1)
    counts = {'sent': 0, 'received': 0}
    deliver = world.deliver

    def deliver_counted(frame):
        reply = deliver(frame)
        counts['sent'] += len(frame)
        counts['received'] += len(reply or b'')
        return reply

    world.deliver = deliver_counted
    worker = world.join()
    worker.step()
    worker.optimizer.report_losses([1.5, 0.25])
    worker.optimizer.close()
    progress = worker.optimizer.progress
    assert {'sent': progress.sent, 'received': progress.received} == counts


def test_a_server_that_goes_back_to_a_checkpoint_has_its_statistics():
    """And not the workers' reports of what came after it."""
    world = World(lambda: exact(statistics_period=1), slots=2)
    a, b = world.join(), world.join()
    for worker, value in ((a, 1.0), (b, 4.0)):
        worker.buffers[0].fill_(value)
        worker.step()
    saved = world.server.state_dict()
    a.buffers[0].fill_(10.0)
    a.step()
    assert torch.equal(world.server.average(), torch.full((BUFFERS,), 7.0))
    world.server.load_state_dict(saved)
    assert torch.equal(world.server.average(), torch.full((BUFFERS,), 2.5))
