"""Layered configuration: small Python files write their settings onto one tree, `configs`.

An experiment is a stack of files. They are executed in the order given, each after the
`__init__.py` files of the folders above it, and later settings win::

    # configs/__init__.py declares every setting: a name that is not here is a typing error
    configs.train = Config()                                        # a plain node: names, values
    configs.train.num_epochs = REQUIRED                             # a file must set it
    configs.seed = described(42, 'Seed of the weights.')            # 42, and a line for --list
    configs.model = REQUIRED_NODE                                   # to a callable node
    configs.train.optimizer = Config(torch.optim.SGD, momentum=0.9)  # a callable node: built later
    configs.train.optimizer.lr = derived(lambda: 10 / configs.train.num_epochs)

    # configs/cifar/resnet20.py
    configs.train.num_epochs = 200

    # train.py
    load(['configs/cifar/resnet20.py'], overrides=['--configs.train.num_epochs', '500'])
    configs.check()                                                 # nothing REQUIRED is left
    optimizer = configs.train.optimizer.build(model.parameters())   # SGD(…, momentum=0.9, lr=0.02)
    print(configs)                                                  # configs.train.num_epochs = 500

Every mistake that can be found is found before training starts, as a `ConfigError` of one line.
"""

from utils.config.loading import blame, load, names_of_settings
from utils.config.tree import (
    REQUIRED,
    REQUIRED_NODE,
    Config,
    ConfigError,
    configs,
    derived,
    described,
)

__all__ = [
    'REQUIRED',
    'REQUIRED_NODE',
    'Config',
    'ConfigError',
    'blame',
    'configs',
    'derived',
    'described',
    'load',
    'names_of_settings',
]
