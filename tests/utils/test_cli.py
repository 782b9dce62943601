"""The command line, and errors that are printed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import dgc
from datasets import DatasetError
from dgc.engines import EngineError
from dgc.parameter_server import ServerError
from utils.agree import agreed
from utils.checkpoint import CheckpointError
from utils.cli import PATIENCE, Refused, Stopped, give_up, parse_arguments
from utils.config import ConfigError
from utils.failures import report
from utils.files import WriteError

ROOT = Path(__file__).parents[2]


def test_overrides_are_left_for_the_configuration():
    arguments, overrides = parse_arguments(
        [*('--configs', 'configs/cifar/resnet20.py', 'configs/dgc/wm5.py', '--suffix', '.e500'),
         *('--configs.train.num_epochs', '500', '--configs.seed=3')]
    )  # fmt: skip
    assert arguments.configs == ['configs/cifar/resnet20.py', 'configs/dgc/wm5.py']
    assert arguments.suffix == '.e500'
    assert overrides == ['--configs.train.num_epochs', '500', '--configs.seed=3']
    assert (arguments.devices, arguments.evaluate, arguments.resume) == (None, False, None)
    assert arguments.runs == 'runs'


def test_a_reader_may_stop_before_the_end_of_a_text():
    """As ``python train.py --show | head -1`` does."""
    code = 'from utils.cli import end, print_whole; print_whole("x" * 1_000_000); end(0)'
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, '-c', code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        os.close(read)
        assert process.communicate(timeout=60)[1] == ''


def test_serve_is_short_for_the_setting():
    words = ['--configs', 'configs/digits/cnn.py', '--serve', '127.0.0.1:5555', '--configs.seed=1']
    _, overrides = parse_arguments(words)
    assert overrides == ['--configs.seed=1', '--configs.server.bind=127.0.0.1:5555']


@pytest.mark.parametrize(
    ('words', 'resume'),
    [([], None), (['--resume'], ''), (['--resume', 'runs/a.np2'], 'runs/a.np2')],
)
def test_resume_takes_a_run_or_means_this_one(words, resume):
    arguments, overrides = parse_arguments(
        ['--configs', 'configs/digits/cnn.py', *words, '--configs.seed', '1']
    )
    assert arguments.resume == resume
    assert overrides == ['--configs.seed', '1']


HELP = 'train.py --help'
MISSING = 'train.py --configs configs/digits/cn.py'
RUN = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name='__main__')
except SystemExit as stop:
    print('ended with', stop.code)
print('heavy:', {'torch', 'numpy', 'sklearn', 'horovod'} & set(sys.modules))
"""


def start(words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, '-c', RUN, *words.split()],
        cwd=ROOT, env={**variables}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(('words', 'code'), [(HELP, 0), (MISSING, 2), ('train.py', 2)])
def test_help_and_errors_do_not_import_torch(words, code):
    done = start(words)
    assert f'ended with {code}\n' in done.stdout
    assert done.stdout.endswith('heavy: set()\n'), done.stdout


def test_a_missing_config_file_is_one_line():
    lines = start(MISSING).stderr.splitlines()
    assert lines == ['train.py: there is no config file configs/digits/cn.py; '
                     'did you mean configs/digits/cnn.py?']  # fmt: skip


@pytest.mark.parametrize('words', ['train.py --configs', MISSING, 'train.py --devices tpu'])
def test_ranks_above_0_leave_the_command_line_to_rank_0(words):
    begin = time.monotonic()
    done = start(words, RANK='1', LOCAL_RANK='1', WORLD_SIZE='2')
    assert 'ended with 2\n' in done.stdout
    assert done.stderr == ''
    assert time.monotonic() - begin > PATIENCE  # it must not be what the launcher sees first
    (line,) = start(words, RANK='0', LOCAL_RANK='0', WORLD_SIZE='2').stderr.splitlines()
    assert line.startswith('train.py: ')
    (other,) = start(words, RANK='8', LOCAL_RANK='0', WORLD_SIZE='16').stderr.splitlines()
    assert other == line.replace('train.py: ', 'train.py: rank 8: ')


