"""Checkpoints: whole or not at all, few, plain, and shared out among other numbers of ranks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.saved_state import merge_states
from utils.checkpoint import CheckpointError, Checkpoints, Position
from utils.files import replacing
from utils.sealed import plain
from utils.search import Search


def after(epoch: int) -> Position:
    return Position(epoch + 1)


def epochs(checkpoints: Checkpoints) -> dict[int, int]:
    """The epochs of which there is a file, and the number of ranks that saved each."""
    return {position.epoch: size for position, size in sorted(checkpoints.saved())}


def state(value: float, epoch: int = 0, best: float | None = None) -> dict:
    """What one rank saves; ``value`` is all that it keeps back."""
    memory = {'w': {'velocity': torch.full((3,), value)}}
    return {
        'model': {'w': torch.zeros(3)},
        'optimizer': {'memory': memory},
        'epoch': epoch,
        'best': best,
    }


def velocity(loaded: dict) -> float:
    values = loaded['optimizer']['memory']['w']['velocity']
    assert (values == values[0]).all()
    return float(values[0])


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- saving


def test_numpy_scalars_become_plain_and_load_without_pickle(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(
        after(0), {'best': np.float64(97.5), 'more': [np.int64(3), {'x': (np.bool_(True),)}]}
    )
    loaded = torch.load(tmp_path / 'e0000.r0of1.pth', weights_only=True)
    loaded.pop('manifest')
    assert loaded == {'best': 97.5, 'more': [3, {'x': (True,)}]}
    assert [type(loaded['best']), type(loaded['more'][0])] == [float, int]


def test_plain_leaves_tensors_alone():
    tensor = torch.ones(2)
    assert plain({'a': [tensor]})['a'][0] is tensor


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(after(0), state(1))

    def full(value, file):
        file.write(b'half of it')
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(torch, 'save', full)
    for epoch in (0, 1):
        with pytest.raises(OSError, match='No space left'):
            checkpoints.save(after(epoch), state(2))
    monkeypatch.undo()
    assert epochs(checkpoints) == {0: 1}
    assert velocity(checkpoints.load(after(0), 1)) == 1
    checkpoints.save(after(1), state(3))
    assert velocity(checkpoints.load(after(1), 1)) == 3


def test_ranks_need_not_see_each_others_disks(tmp_path):
    """Each notes the best epoch for itself, and does not drop it."""
    for rank in range(2):
        mine = Checkpoints(tmp_path / str(rank), rank, 2)
        for epoch in range(6):
            mine.save(after(epoch), state(epoch))
            mine.finish(after(epoch), 1 if epoch else None)
        assert mine.best() == 1
        assert sorted(epochs(mine)) == [1, 3, 4, 5]


@given(st.lists(st.booleans(), min_size=1, max_size=8))
@settings(deadline=None, max_examples=25)
def test_the_last_three_and_the_best_are_kept(tmp_path_factory, improved):
    folder, best = tmp_path_factory.mktemp('kept'), None
    ranks = [Checkpoints(folder, rank, 2) for rank in range(2)]
    for epoch, better in enumerate(improved):
        best = epoch if better else best
        for checkpoints in ranks:
            checkpoints.save(after(epoch), {})
        for checkpoints in ranks:
            checkpoints.finish(after(epoch), best)
    last = len(improved) - 1
    kept = {epoch for epoch in (last - 2, last - 1, last, best) if epoch is not None and epoch >= 0}
    assert epochs(ranks[0]) == dict.fromkeys(kept, 2)
    files = {f'e{epoch:04d}.r{rank}of2.pth' for epoch in kept for rank in range(2)}
    assert set(names(folder)) == files | ({'best.txt'} if best is not None else set())


@pytest.mark.parametrize(
    ('keep', 'kept'), [(None, [0, 1, 2, 3, 4, 5]), (1, [0, 5]), (2, [0, 4, 5])]
)
def test_as_many_epochs_are_kept_as_the_setting_says(tmp_path, keep, kept):
    mine = Checkpoints(tmp_path, keep_epochs=keep)
    for epoch in range(6):
        mine.save(after(epoch), {})
        mine.finish(after(epoch), 0)
    assert sorted(epochs(mine)) == kept


def test_pruning_touches_nothing_else(tmp_path):
    others = ['e0000.r0of4.pth', 'e0000.r1of2.pth', 'notes.txt', 'e0000.r0of2.partial', 'e12.pth']
    for name in others:
        (tmp_path / name).touch()
    mine = Checkpoints(tmp_path, 0, 2)
    for epoch in range(5):
        mine.save(after(epoch), {})
        mine.finish(after(epoch))
    assert set(others) - {'e0000.r0of2.partial'} <= set(names(tmp_path))


def test_the_best_epoch_is_recorded_where_it_can_be_read(tmp_path):
    """Also later, if a kill came between the file of that epoch and best.txt."""
    mine = Checkpoints(tmp_path, 0, 2)
    mine.record_best(3)
    assert mine.best() is None
    mine.save(after(3), {})
    mine.save(after(4), {})
    mine.finish(Position(4, 5), 3)
    assert mine.best() == 3
    (tmp_path / 'best.txt').write_text('torn')
    Checkpoints(tmp_path, 1, 3).record_best(3)  # another number of ranks
    assert mine.best() == 3
    mine.record_best(None)
    assert mine.best() == 3
    for epoch in range(4, 9):
        mine.save(after(epoch), {})
        mine.finish(after(epoch), 3)
    assert sorted(epochs(mine)) == [3, 6, 7, 8]


# ---------------------------------------------------------------- which epochs


def restored(
    folder, size: int, evaluate: bool = False, apart: bool = False, anew: bool = False
) -> list:
    """What each of ``size`` ranks finds: None, or the position and this rank's state."""

    def worker(engine: dgc.Engine):
        model = torch.nn.Module()
        model.register_buffer('w', torch.zeros(3))
        own = folder / str(engine.rank) if apart else folder
        saved = Search(engine, torch.device('cpu'), own, evaluate).last(model, anew)
        return saved and (saved.position, saved.state)

    return dgc.simulate(size, worker)


