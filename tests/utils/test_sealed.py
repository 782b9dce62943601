"""Damage of any kind is found, named, and agreed upon by all ranks."""

from __future__ import annotations

import random
import re
import shutil

import pytest
import torch

import dgc
from dgc.engines import LocalEngine
from utils import sealed
from utils.checkpoint import CheckpointError, Checkpoints, Position, not_finite
from utils.cli import Refused
from utils.sealed import Unusable
from utils.search import Saved, Search

STATE = {
    'model': {'weight': torch.arange(300.0), 'count': torch.tensor(3)},
    'optimizer': {'state': {0: {'step': 4, 'momentum': torch.ones(50, dtype=torch.bfloat16)}}},
    'empty': (torch.zeros(0), None, [1.5, 'text']),
}


def write(path, state=STATE):
    sealed.write(state, {'run': 'a'}, path)
    return path.read_bytes()


def test_what_is_written_is_read_and_torch_reads_it_too(tmp_path):
    path = tmp_path / 'a.pth'
    write(path)
    for state in (sealed.read(path), torch.load(path, weights_only=True)):
        manifest = state.pop('manifest')
        assert (manifest['run'], manifest['format']) == ('a', sealed.FORMAT)
        assert [name for name, _ in sealed.tensors(state)] == list(manifest['checksums'])
        assert str(state) == str(STATE)


@pytest.mark.parametrize('kind', ['bit', 'block', 'cut', 'more'])
def test_no_damage_is_silent(tmp_path, kind):
    path, draw = tmp_path / 'a.pth', random.Random(kind)
    raw = write(path)
    for _ in range(60):
        damaged, at = bytearray(raw), draw.randrange(len(raw))
        if kind == 'bit':
            damaged[at] ^= 1 << draw.randrange(8)
        elif kind == 'block':
            damaged[at : at + 64] = bytes(b ^ 255 for b in damaged[at : at + 64])
        elif kind == 'cut':
            del damaged[at:]
        else:
            damaged += draw.randbytes(1 + at)
        path.write_bytes(damaged)
        with pytest.raises(Unusable, match=r'^is damaged'):
            sealed.read(path)


@pytest.mark.parametrize('cut', [sealed.LENGTH, len(sealed.MAGIC), 1])
def test_a_file_without_its_seal_is_not_taken_for_an_old_one(tmp_path, cut):
    path = tmp_path / 'a.pth'
    path.write_bytes(write(path)[:-cut])
    with pytest.raises(Unusable, match=r'^is damaged$'):
        sealed.read(path)


def test_a_damaged_tensor_is_named(tmp_path):
    path = tmp_path / 'a.pth'
    raw = bytearray(write(path))
    raw[raw.index(STATE['model']['weight'].numpy().tobytes()) + 100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Unusable, match=r'^is damaged \(model.weight\)$'):
        sealed.read(path)


def test_a_file_of_an_earlier_version_is_read_and_its_own_checksums_are_used(tmp_path):
    path = tmp_path / 'a.pth'
    torch.save(STATE, path)
    assert str(sealed.read(path)) == str(STATE)
    raw = bytearray(path.read_bytes())
    raw[raw.index(STATE['model']['weight'].numpy().tobytes()) + 100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Unusable, match=r'^is damaged'):
        sealed.read(path)


def test_a_file_of_a_later_version_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, 'FORMAT', 3)
    write(tmp_path / 'a.pth')
    monkeypatch.undo()
    with pytest.raises(Unusable, match='is of a later version'):
        sealed.read(tmp_path / 'a.pth')


def test_a_snapshot_is_not_changed_by_later_steps():
    weight = torch.zeros(3)
    copy = sealed.snapshot({'a': [weight, (weight[1:],)]})
    weight += 1
    assert [float(t.sum()) for _, t in sealed.tensors(copy)] == [0, 0]


# ---------------------------------------------------------------- which one all ranks use

POSITIONS = [Position(1), Position(1, 5), Position(2)]


@pytest.fixture
def folder(tmp_path):
    """Three checkpoints of two ranks."""
    for rank in range(2):
        mine = Checkpoints(tmp_path / 'run' / 'checkpoints', rank, 2, 'start')
        for position in POSITIONS:
            mine.save(position, state_at(position, rank))
    return tmp_path / 'run' / 'checkpoints'


def state_at(position: Position, rank: int, value: float = 0.0) -> dict:
    return {'model': {'w': torch.full((3,), value)}, 'best': 10.0 * sum(position) + rank}


