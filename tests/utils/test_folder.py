"""The folder of a run."""

from __future__ import annotations

import pytest

from utils.config import Config, ConfigError
from utils.folder import check_writable, move_aside, prepare_folder


def test_move_aside_takes_the_first_free_name(tmp_path):
    folder = tmp_path / '[a+b].np2'
    move_aside(folder)
    assert not list(tmp_path.iterdir())
    for number in (1, 2, 3):
        folder.mkdir()
        (folder / 'made').write_text(str(number))
        move_aside(folder)
        assert not folder.exists()
        assert (tmp_path / f'[a+b].np2~{number}' / 'made').read_text() == str(number)


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
