"""What a killed server goes on from: no acknowledged update is lost, none is applied twice."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from ps_helpers import World

from dgc.compressors import TopK
from dgc.parameter_server import dual_way, journal
from utils import sealed
from utils.checkpoint import CheckpointError
from utils.files import WriteError
from utils.training import generations
from utils.training.disk import Disk
from utils.training.generations import Generations

exact = partial(dual_way, compress_ratio=0.05, compressor=TopK(), secondary=TopK())
MANIFEST = {'run': 'test'}


class Trial:
    """A server and a worker in one process, and the files of the server."""

    def __init__(self, folder: Path, mode: str = 'written', **settings) -> None:
        self.folder, self.mode, self.disk = folder, mode, Disk()
        self.world = World(exact, slots=1, **settings)
        self.begin(None)
        self.worker = self.world.join()

    def begin(self, good: int | None) -> None:
        self.files = Generations(self.folder, self.mode, self.disk, good)
        self.world.notes.accepted = lambda entry: self.files.append(entry)
        self.save()

    def save(self) -> None:
        self.files.save(self.world.server.state_dict(), MANIFEST)

    def restart(self) -> None:
        """As after `kill -9`: what is in the files is all that there is."""
        self.files.close()
        state, version = generations.newest(self.folder)
        self.world.restart(state)
        for entry in generations.journaled(self.folder, state['version']):
            self.world.server.replay(entry)
        self.begin(version)

    def model(self) -> list[torch.Tensor]:
        return [values.clone() for values in self.world.server.model.flats]


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize('mode', ['written', 'synced'])
def test_after_a_kill_at_any_update_the_model_has_the_same_bits(tmp_path, mode):
    draw, trial = random.Random(1), Trial(tmp_path, mode)
    for steps in range(1, 40):
        trial.worker.step()
        if draw.random() < 0.2:
            trial.save()
        if draw.random() < 0.2:
            model, version = trial.model(), trial.world.server.version
            trial.restart()
            assert trial.world.server.version == version == steps
            assert equal(trial.model(), model)
        assert len(generations.versions(tmp_path)) <= 2
    trial.worker.step()
    trial.worker.assert_recorded()


def test_without_a_journal_the_updates_since_the_checkpoint_are_lost(tmp_path):
    trial = Trial(tmp_path, 'off')
    trial.worker.step()
    trial.restart()
    assert trial.world.server.version == 0


@pytest.mark.parametrize('damage', ['flipped', 'cut', 'removed'])
def test_a_damaged_newest_checkpoint_is_named_and_loses_nothing(tmp_path, damage, caplog):
    trial = Trial(tmp_path)
    for _ in range(3):
        trial.worker.step()
        trial.save()
        trial.worker.step()
    model = trial.model()
    path = generations.checkpoint(tmp_path, 5)
    raw = bytearray(path.read_bytes())
    if damage == 'flipped':
        raw[len(raw) // 2] ^= 1
    path.write_bytes(raw[: len(raw) // 3] if damage == 'cut' else raw)
    if damage == 'removed':
        path.unlink()
    trial.restart()
    assert trial.world.server.version == 6 and equal(trial.model(), model)
    if damage != 'removed':
        assert f'{path} is damaged' in caplog.text and 'server.u0000000003.pth' in caplog.text
    assert generations.versions(tmp_path) == [3, 6]
    trial.worker.step()
    trial.worker.assert_recorded()


def test_a_checkpoint_under_another_name_is_not_used(tmp_path):
    trial = Trial(tmp_path)
    generations.checkpoint(tmp_path, 0).rename(generations.checkpoint(tmp_path, 9))
    with pytest.raises(CheckpointError, match=r'u0000000009\.pth holds update 0: start without'):
        generations.newest(tmp_path)
    trial.files.close()


def test_a_journal_cut_anywhere_keeps_what_is_whole(tmp_path):
    trial = Trial(tmp_path)
    sizes = []
    for _ in range(3):
        trial.worker.step()
        sizes.append(trial.files.journal_bytes)
    path = generations.checkpoint(tmp_path, 0).with_suffix('.journal')
    raw = path.read_bytes()
    for end in random.Random(2).sample(range(len(raw)), 60):
        path.write_bytes(raw[:end])
        found = [entry.update.version for entry in generations.journaled(tmp_path, 0)]
        assert found == [n for n, size in enumerate(sizes, 1) if size <= end]


def test_no_flipped_bit_of_a_journal_is_applied(tmp_path):
    trial = Trial(tmp_path)
    trial.worker.step()
    trial.worker.step()
    path = generations.checkpoint(tmp_path, 0).with_suffix('.journal')
    raw, whole = path.read_bytes(), list(generations.journaled(tmp_path, 0))
    first = len(whole[0].encode())
    for at in random.Random(3).sample(range(len(raw)), 60):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        found = list(generations.journaled(tmp_path, 0))
        assert found == (whole[:1] if at >= first else [])


def test_a_gap_between_journals_is_named(tmp_path, caplog):
    trial = Trial(tmp_path)
    for _ in range(3):
        trial.worker.step()
        trial.save()
    trial.worker.step()
    generations.checkpoint(tmp_path, 2).with_suffix('.journal').unlink()
    assert list(generations.journaled(tmp_path, 2)) == []
    assert 'updates 3 to 3 are missing' in caplog.text


def test_a_server_of_an_earlier_version_goes_on(tmp_path):
    (tmp_path / 'other').mkdir()
    trial = Trial(tmp_path / 'other')
    trial.worker.step()
    state = trial.world.server.state_dict()
    del state['norms']
    sealed.write(state, MANIFEST, tmp_path / generations.FORMER)
    assert generations.exists(tmp_path)
    read, version = generations.newest(tmp_path)
    assert version is None and read['version'] == 1
    trial.world.restart(read)
    Generations(tmp_path, 'written', Disk()).save(trial.world.server.state_dict(), MANIFEST)
    assert generations.versions(tmp_path) == [1]
    assert not (tmp_path / generations.FORMER).exists()


def test_a_journal_that_cannot_be_written_ends_until_the_next_checkpoint(
    tmp_path, monkeypatch, caplog
):
    trial = Trial(tmp_path)
    trial.worker.step()
    write, full = journal.Journal.append, [True]

    def append(self, entry):
        if full[0]:
            raise OSError(28, 'No space left on device')
        write(self, entry)

    monkeypatch.setattr(journal.Journal, 'append', append)
    for _ in range(3):
        trial.worker.step()
    full[0] = False
    trial.worker.step()  # its record would follow a gap
    assert caplog.text.count('training goes on without checkpoints') == 1
    assert [e.update.version for e in generations.journaled(tmp_path, 0)] == [1]
    trial.save()
    assert 'checkpoints go on' in caplog.text
    trial.worker.step()
    model = trial.model()
    trial.restart()
    assert trial.world.server.version == 6 and equal(trial.model(), model)


def test_a_checkpoint_that_cannot_be_written_leaves_the_journal(tmp_path, monkeypatch):
    trial = Trial(tmp_path)
    trial.worker.step()

    def write(*arguments):
        raise WriteError('full')

    monkeypatch.setattr(sealed, 'write', write)
    with pytest.raises(WriteError):
        trial.save()
    trial.worker.step()
    monkeypatch.undo()
    model = trial.model()
    trial.restart()
    assert trial.world.server.version == 2 and equal(trial.model(), model)
