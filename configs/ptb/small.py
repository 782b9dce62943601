"""Two LSTM layers of 200 units, 4.7 M parameters: the small network of the paper."""

from utils.config import configs, derived

configs.model.width = 200
configs.model.dropout = 0.0
configs.model.spread = 0.1

configs.dataset.length = 20
configs.train.num_epochs = 13
configs.train.scheduler.gamma = 0.5
configs.train.scheduler.milestones = derived(
    lambda: [
        epoch - configs.train.warmup_lr_epochs
        for epoch in range(4, configs.train.num_epochs)
        if epoch > configs.train.warmup_lr_epochs
    ]
)