@pytest.mark.parametrize(
    'variables',
    [
        {'RANK': '', 'LOCAL_RANK': '', 'WORLD_SIZE': ''},
        {'SLURM_PROCID': '3', 'SLURM_LOCALID': '3', 'DGC_LAUNCHER': 'none'},
    ],
    ids=['empty', 'alone'],
)
def test_a_process_without_other_ranks_prints_its_error(variables, monkeypatch, capsys):
    """failures row 17: empty variables, and a shell within a Slurm job."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        parse_arguments(['--devices', 'tpu'])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('train.py: argument --devices')


def test_help_says_how_to_evaluate_another_run():
    text = ' '.join(start(HELP).stdout.split())
    assert '--evaluate' in text and '--resume RUN' in text
    for launcher in ('horovodrun', 'torchrun', 'simulated'):
        assert launcher in text


# ---------------------------------------------------------------- agreed

CPU = torch.device('cpu')


def refusals(troubles: dict[int, Exception], size: int = 3) -> list[Refused | None]:
    """What each rank raises if some ranks raise ``troubles``."""

    def worker(engine: dgc.Engine) -> Refused | None:
        try:
            with agreed(engine, CPU):
                if engine.rank in troubles:
                    raise troubles[engine.rank]
        except Refused as refused:
            return refused
        return None

    return dgc.simulate(size, worker)


def test_without_an_error_no_rank_is_refused():
    assert refusals({}) == [None] * 3


@pytest.mark.parametrize('kind', [ConfigError, DatasetError, CheckpointError, ServerError])
def test_an_error_of_one_rank_is_raised_on_all_and_names_it(kind):
    found = refusals({1: kind('no such folder'), 2: kind('neither here')})
    assert [str(refused) for refused in found] == ['rank 1: no such folder'] * 3
    assert {refused.rank for refused in found} == {1}


def test_an_error_of_all_ranks_names_no_rank():
    found = refusals({rank: ConfigError('bad') for rank in range(3)})
    assert [(str(refused), refused.rank) for refused in found] == [('bad', 0)] * 3


def test_an_error_without_text_is_named_by_its_type():
    assert str(refusals({0: DatasetError()}, 1)[0]) == 'DatasetError'


def test_an_error_of_several_lines_becomes_one_line():
    found = refusals({0: DatasetError('first\n  second')}, 1)
    assert str(found[0]) == 'first second'


@pytest.mark.parametrize('kind', [ValueError, TypeError, KeyError, RuntimeError, OSError])
def test_any_exception_of_the_users_code_is_one_line_and_the_place(kind):
    """docs/failures.md, row 19."""
    found = refusals({1: kind('not\nso')})
    for refused in found:
        line, place, code = str(refused).splitlines()
        assert line.startswith(f'rank 1: {kind.__name__}: ') and 'so' in line
        assert place.startswith(f'  File "{__file__}", line ') and place.endswith('in worker')
        assert code == '    raise troubles[engine.rank]'


def test_an_exception_of_ours_is_reported_with_its_last_frames():
    """docs/failures.md, row 19."""
    try:
        json.loads('{')  # in a frame of the library, called by this one
    except ValueError as error:
        users = report(error)
        error.__traceback__ = error.__traceback__.tb_next  # without this one
        ours = report(error)
        unexpected = report(RuntimeError('odd').with_traceback(error.__traceback__))
    assert users.splitlines()[0].startswith('JSONDecodeError: Expecting property')
    assert f'File "{__file__}"' in users
    assert ours.startswith('Expecting property') and '\n' not in ours  # as of a refused setting
    assert unexpected.startswith('RuntimeError: odd\n  File "') and 'decoder.py' in unexpected


def test_an_exception_in_a_process_that_loads_data_is_one_line_and_the_place(tmp_path):
    """docs/failures.md, row 19."""
    path = tmp_path / 'mine.py'
    path.write_text('raise ValueError(1)\n')
    text = (
        'Caught ValueError in DataLoader worker process 0.\n'
        'Original Traceback (most recent call last):\n'
        f'  File "{torch.__file__}", line 1, in fetch\n    data = self.dataset[0]\n'
        f'  File "{path}", line 1, in __getitem__\n    raise ValueError(1)\n'
        'ValueError: no such label\n'
    )
    line, place, code = report(ValueError(text)).splitlines()
    assert line == 'ValueError: no such label'
    assert place == f'  File "{path}", line 1, in __getitem__'
    assert code == '    raise ValueError(1)'


def test_the_end_of_training_is_agreed_like_bad_input():
    def worker(engine: dgc.Engine) -> int:
        try:
            with agreed(engine, CPU, Stopped):
                raise WriteError('full')
        except Refused as refused:
            return refused.code

    assert dgc.simulate(2, worker) == [3, 3]


def test_errors_of_the_engine_pass_through():
    with pytest.raises(EngineError, match='gone'):
        refusals({0: EngineError('gone')}, 1)


def test_torchrun_is_told_the_line_that_says_why(tmp_path, monkeypatch, capsys):
    """Its own report then ends with it, in place of a hint at its documentation."""
    monkeypatch.setenv('TORCHELASTIC_ERROR_FILE', str(tmp_path / 'error.json'))
    assert give_up(2, 'no such setting', prints=True) == 2
    told = json.loads((tmp_path / 'error.json').read_text())
    assert told['message']['message'] == 'train.py: no such setting'
    assert int(told['message']['extraInfo']['timestamp']) > 0
    assert capsys.readouterr().err == 'train.py: no such setting\n'
