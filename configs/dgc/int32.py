"""Indices in int32, for tensors of up to 2,147,483,647 elements."""

from utils.config import configs

configs.train.compression.int32_indices = True
