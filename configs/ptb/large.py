"""Two LSTM layers of 1500 units, 66.0 M parameters: the large network of the paper."""

from utils.config import configs, derived

configs.model.width = 1500
configs.model.dropout = 0.65
configs.model.spread = 0.04

configs.dataset.length = 35
configs.train.num_epochs = 55
configs.train.scheduler.gamma = 1 / 1.15
configs.train.scheduler.milestones = derived(
    lambda: [
        epoch - configs.train.warmup_lr_epochs
        for epoch in range(14, configs.train.num_epochs)
        if epoch > configs.train.warmup_lr_epochs
    ]
)
configs.train.compression.gradient_clipping.limit = derived(lambda: 10 / configs.dataset.length)
