"""Models, data and loaders of one's own: they train, or a line says what is wrong, then the code.

docs/failures.md, row 19.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import ROOT, SIMULATED, Done, here, only_run

from tools.snippets.run import snippets

# Two sound splits of random images, and a model; a case replaces one of them.
CONFIG = """
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from models.digits import DigitsCNN
from utils.config import Config, configs

IMAGES = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))
SOUND = TensorDataset(IMAGES, torch.arange(40) % 10)


class Mine(Dataset):
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.sample(index)


class Stream(IterableDataset):
    def __len__(self):
        return 40

    def __iter__(self):
        return iter(SOUND)


def broken(index):
    if index == 7:
        raise ValueError('no label')
    return SOUND[index]


def ragged(index):
    return IMAGES[0, :, : 8 - (index == 7)], 0


class Model(DigitsCNN):
    pass


def data():
    return {'train': SOUND, 'test': SOUND}


CASE

configs.dataset = Config(data)
configs.model = Config(Model)
"""
RETURN = 'def data():\n    return '
DATA = {  # what data() returns, and the line that answers it
    "{'training': SOUND, 'test': SOUND}": (
        "there is no split 'train', only 'training', 'test'; return {'train': …, 'test': …}"
    ),
    '(SOUND, SOUND)': "it is a tuple; return a dictionary, {'train': …, 'test': …}",
    'None': "it is a NoneType; return a dictionary, {'train': …, 'test': …}",
    "{'train': SOUND, 'test': None}": "'test' is a NoneType, which has no length or no samples by "
    'number, so that ranks cannot share it; return a torch.utils.data.Dataset',
    "{'train': Stream(), 'test': SOUND}": "'train' is a Stream, which has no length or no samples "
    'by number, so that ranks cannot share it; return a torch.utils.data.Dataset',
    "{'train': SOUND, 'test': []}": "'test' has no samples; give it some, or leave it out",
    "{'train': [], 'test': SOUND}": "'train' has no samples; give it some",
    "{'train': Mine(lambda i: ('a.png', 0)), 'test': SOUND}": "a sample of 'train' is (str, int), "
    'and must be (input, target), both of them tensors, arrays or numbers; for images add '
    'torchvision.transforms.ToTensor()',
    "{'train': SOUND, 'test': Mine(lambda i: (object(), 0))}": "a sample of 'test' is (object, "
    'int), and must be (input, target), both of them tensors, arrays or numbers; for images add '
    'torchvision.transforms.ToTensor()',
    "{'train': Mine(lambda i: {'x': IMAGES[0], 'y': 0}), 'test': SOUND}": "a sample of 'train' is "
    'dict, and must be (input, target), both of them tensors, arrays or numbers; for images add '
    'torchvision.transforms.ToTensor()',
    "{'train': Mine(lambda i: (IMAGES[0], 0, 0)), 'test': SOUND}": "a sample of 'train' is "
    '(Tensor, int, int), and must be (input, target), both of them tensors, arrays or numbers; '
    'for images add torchvision.transforms.ToTensor()',
    "{'train': Mine(ragged), 'test': SOUND}": 'samples of one batch have different shapes or types '
    '([(1, 7, 8), ()] and [(1, 8, 8), ()]); give them all the same, with a transform',
}
CODE = {  # what is defined: the line, its exit code, the function and the text of its frame
    f"{RETURN}{{'train': Mine(broken), 'test': SOUND}}": (
        "configs.dataset: sample 7 of 'train' cannot be read: ValueError: no label",
        2, 'broken', "raise ValueError('no label')",
    ),
    f"{RETURN}{{'train': SOUND, 'test': Mine(broken)}}": (
        "configs.dataset: sample 7 of 'test' cannot be read: ValueError: no label",
        2, 'broken', "raise ValueError('no label')",
    ),
    f"{RETURN}{{'train': {{}}['x'], 'test': SOUND}}": (
        "KeyError: 'x'", 2, 'data', "return {'train': {}['x'], 'test': SOUND}",
    ),
    "class Model(DigitsCNN):\n    def __init__(self):\n        raise ValueError('no width')": (
        'ValueError: no width', 2, '__init__', "raise ValueError('no width')",
    ),
    "class Model(DigitsCNN):\n    def __init__(self):\n        raise KeyError('width')": (
        "KeyError: 'width'", 2, '__init__', "raise KeyError('width')",
    ),
    "class Model(DigitsCNN):\n    def forward(self, x):\n        raise ValueError('3 channels')": (
        'ValueError: 3 channels', 2, 'forward', "raise ValueError('3 channels')",
    ),
    # Meters are tried before training; what fails in training alone has another exit code.
    'class Model(DigitsCNN):\n    def forward(self, x):\n'
    '        return super().forward(x[0, 0] if self.training else x)': (
        'RuntimeError: ', 1, 'forward', 'return super().forward(x[0, 0] if self.training else x)',
    ),
}  # fmt: skip


def train(tmp_path: Path, case: str, size: int) -> Done:
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG.replace('CASE', case))
    words = [
        '--configs',
        'configs/digits/cnn.py',
        path,
        '--devices',
        'cpu',
        '--runs',
        tmp_path / 'r',
    ]
    words += ['--configs.train.num_epochs=1', '--configs.train.batch_size=8']
    return here(*words, *([*SIMULATED, str(size)] if size > 1 else []))


def said(done: Done) -> list[str]:
    """The lines from that of train.py on."""
    lines = [line for line in done.lines if line]
    assert len(done.complaints) == 1 and 'Traceback' not in done.output, done.output
    return lines[lines.index(done.complaints[0]) :]


@pytest.mark.parametrize('size', [1, 2])
def test_sound_data_and_a_sound_model_train(tmp_path, size):
    done = train(tmp_path, '', size)
    assert done.code == 0, done.output


@pytest.mark.parametrize('case', DATA)
def test_data_that_cannot_be_used_is_refused_in_one_line(tmp_path, case):
    done = train(tmp_path, RETURN + case, 2)
    assert done.code == 2, done.output
    assert said(done) == [f'train.py: configs.dataset: {DATA[case]}']
    assert not (tmp_path / 'r').exists() or 'ragged' in case  # which shows in a batch alone


@pytest.mark.parametrize('size', [1, 2])
@pytest.mark.parametrize('case', CODE)
def test_an_exception_of_ones_own_code_is_a_line_and_its_place(tmp_path, case, size):
    line, code, function, text = CODE[case]
    done = train(tmp_path, case, size)
    assert done.code == code, done.output
    first, *places = said(done)
    assert first.startswith((f'train.py: {line}', f'train.py: rank 1: {line}'))
    at = next(n for n, place in enumerate(places) if place.endswith(f', in {function}'))
    assert places[at].startswith(f'  File "{tmp_path}/mine.py", line ')
    assert places[at + 1] == f'    {text}'
    assert all(place.startswith((' ', '~', '^')) for place in places)


# ---------------------------------------------------------------- a loss of one's own

LOSS = """from torch import nn

