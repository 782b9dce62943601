"""The folder of a run."""

from __future__ import annotations

import pytest

from utils.config import Config, ConfigError
from utils.folder import check_writable, move_aside, prepare_folder


def test_move_aside_takes_the_first_free_name(tmp_path):
    folder = tmp_path / '[a+b].np2'
    for number in (1, 2, 3):
        folder.mkdir()
        (folder / 'made').write_text(str(number))
        moved = move_aside(folder)
        assert not folder.exists()
        assert moved == tmp_path / f'[a+b].np2~{number}'
        assert (moved / 'made').read_text() == str(number)


@pytest.mark.parametrize('moves_aside', [True, False])
def test_a_folder_that_another_run_writes_is_left_alone(tmp_path, moves_aside, capsys):
    held = prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside)
    (tmp_path / 'a' / 'made').write_text('1')
    with pytest.raises(ConfigError, match=r'another run is writing .*/a: give this one a --suffix'):
        prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside)
    assert (tmp_path / 'a' / 'made').read_text() == '1' and not (tmp_path / 'a~1').exists()
    held.close()
    prepare_folder(tmp_path / 'a', Config(), 'about', moves_aside).close()
    assert (tmp_path / 'a~1').exists() == moves_aside
    assert ('an earlier run of this name was renamed' in capsys.readouterr().out) == moves_aside


def test_one_that_can_be_written_is_there_and_empty(tmp_path):
    check_writable(tmp_path / 'runs' / 'a', rank=3)
    assert not list((tmp_path / 'runs' / 'a').iterdir())


@pytest.mark.parametrize(
    'write',
    [
        lambda folder: check_writable(folder, rank=0),
        lambda folder: prepare_folder(folder, Config(), 'about', moves_aside=True),
    ],
)
def test_one_that_cannot_be_written_is_named_with_the_reason(tmp_path, write):
    (tmp_path / 'file').write_text('in the way')
    folder = tmp_path / 'file' / 'a'
    with pytest.raises(ConfigError) as raised:
        write(folder)
    assert str(raised.value).startswith(f'{folder} cannot be written (Not a directory): ')
    assert (tmp_path / 'file').read_text() == 'in the way'
