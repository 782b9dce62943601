"""Every setting, with its default. The files of a stack change them; none of them adds one."""

import torch

from dgc import dense
from dgc.parameter_server import ServerSettings
from utils.config import REQUIRED, REQUIRED_NODE, Config, configs
from utils.meters import TopK
from utils.synchronous import Synchronous

configs.seed = 42

# What is trained: set by a file such as configs/cifar/resnet20.py.
configs.dataset = REQUIRED_NODE
configs.model = REQUIRED_NODE

# Threads of one worker; None: the machine's cores, shared among its workers.
configs.data = Config()
configs.data.num_threads_per_worker = None

# Who carries the bytes; None: what fits the launcher. 'simulated' runs engine.size workers here.
configs.engine = Config()
configs.engine.name = None
configs.engine.size = 1

# The server of asynchronous training: configs/dgs/, docs/parameter_server.md.
configs.server = Config(ServerSettings)

configs.train = Config()
configs.train.num_epochs = REQUIRED
configs.train.batch_size = REQUIRED  # samples of one worker in one backward pass
configs.train.num_batches_per_step = 1  # backward passes before gradients are exchanged
configs.train.criterion = Config(torch.nn.CrossEntropyLoss)

# optimizer.lr is that of one worker: it is multiplied by workers × batches per step.
configs.train.optimizer = Config(torch.optim.SGD, momentum=0.9)
configs.train.optimize_bn_separately = False  # no weight decay on BatchNorm's parameters
configs.train.compression = Config(dense)

# Who trains and who serves.
configs.train.distribution = Config(Synchronous)

# The scheduler begins after the warm-up, and steps once an epoch or once a step. Its T_max,
# milestones, step_size and total_iters count epochs either way.
configs.train.scheduler = None
configs.train.schedule_lr_per_epoch = True
configs.train.warmup_lr_epochs = 5

configs.train.metric = 'acc/test_top1'  # decides which checkpoint is the best
configs.train.meters = Config()
configs.train.meters['acc/{}_top1'] = Config(TopK, k=1)
configs.train.meters['acc/{}_top5'] = Config(TopK, k=5)
