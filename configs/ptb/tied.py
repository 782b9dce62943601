"""The embedding is also the weight of the last layer (Press and Wolf, 2017)."""

from utils.config import configs

configs.model.tied = True
