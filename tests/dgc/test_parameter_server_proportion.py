"""Updates out of proportion: refused by a setting, and what becomes of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ps_helpers import World

from dgc.compressors import TopK
from dgc.parameter_server import ServerError, ServerSettings, dual_way, protocol
from dgc.parameter_server.proportion import ENOUGH, IN_A_ROW, Proportion
from dgc.sparse import Sparse

exact = partial(dual_way, compress_ratio=0.05, compressor=TopK(), secondary=TopK())


class Bounded(World):
    """A world whose server refuses updates of more than five times the median."""

    def new_server(self):
        server = super().new_server()
        server._proportion = Proportion(5.0)
        return server


def outsized(worker, factor: float) -> None:
    """A step whose update is ``factor`` times as large as usual."""
    for group in worker.optimizer.param_groups:
        group['lr'] *= factor
    worker.step()
    for group in worker.optimizer.param_groups:
        group['lr'] /= factor


def trained() -> tuple[World, object]:
    world = Bounded(exact, slots=2, momentum=0.9)
    worker = world.join()
    for _ in range(ENOUGH):
        worker.step()
    return world, worker


def test_an_outsized_update_is_refused_and_dropped_and_the_worker_is_told(caplog):
    world, worker = trained()
    model = [values.clone() for values in world.server.model.flats]
    outsized(worker, 1e4)
    assert world.server.version == ENOUGH == worker.optimizer.version
    assert all(map(torch.equal, model, world.server.model.flats))
    assert f'update {ENOUGH + 1} of this worker is refused and dropped: its norm' in caplog.text
    assert 'refused an update of worker 0: its norm' in caplog.text
    worker.assert_recorded()
    assert all(not bucket.state['memory']['momentum'].any() for bucket in worker.optimizer.buckets)
    for _ in range(5):  # what the memory kept of it would be refused again
        worker.step()
    assert world.server.version == ENOUGH + 5


def test_a_refused_update_is_refused_once_though_its_message_is_repeated():
    world, worker = trained()
    world.faults = iter(['reply lost', 'twice', *[''] * 10]).__next__
    outsized(worker, 1e4)
    assert world.server.version == ENOUGH
    worker.assert_recorded()


def test_after_a_restart_the_median_is_the_same():
    world, worker = trained()
    state = world.server.state_dict()
    assert len(state['norms']) == ENOUGH
    world.restart(state)
    outsized(worker, 1e4)
    assert world.server.version == ENOUGH


def test_a_worker_whose_updates_are_always_refused_gives_up_with_the_remedy():
    world, worker = trained()
    for group in worker.optimizer.param_groups:
        group['lr'] = 1e4
    with pytest.raises(ServerError, match=r'refused 10 updates .*max_norm_ratio higher'):
        for _ in range(IN_A_ROW):
            worker.step()
    assert world.server.version == ENOUGH


def test_an_update_that_grows_slowly_is_accepted_and_nothing_is_refused_without_the_setting():
    rising = [[Sparse(torch.tensor([1.05**n]), None, 1)] for n in range(300)]
    bounded, free = Proportion(20.0), Proportion()
    assert not any(bounded.objection(update) for update in rising)
    assert not any(free.objection([Sparse(torch.tensor([10.0**n]), None, 1)]) for n in range(30))


def test_a_reason_that_is_longer_than_its_message_is_an_error():
    for body in (b'', bytes([9]) + bytes(7)):
        with pytest.raises(protocol.ProtocolError):
            protocol.split_declined(body)


@pytest.mark.parametrize('ratio', [1.0, 0.0, -3.0, float('nan')])
def test_a_ratio_that_refuses_usual_updates_is_an_error(ratio):
    with pytest.raises(ValueError, match=r'max_norm_ratio must be above 1'):
        ServerSettings(max_norm_ratio=ratio)
    with pytest.raises(ValueError, match=r'max_norm_ratio must be above 1'):
        Proportion(ratio)