configs.train.criterion = Config(nn.CrossEntropyLoss)


class Loss(nn.Module):
    def __init__(self, scale=None):
        super().__init__()
        self.scale = None if scale is None else nn.Parameter(torch.tensor(scale))

    def forward(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        RETURN


configs.train.criterion = """
LOSSES = {  # what forward returns, the node, and the line that answers it
    ('return loss[None]', 'Config(Loss)'): 'configs.train.criterion: Loss returned float32 [1]; '
    "return a scalar, such as the mean over the batch (reduction 'mean')",
    ('return loss, outputs', 'Config(Loss)'): 'configs.train.criterion: Loss returned a tuple; '
    "return a scalar, such as the mean over the batch (reduction 'mean')",
    ('', "Config(nn.CrossEntropyLoss, reduction='none')"): 'configs.train.criterion: '
    'CrossEntropyLoss returned float32 [8]; return a scalar, such as the mean over the batch '
    "(reduction 'mean')",
    ('', 'Config(nn.CrossEntropyLoss, label_smoothing=2)'): 'configs.train.criterion: '
    'CrossEntropyLoss refuses outputs: float32 [8, 10]; targets: int64 [8] from ',
    ('', 'Config(nn.MSELoss)'): 'configs.train.criterion: MSELoss refuses outputs: float32 '
    '[8, 10]; targets: int64 [8] from ',
    ('', 'Config(nn.CrossEntropyLoss)\nSOUND = TensorDataset(IMAGES, torch.arange(40) + 10)'): (
        'configs.train.criterion: CrossEntropyLoss refuses outputs: float32 [8, 10]; targets: '
        'int64 [8] from '
    ),
    ('return loss', 'Config(Loss, scale=1.0)'): 'configs.train.criterion: Loss has parameters '
    '(scale), and only those of configs.model are trained and saved: make them part of the model, '
    'or set requires_grad = False',
    ('return loss', 'Config(dict)'): 'configs.train.criterion: it makes a dict, and must make a '
    'torch.nn.Module that is called with outputs and targets',
}


@pytest.mark.parametrize('size', [1, 2])
@pytest.mark.parametrize('case', LOSSES)
def test_a_loss_that_cannot_be_trained_with_is_refused_in_one_line(tmp_path, case, size):
    returns, node = case
    done = train(tmp_path, LOSS.replace('RETURN', returns or 'pass') + node, size)
    assert done.code == 2, done.output
    (line,) = said(done)
    assert line.replace('rank 1: ', '').startswith(f'train.py: {LOSSES[case]}')


# ---------------------------------------------------------------- a loader of one's own

PLAIN = [
    *('--configs', 'configs/digits/cnn.py', 'configs/dense/sgd.py', '--devices', 'cpu'),
    *('--configs.train.num_epochs', '1', '--configs.train.batch_size', '32'),
    *('--configs.dataset.pad', '0', '--configs.dataset.test_size', '1500'),
]
SAMPLES = 1797 - 1500


@pytest.fixture
def loader_file(tmp_path) -> Path:
    """The loader of docs/input.md, in a config file."""
    code = next(s.text for s in snippets(ROOT / 'docs/input.md') if 'class OnDevice' in s.text)
    declared, _, rest = code.partition('configs.data = Config()\n')
    path = tmp_path / 'own.py'
    path.write_text(declared + rest.partition('\n')[0] + '\n')
    return path


def test_a_loader_of_ones_own_trains_as_the_usual_one_does(loader_file, tmp_path):
    runs = []
    for name, files in (('usual', []), ('own', [loader_file])):
        words = [*PLAIN[:3], *files, *PLAIN[3:], '--runs', tmp_path / name]
        runs.append(only_run(tmp_path / name, here(*words)))
    usual, own = runs
    assert own.results == usual.results
    facts = [json.loads((run.folder / 'run.json').read_text()) for run in runs]
    assert facts[0]['samples'] == facts[1]['samples'] == {'train': SAMPLES, 'test': 1500}


@pytest.mark.parametrize('more', [[], ['--configs.train.num_steps', '3']])
def test_less_than_a_step_is_refused_with_any_loader(loader_file, tmp_path, more):
    words = [*PLAIN[:3], 'FILE', *PLAIN[3:], '--configs.train.batch_size', '500', *more]
    for files in ([], [loader_file]):
        at = words.index('FILE')
        done = here(*words[:at], *files, *words[at + 1 :], '--runs', tmp_path / 'runs')
        assert (done.code, done.complaints) == (
            2,
            [
                f'train.py: configs.train.batch_size: {SAMPLES} training samples per worker are '
                'fewer than one step of 500; use smaller batches or fewer workers'
            ],
        ), done.output
