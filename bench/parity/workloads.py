"""What is trained: a stack of config files, its settings, and the metric that is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.harness.cli import check_name

Settings = Mapping[str, object]  # by the name of a setting without 'configs.'


@dataclass(frozen=True)
class Metric:
    """What is compared between algorithms, as metrics.jsonl has it at the end of training.

    Attributes:
        name: Of a meter.
        higher: Whether higher is better.
        bound: How far behind dense training counts as equal.
        relative: Whether ``bound`` is a percentage of dense training's value; else it is in units
            of the metric.
    """

    name: str
    higher: bool
    bound: float
    relative: bool

    def behind(self, value: float, dense: float) -> float:
        """Return by how much ``value`` is worse than dense training's, in units of ``bound``."""
        worse = dense - value if self.higher else value - dense
        return 100 * worse / dense if self.relative else worse

    @property
    def unit(self) -> str:
        """The unit of ``behind``."""
        return '%' if self.relative else 'points'


ACCURACY = Metric('acc/test_top1', higher=True, bound=1.0, relative=False)
PERPLEXITY = Metric('perplexity/test', higher=False, bound=2.0, relative=True)
LOSS = Metric('loss/test', higher=False, bound=1.0, relative=True)
WORD_ERRORS = Metric('error/test_words', higher=False, bound=1.0, relative=False)


@dataclass(frozen=True)
class Workload:
    """A network, its data and their schedule, the same for all algorithms.

    Attributes:
        about: One line, with what is reduced.
        configs: Config files that come before those of an algorithm.
        metric: What is compared.
        settings: Of all rows; '{data}' in a text stands for the folder of ``--data``. Where data
            lies does not identify a result.
        compressed: More settings, of the rows that compress.
        dense: Config files that come last in the rows that do not compress.
        rows: More settings of single rows, by name.
        after: Config files that come after those of an algorithm, such as another optimizer's.
        impossible: By row, why it cannot be trained.
    """

    about: str
    configs: tuple[str, ...]
    metric: Metric = ACCURACY
    settings: Settings = field(default_factory=dict)
    compressed: Settings = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    rows: Mapping[str, Settings] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)


PACKED: Settings = {'train.compression.indices': 'packed'}  # exact, and shorter than int64
CIFAR: Settings = {
    'dataset.root': '{data}',
    'dataset.verify': False,
    'dataset.num_train': 10_000,
    'train.batch_size': 32,
    'train.optimizer.lr': 0.025,
    'train.warmup_lr_epochs': 1,
}

# Rows that an optimizer with two moments cannot have.
SGD_ONLY = {'dgs': 'the update of a parameter server is that of SGD'}

WORKLOADS: dict[str, Workload] = {
    'digits': Workload(
        'a small CNN on the digits of scikit-learn, 25 epochs',
        ('configs/digits/cnn.py',),
        compressed={**PACKED, 'train.compression.warmup_epochs': 5},
    ),
    'digits-adamw': Workload(
        'a small CNN on the digits of scikit-learn with AdamW, 25 epochs',
        ('configs/digits/cnn.py',),
        compressed={**PACKED, 'train.compression.warmup_epochs': 5},
        after=('configs/optim/adamw.py',),
        impossible=SGD_ONLY,
    ),
    'resnet20': Workload(
        'ResNet-20 on the first 10,000 training images of CIFAR-10, 10 epochs',
        ('configs/cifar/resnet20.py',),
        settings={**CIFAR, 'train.num_epochs': 10},
        compressed={**PACKED, 'train.compression.warmup_epochs': 4},
    ),
    'vgg16': Workload(
        'VGG-16 on the first 5,000 training images of CIFAR-10, 8 epochs',
        ('configs/cifar/vgg16.py',),
        settings={
            **CIFAR,
            'dataset.num_train': 5_000,
            'train.num_epochs': 8,
            'train.optimizer.lr': 0.0125,
        },
        compressed={**PACKED, 'train.compression.warmup_epochs': 3},
    ),
    'ptb': Workload(
        "the paper's small LSTM on the validation text of Penn Treebank, 6 epochs",
        ('configs/ptb/small.py', 'configs/ptb/valid_only.py'),
        PERPLEXITY,
        settings={
            'dataset.root': '{data}/ptb',
            'train.num_epochs': 6,
            'train.batch_size': 5,  # 20 streams by four workers, as in the paper by one
            'train.scale_lr': False,
        },
        compressed={**PACKED, 'train.compression.warmup_epochs': 2},
        # Workers' gradients are much alike in the first epochs: with local limits alone their mean
        # exceeds the paper's limit, and dense training diverges.
        dense=('configs/clip/mean_norm.py',),
        # Its memory divides by the momentum: the rate is that of the same sum of updates.
        rows={'dgs': {'train.optimizer.momentum': 0.7, 'train.optimizer.lr': 6.0}},
    ),
    'imdb': Workload(
        'an LSTM on 10,000 reviews of IMDB with Adam, 3 epochs',
        ('configs/imdb/lstm.py',),
        settings={
            'dataset.root': '{data}/aclImdb',
            'dataset.cache': '{data}/cache',
            'dataset.num_train': 10_000,
            'dataset.num_test': 5_000,
            'train.num_epochs': 3,
            'train.batch_size': 8,
            'train.optimizer.lr': 0.002,
        },
        compressed={**PACKED, 'train.compression.warmup_epochs': 1},
        after=('configs/optim/adam.py',),
        impossible=SGD_ONLY,
    ),
    'gpt-adamw': Workload(
        "a GPT of 1.4 M parameters on the bytes of Shakespeare's works with AdamW, 3 epochs",
        ('configs/text/gpt_1m.py',),
        LOSS,
        settings={
            'dataset.path': '{data}/tinyshakespeare/input.txt',
            'train.num_epochs': 3,
            'train.batch_size': 8,
        },
        compressed={
            **PACKED,
            'train.compression.warmup_epochs': 0,
            'train.compression.warmup_steps': 150,
        },
        after=('configs/optim/adamw.py', 'configs/rate/cosine.py'),
        impossible=SGD_ONLY,
    ),
    'speech': Workload(
        'a small Deep Speech on synthesised words with AdamW, 8 epochs',
        ('configs/synthesised/small.py',),
        WORD_ERRORS,
        settings={
            'dataset.root': '{data}/synthesised',
            'train.num_epochs': 8,
            'train.optimizer.lr': 0.002,
        },
        compressed={**PACKED, 'train.compression.warmup_epochs': 2},
        after=('configs/optim/adamw.py',),
        impossible=SGD_ONLY,
    ),
}


def workload(name: str) -> Workload:
    """Return a workload. Raises ValueError for a name that is not in the table."""
    check_name('--workload', 'workload', name, WORKLOADS)
    return WORKLOADS[name]
