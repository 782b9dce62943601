"""What the configuration files of these tests are made of, and how they are written."""

from pathlib import Path
from typing import Any

import pytest

from utils.config import ConfigError, load

VALUE: Any = None  # what value/__init__.py sets configs.x to


class SGD:
    """An optimizer with parameters of every kind that matters here."""

    def __init__(self, parameters, lr=0.1, momentum: float = 0, nesterov=False, betas=(0.9, 0.99),
                 foreach=None):  # fmt: skip
        self.parameters, self.lr, self.momentum, self.nesterov = parameters, lr, momentum, nesterov


class DGCSGD(SGD):
    def __init__(self, parameters, lr=0.1, momentum=0.0):
        super().__init__(parameters, lr, momentum)


class Cosine:
    def __init__(self, optimizer, T_max, eta_min=0.0):  # noqa: N803
        self.T_max = T_max


class Momentum:
    def __init__(self, momentum=0.9, momentum_masking=True):
        self.momentum, self.momentum_masking = momentum, momentum_masking


class Compressor:
    def __init__(self, ratio=0.001, memory=None):
        self.ratio, self.memory = ratio, memory


def settings_of(**settings):
    return settings


def positional_only(first, /, second=2):
    return first, second


IMPORTS = """import config_parts as parts
from utils.config import REQUIRED, Config, ConfigError, configs, derived
"""

DECLARATIONS = """
configs.seed = 42
configs.name = 'run'
configs.note = None
configs.train = Config()
configs.train.num_epochs = REQUIRED
configs.train.warmup_lr_epochs = 5
configs.train.nesterov = False
configs.train.base_lr = 0.1
configs.train.milestones = [1, 2]
configs.train.meters = Config()
configs.train.meters['acc/{}_top1'] = Config(parts.settings_of, k=1)
configs.train.optimizer = Config(parts.SGD, momentum=0.9)
configs.train.scheduler = Config(parts.Cosine)
configs.train.scheduler.T_max = derived(
    lambda: configs.train.num_epochs - configs.train.warmup_lr_epochs)
configs.train.compression = Config(parts.Compressor, memory=Config(parts.Momentum))
"""


def write(path: Path, text: str) -> str:
    """A config file whose first line of `text` is its third."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(IMPORTS + text)
    return str(path)


def write_stack(folder: Path) -> Path:
    """A stack like the published one, in folder/configs."""
    root = folder / 'configs'
    write(root / '__init__.py', DECLARATIONS)
    write(root / 'cifar/__init__.py', 'configs.dataset = Config(parts.settings_of, classes=10)')
    write(root / 'cifar/resnet20.py', 'configs.train.num_epochs = 200')
    write(root / 'dgc/__init__.py', "configs.train.wire = 'float32'")
    write(root / 'dgc/wm5.py', 'configs.train.compression.ratio = 0.002')
    write(root / 'dgc/fp16.py', "configs.train.wire = 'float16'")
    write(root / 'value/__init__.py', 'configs.x = parts.VALUE')
    return root


def complaint(*arguments: Any, **keywords: Any) -> str:
    """What `load` says of the arguments, which it refuses in one line."""
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **keywords)
    text = str(caught.value)
    assert '\n' not in text
    return text
