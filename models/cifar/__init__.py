"""Networks for 32x32 images."""

from models.cifar.resnet import ResNet, resnet20, resnet56, resnet110
from models.cifar.vgg import VGG, vgg16, vgg19

__all__ = ['VGG', 'ResNet', 'resnet20', 'resnet56', 'resnet110', 'vgg16', 'vgg19']
