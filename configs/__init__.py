"""Every setting, with its default. The files of a stack change them; none of them adds one."""

import torch

from dgc import dense
from dgc.engines.lighthouse import ElasticSettings
from dgc.parameter_server import ServerSettings
from utils.config import REQUIRED, REQUIRED_NODE, Config, configs, described
from utils.meters import TopK
from utils.training.averaging import EveryStep
from utils.training.synchronous import Synchronous

configs.seed = described(
    42, 'Seed of the weights, the order of the data and its augmentation.', optional=True
)

configs.deterministic = described(
    False, 'Whether cuDNN uses deterministic algorithms only, on GPUs.'
)

configs.dataset = described(REQUIRED_NODE, 'Training and test data.')
configs.model = described(REQUIRED_NODE, 'The network.')

configs.pretrained = Config()
configs.pretrained.file = described(
    None, 'State of a model, or a checkpoint, whose weights training begins with. None: none.'
)
configs.pretrained.skip = described(
    (), "Patterns of names that are not copied from it, such as ('fc.*',)."
)

configs.data = Config()
configs.data.num_threads_per_worker = described(
    None, "CPU threads of one worker. None: the machine's cores, shared among its workers."
)
configs.data.num_workers = described(
    None, 'Processes of one worker that load data. None: one per CPU thread with a GPU, else none.'
)
configs.data.start_method = described(
    None, "How they are started: 'fork', 'forkserver' or 'spawn'. None: as Python does by default."
)
configs.data.channels_last = described(
    False, 'Whether weights and activations of convolutions are stored channels last.'
)
configs.data.loader = described(
    None, 'A loader of your own for the training data: docs/input.md. None: the one of train.py.'
)

configs.engine = Config()
configs.engine.name = described(
    None,
    "Communication library: 'horovod', 'torch', 'local' or 'simulated'; 'torchft' with "
    "configs/elastic/. None: the launcher's.",
)
configs.engine.size = described(1, "Number of workers of the engine 'simulated'.")
configs.engine.pipeline = described(
    None,
    'Whether a bucket is compressed while the one before it is sent. None: where a worker has two '
    'cores.',
)
configs.engine.warning_seconds = described(
    30.0, 'Seconds of waiting in one call until a line names the ranks and the bucket waited for.'
)
configs.engine.abort_seconds = described(
    None, 'Seconds of waiting in one call until the run ends. None: from the measured steps.'
)

# Beside the checkpoints at the end of each epoch: docs/reliability.md.
configs.checkpoint = Config()
configs.checkpoint.every_steps = described(
    None, 'Optimizer steps between checkpoints within an epoch. None: none are saved by steps.'
)
configs.checkpoint.every_minutes = described(
    None, 'Minutes between checkpoints within an epoch. None: none are saved by time.'
)
configs.checkpoint.keep_epochs = described(
    3,
    'Epochs whose checkpoints are kept, the last ones, besides the best one. None: all.',
    optional=True,
)

configs.checkpoint.most_growth = described(
    10.0, "By what factor the weights' norm may grow between checkpoints, for one to be resumed."
)

# Where steps are skipped, which configs.train.compression.nonfinite = 'skip' allows.
configs.rollback = Config()
configs.rollback.after_skips = described(
    None,
    'Skipped steps in a row until training goes back to the last good checkpoint. None: never.',
)
configs.rollback.lr_factor = described(0.5, 'By what the learning rate is multiplied then.')
configs.rollback.times = described(3, 'How often, until training ends.')

configs.agreement = described(
    None, 'Steps between comparisons of all parameters and buffers over the ranks. None: epochs.'
)

# TensorBoard: docs/report.md.
configs.log = Config()
configs.log.axis = described(
    'samples', "What TensorBoard's Step counts: 'samples' of all workers, or optimizer 'steps'."
)
configs.log.histogram_steps = described(
    None, 'Optimizer steps between two histograms of magnitudes in TensorBoard. None: none.'
)
configs.log.selection_steps = described(
    None, 'Optimizer steps between two comparisons of top-k with random-k, by layer. None: none.'
)
configs.log.trace_steps = described(
    None, "First and last of the steps whose phases are traced, such as '(100, 109)'. None: none."
)

# The server of asynchronous training: configs/dgs/, docs/parameter_server.md.
configs.server = described(Config(ServerSettings), 'The server of asynchronous training.')

# Training whose workers may die, stall and join: configs/elastic/, docs/elastic.md.
configs.elastic = described(Config(ElasticSettings), 'Workers that may die, stall and join.')

configs.train = Config()
configs.train.num_epochs = described(REQUIRED, 'Number of epochs.')
configs.train.num_steps = described(
    None, 'Optimizer steps after which training ends, if epochs do not end it before. None: epochs.'
)
configs.train.batch_size = described(REQUIRED, 'Samples of one worker in one backward pass.')
configs.train.num_batches_per_step = described(
    1, 'Backward passes before gradients are exchanged and the optimizer steps.'
)
configs.train.criterion = described(Config(torch.nn.CrossEntropyLoss), 'The loss function.')

configs.train.optimizer = described(
    Config(torch.optim.SGD, momentum=described(0.9, 'Momentum.')),
    'The optimizer; its lr is multiplied by the number of workers × batches per step.',
)
configs.train.scale_lr = described(
    True, 'Whether the learning rate is multiplied so. Otherwise it is used as it is given.'
)
configs.train.clip_mean = described(
    None, 'Clips the mean gradient after the exchange: configs/clip/. None: nothing does.'
)
configs.train.precision = described(
    'fp32', "Of the forward pass: 'fp32', or 'bf16' by autocast. All else stays float32."
)
configs.train.compile = described(
    None, "Backend with which torch.compile compiles the network, such as 'inductor'. None: not."
)
configs.train.recompute = described(
    False, 'Whether activations are computed again in the backward pass, which saves their memory.'
)
configs.train.ema = described(
    None, 'Decay per step of an average of the weights, which is evaluated. None: no average.'
)
configs.train.optimize_bn_separately = described(
    False, 'Whether the parameters of BatchNorm are free of weight decay.'
)
configs.train.compression = described(
    Config(dense), 'How gradients are compressed and exchanged: a composition.'
)

configs.train.averaging = described(
    Config(EveryStep),
    'What ranks average: EveryStep, gradients; OuterSteps, the movement of local steps.',
)

configs.train.distribution = described(
    Config(Synchronous), 'Training mode: Synchronous, or ParameterServer (configs/dgs/).'
)

# T_max, T_0, milestones, step_size, step_size_up, step_size_down, total_iters and total_steps count
# epochs in either mode. eta_min, base_lr and max_lr are those of one worker.
configs.train.scheduler = described(
    None, 'A scheduler of torch, which begins after the warm-up. None: a constant rate.'
)
configs.train.schedule_lr_per_epoch = described(
    True, 'Whether the scheduler steps once per epoch; otherwise once per step.'
)
configs.train.warmup_lr_epochs = described(
    5, 'Epochs in which the learning rate rises from that of one worker.'
)

configs.train.metric = described(
    'acc/test_top1', 'Meter that decides which checkpoint is best. None: the last.', optional=True
)
configs.train.meters = Config()
configs.train.meters['acc/{}_top1'] = described(Config(TopK, k=1), 'Top-1 accuracy of a split.')
configs.train.meters['acc/{}_top5'] = described(Config(TopK, k=5), 'Top-5 accuracy of a split.')
