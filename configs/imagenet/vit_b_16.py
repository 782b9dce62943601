"""ViT-B/16, a transformer on patches of 16 pixels, 86.6 M parameters, with AdamW."""

from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchvision.models import vit_b_16

from utils.config import Config, configs, derived

configs.model = Config(
    vit_b_16,
    image_size=derived(lambda: configs.dataset.image_size),
    num_classes=derived(lambda: configs.dataset.num_classes),
)

# A rate of 0.003 for 4,096 samples (Dosovitskiy et al., ICLR 2021, table 3).
configs.train.optimizer = Config(AdamW, lr=0.003 * 32 / 4096, weight_decay=0.3)

configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
