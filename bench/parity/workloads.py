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
        digits: After the decimal point, in tables.
    """

    name: str
    higher: bool
    bound: float
    relative: bool
    digits: int = 2

    def behind(self, value: float, dense: float) -> float:
        """Return by how much ``value`` is worse than dense training's, in units of ``bound``."""
        worse = dense - value if self.higher else value - dense
        return 100 * worse / dense if self.relative else worse

    def as_good_as(self, dense: float) -> float:
        """Return the worst value that counts as equal to dense training's."""
        worse = self.bound * dense / 100 if self.relative else self.bound
        return dense - worse if self.higher else dense + worse

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is at least as good as another one."""
        return value >= target if self.higher else value <= target

    @property
    def unit(self) -> str:
        """The unit of ``behind``."""
        return '%' if self.relative else 'points'


ACCURACY = Metric('acc/test_top1', higher=True, bound=1.0, relative=False)
PERPLEXITY = Metric('perplexity/test', higher=False, bound=2.0, relative=True)
LOSS = Metric('loss/test', higher=False, bound=1.0, relative=True, digits=4)
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
        compressed: More settings, of the rows that have a density; INDICES where they have indices.
        having: More settings, of the rows whose composition has them.
        dense: Config files that come last in the synchronous rows that have none.
        optimizer: Config files of another optimizer than SGD. They come after those of an
            algorithm, unless it has a rule of its own.
        after: Config files that come after those.
        optimizer_settings: More settings, of algorithms that are trained with those files.
        own_rule: More settings, of algorithms that are trained without them.
        local: More settings, of algorithms with local steps.
        rows: More settings of single rows, by name.
    """

    about: str
    configs: tuple[str, ...]
    metric: Metric = ACCURACY
    settings: Settings = field(default_factory=dict)
    compressed: Settings = field(default_factory=dict)
    having: Settings = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    optimizer_settings: Settings = field(default_factory=dict)
    own_rule: Settings = field(default_factory=dict)
    local: Settings = field(default_factory=dict)
    rows: Mapping[str, Settings] = field(default_factory=dict)


INDICES = 'train.compression.indices'
PACKED: Settings = {INDICES: 'packed'}  # exact, and shorter than int64
CIFAR: Settings = {
    'dataset.root': '{data}',
    'dataset.verify': False,
    'dataset.num_train': 10_000,
    'train.batch_size': 8,
    'train.warmup_lr_epochs': 1,
}
# Masking takes the momentum of elements that are sent often, which slows the epochs in which the
# density falls: ResNet-20 is 2.6 points behind dense training with it (seed 42).
UNMASKED: Settings = {'train.compression.memory.momentum_masking': False}
ADAMW = ('configs/optim/adamw.py',)
MOMENTS: Settings = {'train.averaging.moments': {'exp_avg': 30, 'exp_avg_sq': 30}}
# In the last of its stages, which is reached within the run.
ZERO_ONE: Settings = {'train.averaging.every': 8}
DIGITS_ROWS: dict[str, Settings] = {
    'des-loc': MOMENTS,
    'zero-one-adam': ZERO_ONE,
    # At 1 % an element waits for 100 of 550 steps.
    'random-k': {'train.compression.compress_ratio': 0.1, 'train.optimizer.lr': 0.1},
}
DILOCO = ('diloco', 'quantized-diloco', 'diloco-int4', 'diloco-fp4', 'muloco')
HALF: Settings = {'train.compression.warmup_steps': 1470}  # of 2,940
GPT_ROWS: dict[str, Settings] = {
    # 196 outer steps are few: with the papers' 0.9, DiLoCo's loss is 1.2 % higher (one seed).
    # Streaming DiLoCo's is 0.5 % lower.
    **{name: {'train.averaging.momentum': 0.8} for name in DILOCO},
    # The variance is frozen when the learning rate has risen, after an epoch.
    'one-bit-adam': {'train.compression.freeze_step': 980, 'train.optimizer.lr': 0.001},
    'zero-one-adam': {**ZERO_ONE, 'train.optimizer.lr': 0.001},
    'des-loc': {'train.averaging.moments': {'exp_avg': 45, 'exp_avg_sq': 45}},
    'demo': {'train.optimizer.lr': 0.001},
    # 256 of 4,096 elements every 5 steps have a tenth of DiLoCo's bytes. With 64 the loss is 1.0 %
    # higher, with 256 every 15 steps 3.8 % (one seed).
    'sparse-loco': {
        'train.averaging.every': 5,
        'train.optimizer.lr': 0.004,
        'train.compression.topk': 256,
    },
    **{
        f'{what}-0.1': HALF
        for what in ('residual', 'residual-layers', 'moment', 'moment-masked', 'movement')
    },
    # About 1 % of the elements at first; none is as large as on the digits.
    'threshold-v': {'train.compression.compressor.threshold': 0.02},
}

