"""Text for language models: any file, as bytes or words, and the Penn Treebank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from datasets.errors import DatasetError
from datasets.vocabulary import Vocabulary
from datasets.windows import MaskedWindows, StreamWindows, Windows

__all__ = ['BYTES', 'PennTreebank', 'TextFile', 'split_lines']

BYTES = 256
END_OF_LINE = '<eos>'
STREAMS = 16  # of an evaluation: what is measured must not depend on the number of workers

READINGS = ('windows', 'streams', 'masked')


class TextFile(dict[str, Dataset]):
    """{'train', 'test'} of one text file: the beginning trains, the end tests.

    Args:
        path: The file.
        tokens: 'bytes', or 'words': what white space separates, with ``<eos>`` at the end of lines.
        vocabulary: Number of tokens that the model knows, 256 for bytes. Words of the training part
            that are less common than these are ``<unk>``.
        length: Tokens of a window.
        test_fraction: The part of the file that tests.
        reading: 'windows': each predicts its next tokens, in random order, from another beginning
            in each epoch. 'streams': they continue each other, for models that carry a state.
            'masked': hidden tokens are predicted (``MaskedWindows``); the token ``vocabulary``
            hides them.
        seed: Of the test's hidden tokens.

    Raises:
        DatasetError: If the file is missing or too short, or a setting is invalid.
    """

    def __init__(
        self,
        path: str = './data/tinyshakespeare/input.txt',
        tokens: str = 'bytes',
        vocabulary: int = BYTES,
        length: int = 128,
        test_fraction: float = 0.1,
        reading: str = 'windows',
        seed: int = 0,
    ) -> None:
        for setting, value, choices in (
            ('tokens', tokens, ('bytes', 'words')),
            ('reading', reading, READINGS),
        ):
            if value not in choices:
                raise DatasetError.about(
                    setting, value, 'there is no such way', f'choose from {", ".join(choices)}'
                )
        if not 0 < test_fraction < 1:
            raise DatasetError.about(
                'test_fraction', test_fraction, 'no part tests', 'choose between 0 and 1'
            )
        content = read(Path(path), 'path', path)
        train, test = encode(content, tokens, vocabulary, test_fraction)
        if reading == 'streams':
            super().__init__(
                train=StreamWindows(train, length, STREAMS),
                test=StreamWindows(test, length, STREAMS),
            )
            return
        shifted, fixed = Windows(train, length, shift=True), Windows(test, length)
        if reading == 'windows':
            super().__init__(train=shifted, test=fixed)
        else:
            hidden = MaskedWindows(shifted, vocabulary)
            super().__init__(train=hidden, test=MaskedWindows(fixed, vocabulary, seed=seed))


class PennTreebank(dict[str, Dataset]):
    """{'train', 'valid', 'test'} of the Penn Treebank, as Mikolov et al. (2010) prepared it.

    Words are those of the training text, 10,000 with ``<unk>`` and ``<eos>``; windows are streams.

    Args:
        root: Folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt.
        vocabulary: Number of words at most.
        length: Words of a window, through which gradients flow back.
        train_on: 'train'. With 'valid' the validation text trains, and there is no split 'valid':
            for where the training text is missing; results are not comparable with others.

    Raises:
        DatasetError: If a file is missing or too short.
    """

    def __init__(
        self,
        root: str = './data/ptb',
        vocabulary: int = 10_000,
        length: int = 35,
        train_on: str = 'train',
    ) -> None:
        if train_on not in ('train', 'valid'):
            raise DatasetError.about(
                'train_on', train_on, 'there is no such text to train on', 'choose train or valid'
            )
        files = {'train': train_on, 'valid': 'valid', 'test': 'test'}
        if train_on == 'valid':
            del files['valid']
        texts = {}
        for split, name in files.items():
            path = Path(root).expanduser() / f'ptb.{name}.txt'
            texts[split] = split_lines(read(path, 'root', root).decode(errors='replace'))
        known = Vocabulary.of([texts['train']], vocabulary)
        super().__init__(
            {
                split: StreamWindows(known.encode(words), length, STREAMS)
                for split, words in texts.items()
            }
        )


def read(path: Path, setting: str, value: object) -> bytes:
    """The bytes of a file. Raises DatasetError, with a setting and its value."""
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise DatasetError.about(
            setting,
            value,
            f'{path} cannot be read ({error.strerror})',
            'put the file there, or set the path of another one',
        ) from error


def split_lines(text: str) -> list[str]:
    """The words of a text, with ``<eos>`` after each line."""
    return text.replace('\n', f' {END_OF_LINE} ').split()


def encode(
    content: bytes, tokens: str, vocabulary: int, test_fraction: float
) -> tuple[Tensor, Tensor]:
    """The tokens of the part that trains, and of the part that tests."""
    if tokens == 'bytes':
        if vocabulary < BYTES:
            raise DatasetError.about(
                'vocabulary', vocabulary, f'there are {BYTES} bytes', f'choose {BYTES}'
            )
        whole = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
        cut = round(len(whole) * (1 - test_fraction))
        return whole[:cut], whole[cut:]
    words = split_lines(content.decode(errors='replace'))
    cut = round(len(words) * (1 - test_fraction))
    known = Vocabulary.of([words[:cut]], vocabulary)
    return known.encode(words[:cut]), known.encode(words[cut:])
