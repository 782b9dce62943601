"""Datasets: each is a class that takes its settings and is a dictionary {'train', 'test'}."""

from datasets.cifar import CIFAR
from datasets.digits import Digits
from datasets.errors import DatasetError
from datasets.imagenet import ImageNet

__all__ = ['CIFAR', 'DatasetError', 'Digits', 'ImageNet']