WORKLOADS: dict[str, Workload] = {
    'digits': Workload(
        'a small CNN on the digits of scikit-learn, 25 epochs',
        ('configs/digits/cnn.py',),
        compressed={**PACKED, 'train.compression.warmup_epochs': 5},
        local={'train.averaging.every': 10},  # of 550 steps
        rows=DIGITS_ROWS,
    ),
    'digits-adamw': Workload(
        'a small CNN on the digits of scikit-learn with AdamW, 25 epochs',
        ('configs/digits/cnn.py',),
        compressed={**PACKED, 'train.compression.warmup_epochs': 5},
        optimizer=ADAMW,
        local={'train.averaging.every': 10},
        rows={'des-loc': MOMENTS, 'zero-one-adam': ZERO_ONE},
    ),
    'resnet20': Workload(
        'ResNet-20 on the first 10,000 training images of CIFAR-10, 10 epochs',
        ('configs/cifar/resnet20.py',),
        settings={**CIFAR, 'train.num_epochs': 10, 'train.optimizer.lr': 0.00625},
        compressed={**PACKED, 'train.compression.warmup_epochs': 4},
        having=UNMASKED,
    ),
    'vgg16': Workload(
        'VGG-16 in bfloat16 on the first 4,000 training images of CIFAR-10, 12 epochs',
        ('configs/cifar/vgg16.py',),
        settings={
            **CIFAR,
            'dataset.num_train': 4_000,
            'dataset.num_test': 5_000,
            'train.num_epochs': 12,
            'train.optimizer.lr': 0.005,
            'train.precision': 'bf16',  # takes three quarters of the time
        },
        # In 6 epochs with a warm-up of 4, too few elements are sent: DGC is 3 points behind.
        compressed={**PACKED, 'train.compression.warmup_epochs': 6},
        having=UNMASKED,
        # Updates are three versions late. With 0.9 it has 24 % after 6 epochs, and 51 % with 0.3.
        rows={'dgs': {'train.optimizer.momentum': 0.3}},
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
        # Its memory divides by the momentum, so there must be some. Each gradient moves the
        # parameters by as much in all as in the mean of four at a rate of 20: 20 / 4 · (1 - 0.3).
        rows={'dgs': {'train.optimizer.momentum': 0.3, 'train.optimizer.lr': 3.5}},
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
        compressed={
            **PACKED,
            'train.compression.warmup_epochs': 1,
            'train.optimizer.betas': (0.9, 0.999),  # as dense training has it
        },
        optimizer=('configs/optim/adam.py',),
    ),
    'gpt-adamw': Workload(
        "a GPT of 1.4 M parameters on the bytes of Shakespeare's works with AdamW, 3 epochs",
        ('configs/text/gpt_1m.py',),
        LOSS,
        settings={
            'dataset.path': '{data}/tinyshakespeare/input.txt',
            'train.num_epochs': 3,
            'train.batch_size': 2,
        },
        compressed={
            **PACKED,
            'train.compression.warmup_epochs': 0,
            'train.compression.warmup_steps': 600,  # of 2,940
        },
        optimizer=ADAMW,
        after=('configs/rate/cosine.py',),
        optimizer_settings={'train.optimizer.lr': 0.002},
        own_rule={'train.scale_lr': False},
        local={'train.averaging.every': 15},
        rows=GPT_ROWS,
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
        # With a beta2 of 0.9999 DGC makes 1.3 and 1.5 points more errors (seeds 42 and 43): the
        # large gradients of the first steps of CTC stay in the second moment for all of 600 steps.
        compressed={
            **PACKED,
            'train.compression.warmup_epochs': 2,
            'train.optimizer.betas': (0.9, 0.95),
        },
        optimizer=ADAMW,
    ),
}


def workload(name: str) -> Workload:
    """Return a workload. Raises ValueError for a name that is not in the table."""
    check_name('--workload', 'workload', name, WORKLOADS)
    return WORKLOADS[name]
