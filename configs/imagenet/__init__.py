"""ImageNet with the schedule of the published DGC experiments."""

from torch.optim.lr_scheduler import MultiStepLR

from datasets import ImageNet
from utils.config import Config, configs, derived

configs.dataset = Config(ImageNet, root='/dataset/imagenet', num_classes=1000, image_size=224)

configs.train.num_epochs = 90
configs.train.batch_size = 32
configs.train.optimize_bn_separately = False

configs.train.optimizer.lr = 0.0125
configs.train.optimizer.weight_decay = 5e-5

# The scheduler counts from the end of the warm-up.
configs.train.scheduler = Config(MultiStepLR, gamma=0.1)
configs.train.scheduler.milestones = derived(
    lambda: [epoch - configs.train.warmup_lr_epochs for epoch in (30, 60, 80)]
)