def test_the_checkpoints_of_all_epochs_are_found_in_either_order(tmp_path):
    """Of an epoch that two and three ranks saved, those that can be read; steps are no epochs."""
    for epoch, size in ((0, 2), (1, 2), (1, 3), (2, 2), (3, 2)):
        save_all(tmp_path, epoch, size)
    folder = tmp_path / 'checkpoints'
    (folder / 'e0001.r1of2.pth').write_bytes(b'damaged')
    (folder / 'e0002.r0of2.pth').unlink()
    Checkpoints(folder, 0, 2).save(Position(4, 3), state(0))

    def worker(engine: dgc.Engine):
        model = torch.nn.Module()
        model.register_buffer('w', torch.zeros(3))
        search = Search(engine, torch.device('cpu'), tmp_path, evaluate=True)
        return [
            [(saved.position.epoch, saved.size) for saved in search.epochs(model, newest_first)]
            for newest_first in (False, True)
        ]

    for ascending, descending in dgc.simulate(2, worker):
        assert ascending == [(0, 2), (1, 3), (3, 2)] and descending == ascending[::-1]


def save_all(folder, epoch: int, size: int, apart: bool = False) -> None:
    for rank in range(size):
        own = folder / str(rank) if apart else folder
        checkpoints = Checkpoints(own / 'checkpoints', rank, size)
        checkpoints.save(after(epoch), state(10 * epoch + rank, epoch, 50.0 + epoch))


@pytest.mark.parametrize('apart', [False, True])
def test_the_ranks_agree_on_the_last_epoch_that_all_have(tmp_path, apart):
    for epoch in range(3):
        save_all(tmp_path, epoch, 2, apart)
    own = tmp_path / '1' if apart else tmp_path
    (own / 'checkpoints/e0002.r1of2.pth').unlink()
    for rank, (position, loaded) in enumerate(restored(tmp_path, 2, apart=apart)):
        assert (position, loaded['best']) == (after(1), 51.0)
        assert velocity(loaded) == 10 + rank