def found(folder, anew: bool = False) -> list:
    """The position that each of two ranks goes on from, and what it has read there."""

    def worker(engine: dgc.Engine):
        model = torch.nn.Module()
        model.register_buffer('w', torch.zeros(3))
        saved = Search(engine, torch.device('cpu'), folder).last(model, anew)
        return saved and (saved.position, saved.best)

    return dgc.simulate(2, worker)


def at(position: Position) -> list:
    return [(position, 10.0 * sum(position) + rank) for rank in range(2)]


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def swap(one, other):
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def save(folder, start='start', state=None):
    """Replace the last file of rank 1."""
    state = state or state_at(POSITIONS[-1], 1)
    Checkpoints(folder, 1, 2, start).save(POSITIONS[-1], state)


DAMAGE = {
    'a bit': (lambda f: flip(f / 'e0001.r1of2.pth'), 'rank 1: .*e0001.r1of2.pth is damaged'),
    'missing': (lambda f: (f / 'e0001.r0of2.pth').unlink(), 'e0001.r0of2.pth is missing'),
    'ranks swapped': (
        lambda f: swap(f / 'e0001.r0of2.pth', f / 'e0001.r1of2.pth'),
        'e0001.r0of2.pth holds the state of rank 1 of 2, and not what its name says',
    ),
    'another epoch': (
        lambda f: shutil.copy(f / 'e0000.r1of2.pth', f / 'e0001.r1of2.pth'),
        'rank 1: .*e0001.r1of2.pth holds the state of e0000',
    ),
    'steps for an epoch': (
        lambda f: shutil.copy(f / 'e0001.s000005.r0of2.pth', f / 'e0001.r0of2.pth'),
        'e0001.r0of2.pth holds the state of e0001.s000005',
    ),
    'another start': (
        lambda f: save(f, start='later'),
        'e0001.r1of2.pth is of another start of a run',
    ),
    'another model': (
        lambda f: save(f, state={'model': {'w': torch.zeros(4)}}),
        r'rank 1: w is float32 \(4,\) in the checkpoint, and float32 \(3,\) in the model',
    ),
    'not finite': (
        lambda f: save(f, state=state_at(POSITIONS[-1], 1, float('nan'))),
        'rank 1: .*e0001.r1of2.pth holds parameters or buffers that are not finite',
    ),
}


@pytest.mark.parametrize(('damage', 'reason'), DAMAGE.values(), ids=DAMAGE)
def test_the_last_good_checkpoint_is_used_on_all_ranks(folder, damage, reason, caplog):
    assert found(folder) == at(POSITIONS[-1])
    caplog.clear()
    damage(folder)
    assert found(folder) == at(POSITIONS[-2])
    lines = {record.getMessage() for record in caplog.records}
    (line,) = lines
    assert re.search(f'{reason}.*: going on from e0001.s000005$', line)


def test_files_are_damaged_one_after_another_until_none_is_good(folder):
    for rank, name in enumerate(['e0001', 'e0001.s000005']):
        flip(folder / f'{name}.r{rank}of2.pth')
    assert found(folder) == at(POSITIONS[0])
    flip(folder / 'e0000.r0of2.pth')
    with pytest.raises(CheckpointError, match=r'damaged; .*damaged; .*damaged; there is no'):
        found(folder)
    assert found(folder, anew=True) == [None, None]


def test_a_run_of_another_model_does_not_begin_anew(folder):
    for position in POSITIONS:
        for rank in range(2):
            wide = {'model': {'w': torch.zeros(5)}}
            Checkpoints(folder, rank, 2, 'start').save(position, wide)
    with pytest.raises(CheckpointError, match='does not fit this configuration'):
        found(folder, anew=True)


def test_a_rank_that_cannot_read_its_folder_does_not_leave_the_others_waiting(folder, monkeypatch):
    def best(self):
        if self.rank == 1:
            raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(Checkpoints, 'best', best)

    def worker(engine: dgc.Engine) -> str:
        with pytest.raises(Refused) as raised:
            Search(engine, torch.device('cpu'), folder).last(torch.nn.Linear(1, 1))
        return str(raised.value)

    text = f'rank 1: {folder} cannot be read (Permission denied): make it readable'
    assert dgc.simulate(2, worker) == [text] * 2


# ---------------------------------------------------------------- what is finite


class Masked(torch.nn.Module):
    def __init__(self, masked: float = float('-inf')) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer('mask', torch.full((2, 2), masked).triu(1))


