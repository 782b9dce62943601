"""Networks for 32x32 images."""

from models.cifar.alexnet import AlexNet, alexnet
from models.cifar.davidnet import DavidNet, davidnet
from models.cifar.densenet import DenseNet, densenet100
from models.cifar.preresnet import PreResNet, preresnet110
from models.cifar.resnet import ResNet, resnet20, resnet32, resnet44, resnet56, resnet110
from models.cifar.resnext import ResNeXt, resnext29
from models.cifar.vgg import VGG, vgg11, vgg16, vgg19
from models.cifar.wide import resnet18, resnet34, resnet50

__all__ = [
    'VGG',
    'AlexNet',
    'DavidNet',
    'DenseNet',
    'PreResNet',
    'ResNeXt',
    'ResNet',
    'alexnet',
    'davidnet',
    'densenet100',
    'preresnet110',
    'resnet18',
    'resnet20',
    'resnet32',
    'resnet34',
    'resnet44',
    'resnet50',
    'resnet56',
    'resnet110',
    'resnext29',
    'vgg11',
    'vgg16',
    'vgg19',
]