def test_the_folder_of_checkpoints_may_be_named_too(tmp_path):
    save_all(tmp_path, 0, 1)
    assert restored(tmp_path / 'checkpoints', 1)[0][0] == after(0)


@pytest.mark.parametrize('size', [1, 2, 3])
def test_evaluation_reads_the_best_epoch(tmp_path, size):
    for epoch in range(3):
        save_all(tmp_path, epoch, 2)
    (tmp_path / 'checkpoints/best.txt').write_text('1\n')
    for position, _ in restored(tmp_path, size, evaluate=True):
        assert position == after(1)


def test_a_best_epoch_that_is_gone_is_replaced_by_the_last(tmp_path):
    save_all(tmp_path, 4, 2)
    (tmp_path / 'checkpoints/best.txt').write_text('1\n')
    assert restored(tmp_path, 1, evaluate=True)[0][0] == after(4)


@pytest.mark.parametrize('content', [b'', b'not a checkpoint', b'PK\x03\x04 cut'])
def test_damage_is_named(tmp_path, content):
    path = tmp_path / 'checkpoints/e0000.r0of1.pth'
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r'e0000\.r0of1\.pth is damaged; there is no checkpoint'
    ):
        restored(tmp_path, 1)


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match=r'no checkpoint in .* that all ranks can read'):
        restored(tmp_path, 2)


# ---------------------------------------------------------------- merging


@given(st.integers(1, 9), st.integers(1, 9))
@settings(deadline=None)
def test_the_mean_over_the_workers_of_what_is_kept_survives(old, new):
    generator = random.Random(10 * old + new)
    values = [generator.uniform(-1, 1) for _ in range(old)]
    saved = [state(value)['optimizer'] for value in values]
    merged = [merge_states(saved, rank, new)['memory'] for rank in range(new)]
    sums = sum(float(memory['w']['velocity'][0]) for memory in merged if memory)
    assert sums / new == pytest.approx(sum(values) / old, rel=1e-4, abs=1e-6)


def test_merging_keeps_names_and_buffers_apart_and_its_input_as_it_was():
    ones = {'u': torch.ones(2), 'v': torch.full((2,), 3.0)}
    memories = [{'a': dict(ones), 'b': dict(ones)}, {'a': dict(ones)}]
    merged = merge_states([{'memory': memory} for memory in memories], 0, 1)['memory']
    assert {
        name: {k: float(v[0]) for k, v in buffers.items()} for name, buffers in merged.items()
    } == {
        'a': {'u': 1.0, 'v': 3.0},
        'b': {'u': 0.5, 'v': 1.5},
    }
    assert float(memories[0]['a']['u'][0]) == 1.0


@pytest.mark.parametrize(
    ('old', 'new', 'kept'),
    [
        (4, 2, [(0 + 2) / 2, (1 + 3) / 2]),
        (2, 4, [0 * 2, 1 * 2, None, None]),
        (3, 2, [(0 + 2) * 2 / 3, 1 * 2 / 3]),
        (2, 2, [0, 1]),
    ],
)
def test_ranks_share_out_what_others_kept(tmp_path, old, new, kept):
    for rank in range(old):
        Checkpoints(tmp_path, rank, old).save(after(7), state(rank))
    loaded = [Checkpoints(tmp_path, rank, new).load(after(7), old) for rank in range(new)]
    found = [velocity(one) if one['optimizer']['memory'] else None for one in loaded]
    assert found == [None if k is None else pytest.approx(k) for k in kept]


def test_ctrl_c_in_the_middle_of_a_save_stays_ctrl_c(tmp_path):
    """torch.save ends its archive after an interrupt too, and raises a RuntimeError there."""
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / 'e0000.r0of1.pth'):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError('unexpected pos 64 vs 0')
    assert not list(tmp_path.iterdir())
