"""CIFAR-100 in place of CIFAR-10: 100 classes of the same size together."""

from utils.config import configs

configs.dataset.root = './data/cifar100'
configs.dataset.num_classes = 100
