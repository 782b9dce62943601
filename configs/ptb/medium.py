"""Two LSTM layers of 650 units, 19.8 M parameters: the medium network of the paper."""

from utils.config import configs, derived

configs.model.width = 650
configs.model.dropout = 0.5
configs.model.spread = 0.05

configs.dataset.length = 35
configs.train.num_epochs = 39
configs.train.scheduler.gamma = 1 / 1.2
configs.train.scheduler.milestones = derived(
    lambda: [
        epoch - configs.train.warmup_lr_epochs
        for epoch in range(6, configs.train.num_epochs)
        if epoch > configs.train.warmup_lr_epochs
    ]
)
