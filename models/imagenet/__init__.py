"""What torchvision lacks for ImageNet: Inception v4, and a loss of auxiliary classifiers."""

from models.imagenet.auxiliary import AuxiliaryCrossEntropy
from models.imagenet.inception_v4 import InceptionV4, inception_v4

__all__ = ['AuxiliaryCrossEntropy', 'InceptionV4', 'inception_v4']
