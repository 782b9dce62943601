"""Each element of the mean of the ranks after the exchange."""

from torch.nn.utils import clip_grad_value_

from utils.config import Config, configs

configs.train.clip_mean = Config(clip_grad_value_, clip_value=0.1)
