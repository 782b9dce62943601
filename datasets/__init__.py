"""Datasets: each is a class that takes its settings and is a dictionary {'train', 'test', …}.

Hugging Face's package has the same name. ``from datasets import load_dataset`` works in a config
file where that package is installed: see ``datasets/hugging_face.py``.
"""

from typing import Any

from datasets.cifar import CIFAR
from datasets.digits import Digits
from datasets.errors import DatasetError
from datasets.imagenet import ImageNet
from datasets.imdb import IMDB
from datasets.mnist import MNIST
from datasets.speech import AN4, Speech
from datasets.synthesised import SynthesisedWords
from datasets.text import PennTreebank, TextFile
from datasets.tiny_imagenet import TinyImageNet

__all__ = [
    'AN4',
    'CIFAR',
    'IMDB',
    'MNIST',
    'DatasetError',
    'Digits',
    'ImageNet',
    'PennTreebank',
    'Speech',
    'SynthesisedWords',
    'TextFile',
    'TinyImageNet',
]


def __getattr__(name: str) -> Any:
    """A name of Hugging Face's package. Raises ImportError, which an import statement shows."""
    if name.startswith('__'):
        raise AttributeError(name)
    from datasets.hugging_face import attribute

    return attribute(name)
