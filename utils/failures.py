"""One rule for every exception: a line that says what is wrong, then the lines of the user's code.

    train.py: rank 1: ValueError: expected 3 channels, got 1
      File "net.py", line 18, in forward
        raise ValueError(f'expected 3 channels, got {x.shape[1]}')

Exceptions whose text is written for the user (of a setting, data, a checkpoint) need no such lines,
nor does a ValueError or TypeError that no code of the user led to: our parts and torch refuse
settings with them.
"""

from __future__ import annotations

import re
import sysconfig
import time
import traceback
from pathlib import Path
from traceback import FrameSummary

from datasets import DatasetError
from dgc.engines import EngineError
from dgc.parameter_server import ServerError
from utils import cli
from utils.checkpoint import CheckpointError
from utils.config import ConfigError
from utils.data import SampleError
from utils.files import WriteError

FOR_USERS = (ConfigError, DatasetError, CheckpointError, ServerError, EngineError, WriteError)
ROOT = Path(__file__).parents[1]
OURS = (ROOT / 'dgc', ROOT / 'utils', ROOT / 'train.py')  # models/ and datasets/ are for users too
LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ('stdlib', 'platstdlib', 'purelib'))
ENGINES = ROOT / 'dgc' / 'engines'
FRAMES = 3  # of the user's code, the innermost
FRAMES_OF_OURS = 8  # where no code of the user took part, to report the fault
# What torch makes of an exception in a process that loads data.
IN_LOADER = re.compile(r'Caught \w+ in DataLoader worker process \d+\.\s+Original Traceback')
FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def report(error: BaseException) -> str:
    """The line about ``error``, and the lines of the user's code that led to it."""
    text, frames = text_and_frames(error)
    line = ' '.join(text.split()) or type(error).__name__
    users = [frame for frame in frames if is_users(frame)][-FRAMES:]
    if not isinstance(error, SampleError):
        if isinstance(error, FOR_USERS):
            return line
        if not users and isinstance(error, ValueError | TypeError):
            return line
        line = line if line == type(error).__name__ else f'{type(error).__name__}: {line}'
        users = users or frames[-FRAMES_OF_OURS:]
    return '\n'.join([line, *''.join(traceback.format_list(users)).splitlines()])


def text_and_frames(error: BaseException) -> tuple[str, list[FrameSummary]]:
    """The message of an exception, and its frames, outermost first.

    For a SampleError they are those of its cause. Of an exception in a process that loads data only
    text is left, which torch has put into the message.
    """
    text = str(error)
    if IN_LOADER.match(text):
        frames = [FrameSummary(file, int(line), name) for file, line, name in FRAME.findall(text)]
        return text.strip().splitlines()[-1].partition(': ')[2], frames
    cause = error.__cause__ if isinstance(error, SampleError) else None
    return text, list(traceback.extract_tb((cause or error).__traceback__))


def is_users(frame: FrameSummary) -> bool:
    """Whether it is code of the user: of a config, a model or data."""
    path = Path(frame.filename)
    return path.is_file() and not is_library(path) and not is_below(path, OURS)


def is_library(path: Path) -> bool:
    """Whether it is code of Python or of an installed package."""
    return bool({'site-packages', 'dist-packages'} & set(path.parts)) or is_below(path, LIBRARIES)


def is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    """Whether ``path`` is one of ``folders``, or is in one."""
    return any(path.is_relative_to(folder) for folder in folders)


def lost_connection(error: BaseException) -> bool:
    """Whether a communication library failed, as it does where another rank has ended."""
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    inner = [path for path in frames if path.is_file() and not is_library(path)]
    return bool(inner) and inner[-1].is_relative_to(ENGINES) and not isinstance(error, EngineError)


def fail(error: Exception, rank: int) -> int:
    """Print what ended the training of this rank; returns the exit code.

    Launchers end the other ranks once one has ended. All ranks may have met the same, and then
    rank 0 says it. A rank that has only lost its connection leaves it to the rank that failed.
    """
    who = f'rank {rank}: ' if rank else ''
    lost = lost_connection(error)
    if rank or lost:
        time.sleep(cli.PATIENCE)
    if lost:
        line = ' '.join(str(error).split())[:200]
        text = f'the connection to another rank is lost ({line}): see what that rank has printed'
        return cli.give_up(cli.STOPPED, who + text, prints=True)
    if isinstance(error, DatasetError | ConfigError):
        return cli.give_up(cli.BAD_INPUT, who + report(error), prints=True)
    if isinstance(error, OSError) and not any(map(is_users, text_and_frames(error)[1])):
        reason = error if isinstance(error, WriteError) else f'{type(error).__name__}: {error}'
        return cli.give_up(cli.STOPPED, f'{who}{reason}', prints=True)
    return cli.give_up(cli.FAILED, who + report(error), prints=True)
