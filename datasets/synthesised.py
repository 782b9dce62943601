"""Words of tones: speech that needs no download, on which a small network learns in minutes."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from datasets.audio import write_wav
from datasets.download import fetch_once
from datasets.errors import DatasetError
from datasets.speech import Utterances, read_manifest
from models.speech import STRIDE

__all__ = ['SynthesisedWords']

RATE = 8_000
LETTERS = ' abcdefghijklmnop'
LOW, HIGH = (
    (300, 420, 560, 740),
    (1000, 1400, 1900, 2600),
)  # Hz: a letter is one of each, as in DTMF
WORDS = 60
VERSION = 1  # of the sounds


class SynthesisedWords(dict[str, Dataset]):
    """{'train', 'test'}: sentences of one to three words, spoken by tones.

    A letter is two tones for 50 to 90 ms, of a pitch that varies with the speaker, with a gap of 15
    to 30 ms behind it, and 60 to 90 ms behind a word; there is noise over all. The words, 60 of two
    to five letters, are those of training and test alike; sentences, speakers and noise are not.
    Sounds are written once, as .wav files of 8 kHz with manifests.

    Args:
        root: Folder in which a folder for these settings is made.
        num_train, num_test: Numbers of sentences.
        noise: Standard deviation of the noise; that of a tone is about 0.2.
        seed: Of words and sounds.
        stride: See ``Utterances``.

    Raises:
        DatasetError: If the folder cannot be written, or a number is below 1.
    """

    def __init__(
        self,
        root: str = './data/synthesised',
        num_train: int = 1200,
        num_test: int = 200,
        noise: float = 0.3,
        seed: int = 0,
        stride: int = STRIDE,
    ) -> None:
        for setting, value in (('num_train', num_train), ('num_test', num_test)):
            if value < 1:
                raise DatasetError.about(setting, value, 'no sentence', 'choose 1 or more')
        key = f'{VERSION} {num_train} {num_test} {noise} {seed}'
        folder = Path(root).expanduser() / f'words-{hashlib.sha256(key.encode()).hexdigest()[:12]}'

        def make(partial: Path) -> None:
            write_all(partial / folder.name, (num_train, num_test), noise, seed)

        try:
            fetch_once(folder, make)
        except OSError as error:
            raise DatasetError.about('root', root, str(error), 'choose another folder') from error
        super().__init__()
        for split in ('train', 'test'):
            found = read_manifest(folder / f'{split}.csv', 'root')
            self[split] = Utterances(found, RATE, LETTERS, stride=stride)


def write_all(folder: Path, counts: tuple[int, int], noise: float, seed: int) -> None:
    """Write the sounds and manifests of both splits."""
    draw = np.random.default_rng(seed)
    words = make_words(draw)
    for split, count in zip(('train', 'test'), counts, strict=True):
        (folder / split).mkdir(parents=True)
        with (folder / f'{split}.csv').open('w', newline='') as file:
            manifest = csv.writer(file)
            for number in range(count):
                text = ' '.join(draw.choice(words, size=draw.integers(1, 4)))
                name = f'{split}/{number:05d}.wav'
                write_wav(folder / name, speak(text, draw, noise), RATE)
                manifest.writerow([name, text])


def make_words(draw: np.random.Generator) -> list[str]:
    """The words, each once."""
    words: list[str] = []
    while len(words) < WORDS:
        word = ''.join(draw.choice(list(LETTERS[1:]), size=draw.integers(2, 6)))
        if word not in words:
            words.append(word)
    return words


def speak(text: str, draw: np.random.Generator, noise: float) -> np.ndarray:
    """The sound of a sentence, from -1 to 1."""
    pitch = draw.uniform(0.94, 1.06)
    parts = [silence(draw.uniform(0.03, 0.08))]
    for letter in text:
        if letter == ' ':
            parts.append(silence(draw.uniform(0.06, 0.09)))
            continue
        row, column = divmod(LETTERS.index(letter) - 1, len(HIGH))
        length = int(RATE * draw.uniform(0.05, 0.09))
        time = np.arange(length) / RATE
        rise = np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / (0.01 * RATE))
        tones = [
            np.sin(2 * np.pi * (tone * pitch * time + draw.uniform()))
            for tone in (LOW[row], HIGH[column])
        ]
        parts += [draw.uniform(0.15, 0.3) * rise * sum(tones), silence(draw.uniform(0.015, 0.03))]
    parts.append(silence(draw.uniform(0.03, 0.08)))
    sound = np.concatenate(parts)
    return sound + noise * draw.standard_normal(len(sound))


def silence(seconds: float) -> np.ndarray:
    """No sound."""
    return np.zeros(int(RATE * seconds))