@pytest.mark.parametrize('size', [1, 2])
def test_what_a_model_is_built_with_need_not_be_finite(tmp_path, size, caplog):
    """The -inf of a mask is no divergence; that of a weight, or of a finite buffer, is."""

    def last(model: torch.nn.Module, evaluate: bool = False) -> Position | None:
        found = Search(LocalEngine(), torch.device('cpu'), tmp_path, evaluate).last(model, True)
        return found and found.position

    model = Masked()
    for epochs in (1, 2):
        for rank in range(size):
            Checkpoints(tmp_path / 'checkpoints', rank, size).save(
                Position(epochs),
                {'model': model.state_dict(), 'optimizer': {'ranks': {f'rank {rank}': {}}}},
            )
        torch.nn.init.constant_(model.weight, float('inf'))
    assert last(Masked(), evaluate=True) == Position(1)
    assert 'not finite (weight): going on from e0000' in caplog.text
    assert last(Masked(0.0), evaluate=True) is None
    if size == 1:
        assert last(Masked()) == Position(1)


@pytest.mark.parametrize(
    'dtype',
    [
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bfloat16,
        torch.complex64,
        torch.int8,
        torch.bool,
    ],
)
def test_any_type_of_tensor_is_saved_and_checked(tmp_path, dtype):
    ours = {'w': torch.ones(3).to(dtype)}
    assert not not_finite(ours)
    if dtype.is_floating_point or dtype.is_complex:
        assert not_finite({'a': torch.full((2,), float('nan')).to(dtype), **ours}) == {'a'}
    mine = Checkpoints(tmp_path)
    mine.save(Position(1), {'model': ours})
    assert mine.load(Position(1), 1)['model']['w'].dtype == dtype


def test_a_named_tuple_is_read_as_a_tuple(tmp_path):
    """torch.load refuses classes that it does not know."""
    pair = Position(1, 2)
    sealed.write({'pair': pair, 'nested': [{'x': (pair,)}]}, {}, tmp_path / 'a.pth')
    state = sealed.read(tmp_path / 'a.pth')
    assert (state['pair'], state['nested']) == ((1, 2), [{'x': ((1, 2),)}])


# ---------------------------------------------------------------- which are kept


def test_of_local_steps_the_agreed_parameters_are_evaluated(tmp_path):
    state = {'model': {'w': 1, 'buffer': 2}, 'optimizer': {'agreed': {'w': 3}}}
    assert Saved(tmp_path, Position(1), 1, state).model() == {'w': 3, 'buffer': 2}


def test_the_last_two_within_epochs_are_kept(tmp_path):
    mine = Checkpoints(tmp_path)
    for epoch in range(5):
        for position in (Position(epoch, 1), Position(epoch, 2), Position(epoch + 1)):
            mine.save(position, {})
            mine.finish(position)
    kept = {Position(4, 1), Position(4, 2), *map(Position, (3, 4, 5))}
    assert mine.saved() == {(position, 1) for position in kept}


@pytest.mark.parametrize('size', [1, 2, 4])
def test_files_of_an_earlier_course_of_the_run_do_not_win(tmp_path, size):
    """Saved by 2 ranks; another size or batch counts fewer steps from the same sample on."""
    earlier = [Position(4, 50), Position(4, 100), Position(5), Position(5, 7), Position(6)]
    for position in [Position(4), *earlier]:
        for rank in range(2):
            Checkpoints(tmp_path, rank, 2).save(position, {})
    (tmp_path / 'best.txt').write_text('5')
    ranks = [Checkpoints(tmp_path, rank, size) for rank in range(size)]
    for mine in ranks:
        mine.save(Position(4, 60), {})
    assert max(ranks[0].saved())[0] == Position(6)
    for mine in ranks:
        mine.finish(Position(4, 60))
    assert max(ranks[0].saved())[0] == Position(4, 60)
    assert {(Position(4), 2), (Position(4, 50), 2)} <= ranks[0].saved()


def test_what_a_killed_process_was_writing_is_removed_by_its_rank(tmp_path):
    for name in ('e0000.r0of2.partial', 'e0000.r1of2.partial', 'e0000.s000003.r1of2.partial'):
        (tmp_path / name).touch()
    Checkpoints(tmp_path, 1, 2).remove_partial()
    assert [path.name for path in tmp_path.iterdir()] == ['e0000.r0of2.partial']
