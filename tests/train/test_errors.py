"""Bad input: exit code 2 and one line that says what to do, once however many ranks there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from launching import DIGITS, ROOT, SIMULATED, here, launch

CIFAR = ['--configs', 'configs/cifar/resnet20.py', '--devices', 'cpu']
TRAIN = '--configs.train'

# What is typed, and the line that answers it; … stands for anything.
CASES: dict[str, tuple[list[str], str]] = {
    'unknown setting': (
        [*DIGITS, f'{TRAIN}.num_epoch', '5'],
        'configs.train.num_epoch is not a setting; did you mean configs.train.num_epochs?',
    ),
    'unknown setting of a part': (
        [*DIGITS, f'{TRAIN}.compression.compress_ration', '0.1'],
        'configs.train.compression.compress_ration is not a setting of …; did you mean '
        'configs.train.compression.compress_ratio?',
    ),
    'missing config file': (
        ['--configs', 'configs/digits/cnn.py', 'configs/dgc/fp61.py'],
        'there is no config file configs/dgc/fp61.py; did you mean configs/dgc/fp16.py?',
    ),
    'wrong type': (
        [*DIGITS, f'{TRAIN}.num_epochs', 'five'],
        "configs.train.num_epochs = 'five': expected int, got str",
    ),
    'no value': ([*DIGITS, f'{TRAIN}.num_epochs'], 'argument --configs.train.num_epochs needs …'),
    'misspelt option': (
        [*DIGITS, '--sufix', '.x'],
        'unknown argument --sufix; did you mean --suffix?',
    ),
    'unknown device': (['--devices', 'tpu', *DIGITS[:2]], "argument --devices: …'tpu'…"),
    'no config file': (
        ['--suffix', '.x'],
        'the following arguments are required: --configs (--list shows the files)',
    ),
    'no model': (
        ['--configs', 'configs/dgc/wm5.py'],
        'configs.dataset, configs.model, configs.train.num_epochs, configs.train.batch_size must '
        'be set …',
    ),
    'ratio of zero': (
        [*DIGITS, f'{TRAIN}.compression.compress_ratio', '0'],
        '…compress_ratio…must be above 0…',
    ),
    'negative ratio': (
        [*DIGITS, f'{TRAIN}.compression.compress_ratio', '-1'],
        '…compress_ratio…must be above 0…',
    ),
    'missing dataset': (
        [*CIFAR, '--configs.dataset.download', 'False', '--configs.dataset.root', '/nowhere/c10'],
        "configs.dataset.root = '/nowhere/c10': …does not exist; …configs.dataset.download True",
    ),
    'no patience': (
        [*DIGITS, '--configs.engine.warning_seconds', '0'],
        'configs.engine.warning_seconds must be above 0, got 0…',
    ),
    'less patience until the end': (
        [*DIGITS, '--configs.engine.abort_seconds', '20'],
        'configs.engine.abort_seconds = 20… is below configs.engine.warning_seconds = 30…',
    ),
    'unknown engine': (
        [*DIGITS, '--configs.engine.name', 'nccl'],
        "there is no engine 'nccl'; choose one of horovod, torch, local, simulated",
    ),
    'no workers': ([*DIGITS, *SIMULATED, '0'], '…engine simulated …'),
    'workers without simulation': (
        [*DIGITS, '--configs.engine.size', '4'],
        'a size of 4 is for the engine simulated…',
    ),
    'no GPU': (
        [*DIGITS, '--devices', 'gpu'],
        '--devices gpu: torch sees no GPU here; use --devices cpu',
    ),
    'batch too large': (
        [*DIGITS, f'{TRAIN}.batch_size', '5000'],
        'configs.train.batch_size: … training samples per worker are fewer than one step of '
        '5000; …',
    ),
    'no batch': (
        [*DIGITS, f'{TRAIN}.batch_size', '0'],
        'configs.train.batch_size must be at least 1, got 0',
    ),
    'unknown metric': (
        [*DIGITS, f'{TRAIN}.metric', 'acc/test_top2'],
        "configs.train.metric = 'acc/test_top2' is no meter; …",
    ),
    'metric of the training data': (
        [*DIGITS, f'{TRAIN}.metric', 'acc/train_top1'],
        "configs.train.metric = 'acc/train_top1' is no meter; …",
    ),
    'momentum twice': (
        [*DIGITS[:2], *DIGITS[2:-2], f'{TRAIN}.optimizer.nesterov', 'True',
         f'{TRAIN}.optimizer.momentum', '0.0'],
        'configs.train.optimizer: nesterov needs a momentum above 0 (…the command line…',
    ),
    'no epoch': (
        [*DIGITS, f'{TRAIN}.num_epochs', '0'],
        'configs.train.num_epochs must be at least 1, got 0',
    ),
    'negative warm-up': (
        [*DIGITS, f'{TRAIN}.compression.warmup_epochs', '-2'],
        '…warmup_epochs must be at least 0, got -2 (…warmup_epochs = -2: the command line)',
    ),
    'two warm-ups': (
        [*DIGITS, f'{TRAIN}.compression.warmup_steps', '20'],
        '…warmup_steps=20 and warmup_epochs=5 are two warm-ups: set one of them to 0 '
        '(…warmup_epochs = 5: configs/dgc/wm5.py; …warmup_steps = 20: the command line)',
    ),
    'densities of a warm-up that there is not': (
        [*DIGITS, f'{TRAIN}.compression.warmup_epochs', '0',
         f'{TRAIN}.compression.warmup_coeff', '[0.25, 0.06]'],
        '…warmup_coeff=(0.25, 0.06) is for the stages of a warm-up, and warmup_epochs is 0: set it '
        'to the number of stages, or warmup_coeff to None…',
    ),
    'a name in the place of a node': (
        ['--configs', 'configs/digits/cnn.py', '--configs.dataset', 'datasets.Digits'],
        "configs.dataset = …: it is a node; set its settings, not itself",
    ),
    'a name where there is no node yet': (
        ['--configs', 'configs/dgc/wm5.py', '--configs.model', 'models.digits'],
        "configs.model = 'models.digits': give it a Config(function, …), in a config file",
    ),
    'unknown engine of several workers': (
        [*DIGITS, '--configs.engine.name', 'simulatd', '--configs.engine.size', '4'],
        "there is no engine 'simulatd'; choose one of horovod, torch, local, simulated",
    ),
    'a folder that cannot be': (
        [*DIGITS, '--runs', '/dev/null/runs'],
        '…/dev/null/runs/… cannot be written (Not a directory): give --runs a folder that can be',
    ),
    'nothing to resume': (
        [*DIGITS, '--resume', '--suffix', '.none'],
        'there is no checkpoint in …none.np… that all ranks can read; --resume RUN names a run',
    ),
    'nothing there to resume': (
        [*DIGITS, '--resume', '/nowhere/run.np2'],
        'there is no checkpoint in /nowhere/run.np2 that all ranks can read; …',
    ),
    'nothing to evaluate': (
        [*DIGITS, '--evaluate', '--suffix', '.none'],
        'there is no checkpoint in …none.np… that all ranks can read; --resume RUN names a run',
    ),
}  # fmt: skip


def table() -> dict[str, tuple[list[str], str, int]]:
    """The mistakes of docs/errors.md: what is typed, the line that answers, and the exit code."""
    text = (ROOT / 'docs/errors.md').read_text()
    row = r'^\| ([^|]+) \| (?:`([^|]+)`|\(nothing\)) \| `([^|]+)` \| (\d+) \|$'
    return {
        name: (shlex.split(words), message, int(code))
        for name, words, message, code in re.findall(row, text, re.M)
    }


MISTAKES = table()


def matches(line: str, pattern: str) -> bool:
    """Whether the parts of ``pattern`` between its … come in that order, and nothing else."""
    parts, at = f'train.py: {pattern}'.split('…'), 0
    for number, part in enumerate(parts):
        found = line.find(part, at)
        if found < 0 or (number == 0 and found > 0):
            return False
        at = found + len(part)
    return parts[-1] == '' or line.endswith(parts[-1])


def test_matches_can_fail():
    assert matches('train.py: a b c', 'a … c') and matches('train.py: a b c', 'a…')
    assert not matches('train.py: a b c', 'a … d') and not matches('train.py: a b', 'a')
    assert not matches('train.py: a b c', 'b c')


@pytest.mark.parametrize('case', CASES)
def test_one_process(case, tmp_path):
    words, pattern = CASES[case]
    done = here('--runs', tmp_path, *words)
    assert done.code == 2
    assert [line for line in done.lines if line] == done.complaints
    (line,) = done.complaints
    assert matches(line, pattern), line
    assert not list(tmp_path.iterdir())  # nothing is left of what did not begin


def test_the_table_of_the_documents_has_every_row():
    """Issue: the twenty mistakes of a newcomer, with message and exit code."""
    lines = (ROOT / 'docs/errors.md').read_text().partition('| mistake |')[2].splitlines()
    rows = [line for line in lines[2:] if line.startswith('|')]
    written = rows[: rows.index(next(row for row in rows if row.startswith('| stack')))]
    assert len(MISTAKES) == len(written) >= 20


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_of_the_documents(mistake, tmp_path):
    words, pattern, code = MISTAKES[mistake]
    more = [] if '--runs' in words else ['--runs', tmp_path]
    done = here(*more, *([] if '--devices' in words else ['--devices', 'cpu']), *words)
    assert done.code == code
    (line,) = done.complaints
    assert matches(line, pattern), line
    if code == 2:
        assert [line for line in done.lines if line] == done.complaints
        assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- stacks: docs/failures.md, row 4

EXCHANGE, VALUES = 'configs.train.compression.exchange', 'configs.train.compression.values'
STACKS: dict[str, tuple[int, str]] = {
    'gtopk/tree dgs/asgd': (
        2,
        f'{EXCHANGE} = GTopK (configs/gtopk/tree.py) has no effect: configs.train.compression is '
        'dual_way (configs/dgs/asgd.py), which takes no exchange; leave one of the two files out',
    ),
    'dgs/asgd gtopk/tree': (
        2,
        'configs.train.distribution = ParameterServer works with a composition of class '
        'Asynchronous, …configs/gtopk/tree.py; …configs/dgs/asgd.py): leave one of the two out',
    ),
    'dgc/int4 chunk/chunk16': (
        2,
        f"{VALUES} = 'int4' has no effect, since ChunkAllReduce …({VALUES} = 'int4': "
        f'configs/dgc/int4.py; {EXCHANGE} = …: configs/chunk/chunk16.py): leave it out',
    ),
    'chunk/chunk16 dgc/int4': (2, f"{VALUES} = 'int4' has no effect, since ChunkAllReduce …"),
    'dgc/int4 dense/sgd': (2, f"{VALUES} = 'int4' (configs/dgc/int4.py) has no effect: …dense …"),
    'spardl/gres gtopk/tree': (2, f'{EXCHANGE}.residuals = …(configs/gtopk/tree.py), …'),
    'spardl/gres dgc/gaussian': (
        2,
        'configs.train.compression: GaussianThreshold and SparDL do not fit: …'
        'configs/dgc/gaussian.py; …configs/spardl/gres.py)',
    ),
    'dgc/fp16 dgc/int8': (2, "…values='int8' is set already: …configs/dgc/fp16.py; …"),
    'diloco/diloco dgs/dgs': (2, 'configs.train.averaging = OuterSteps has no effect …'),
    'dgc/wm5 omgs/merged dgs/dgs': (2, '…Merged is for synchronous training…configs/omgs/…'),
    'gtopk/tree spardl/gres': (
        0,
        'warning: configs/spardl/gres.py replaces what configs/gtopk/tree.py set: '
        f'{EXCHANGE} was GTopK, is SparDL',
    ),
    'dense/sgd dgc/int4': (
        0,
        'warning: configs/dgc/int4.py replaces what configs/dense/sgd.py set: '
        'configs.train.compression was dense, is deep_gradient_compression',
    ),
    'dgc/wm5 gtopk/wm4': (0, '…configs.train.compression.warmup_epochs was 5, is 4'),
    'dgc/wm5 gtopk/tree': (0, ''),
    'dgc/fp16 dgc/packed spardl/mc': (0, ''),
    'dgc/wm5 omgs/merged plan/whole': (0, ''),
    'dgc/wm5 optim/adam optim/adamw': (
        0,
        'warning: configs/optim/adamw.py replaces what configs/optim/adam.py set: '
        'configs.train.optimizer was Adam, is AdamW; '
        'configs.train.optimizer.betas was computed, is computed',
    ),
}


@pytest.mark.parametrize('stack', STACKS)
def test_files_that_contradict_each_other(stack, tmp_path):
    """failures row 4"""
    code, pattern = STACKS[stack]
    files = ['configs/digits/cnn.py', *(f'configs/{name}.py' for name in stack.split())]
    words = ['--configs', *files, '--devices', 'cpu', '--runs', tmp_path]
    done = here(*words, '--evaluate', *([] if code else ['--suffix', '.none']))
    if code:
        assert done.code == code
        (line,) = done.complaints
        assert matches(line, pattern), line
        return
    warnings = [line for line in done.lines if line.startswith('warning: ')]
    assert len(warnings) == bool(pattern), warnings
    assert 'there is no checkpoint' in done.complaints[0]  # it would train
    assert not pattern or matches(f'train.py: {warnings[0]}', pattern), warnings


@pytest.mark.parametrize(
    ('stack', 'setting', 'selecting'),
    [
        ('dgc/gaussian', 'sample_ratio=0.1', 'GaussianThreshold'),
        ('spardl/gres', 'resample=False', 'SparDL'),
        ('oktopk/periodic', 'strided_sample=False', 'PeriodicThreshold'),
    ],
)
def test_a_setting_of_the_command_line_without_effect_is_refused(
    stack, setting, selecting, tmp_path
):
    """failures row 4"""
    words = ['--configs', 'configs/digits/cnn.py', f'configs/{stack}.py', '--runs', tmp_path]
    done = here(*words, f'{TRAIN}.compression.{setting}')
    (line,) = done.complaints
    assert done.code == 2
    assert matches(line, f'…has no effect, since {selecting} selects, …the command line…'), line


@pytest.fixture
def of_two_ranks(worlds, tmp_path) -> Callable[..., str]:
    """The one line that two ranks of a torchrun print between them for some words."""

    def line_of(*words: str) -> str:
        runs = tmp_path / 'runs'
        ends = worlds('torchrun', 2).run('launching:in_world', '--runs', str(runs), *words)
        assert [done.code for done in ends] == [2, 2]
        assert not runs.exists()
        (line,) = [line for done in ends for line in done.complaints]
        return line

    return line_of


two_ranks = pytest.mark.xdist_group('torchrun 2')


@two_ranks
@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_two_ranks(of_two_ranks, case):
    words, pattern = CASES[case]
    line = of_two_ranks(*words)
    assert matches(line, pattern), line


@two_ranks
@pytest.mark.slow
def test_a_simulation_is_not_run_twice_by_a_launcher(of_two_ranks):
    line = of_two_ranks(*DIGITS, *SIMULATED, '2')
    assert 'engine simulated runs all workers in one process' in line


@pytest.mark.slow
@pytest.mark.parametrize('launcher', ['python', 'torchrun'])
def test_the_exit_code_and_the_line_pass_through_the_launcher(launcher, tmp_path):
    words, pattern = CASES['unknown setting']
    done = launch(launcher, [*words, '--runs', tmp_path])
    assert done.code == {'python': 2, 'torchrun': 1}[launcher]
    (line,) = done.complaints
    assert matches(line, pattern)


def test_options_are_those_of_the_parser():
    from utils.cli import OPTIONS

    assert {word.split()[0].strip(',[]') for word in here('--help').output.split()
            if word.startswith('--') and '.' not in word} >= set(OPTIONS)  # fmt: skip


@pytest.mark.parametrize(
    ('variables', 'message'),
    [
        ({'RANK': 'a', 'WORLD_SIZE': '2'}, "RANK='a' in the environment is no whole number"),
        ({'DGC_LAUNCHER': 'srun'}, "DGC_LAUNCHER='srun' is no launcher; choose one of"),
    ],
)
def test_an_environment_that_cannot_be_read_is_one_line(variables, message, monkeypatch):
    """failures row 17."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = here(*DIGITS)
    (line,) = done.complaints
    assert done.code == 2 and line.startswith(f'train.py: {message}')
