"""Speech and its transcripts: manifests, AN4 (Acero, 1990), and words that are synthesised."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from datasets.audio import log_spectrogram, read_sound
from datasets.errors import DatasetError
from datasets.letters import LETTERS, encode
from models.losses import frames_needed
from models.speech import STRIDE

__all__ = ['AN4', 'Speech', 'Utterance', 'Utterances']

SPOKEN = re.compile(r'(?:<s>)?\s*(.*?)\s*(?:</s>)?\s*\((\S+)\)')
MANIFESTS = {'train': 'an4_train_manifest.csv', 'valid': 'an4_val_manifest.csv'}
MANIFESTS['test'] = 'an4_test_manifest.csv'
MEND = 'mend or leave out its line'


class Utterance(NamedTuple):
    """A sound file and what is said in it."""

    path: Path
    text: str


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (log spectrogram with a last row of ones [bins + 1, frames], letters int64 [length]).

    The samples of a batch are as long as its longest: zeros are added, also to the last row, which
    tells where an utterance ends, and to the letters. Files are read when they are needed.

    Args:
        utterances: In order.
        rate: Samples per second of all files.
        letters: Those of the transcripts.
        setting: Named in errors.
        settable: Which of 'rate' and 'letters' are settings of the data set, for errors to name.
        stride: Frames of a spectrogram that become one of the network's output, which CTC aligns
            with the letters. An utterance with too few is refused when it is read.

    Raises:
        DatasetError: If a transcript is empty or has other letters, or the stride is below 1.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        rate: int = 16_000,
        letters: str = LETTERS,
        setting: str = 'root',
        settable: Collection[str] = (),
        stride: int = STRIDE,
    ) -> None:
        if stride < 1:
            raise DatasetError.about('stride', stride, 'no frame', 'choose 1 or more')
        self.utterances, self.rate, self.setting = list(utterances), rate, setting
        self.settable, self.stride = settable, stride
        self.targets = []
        for path, text in self.utterances:
            try:
                self.targets.append(encode(text, letters))
            except ValueError as error:
                raise self._wrong(path, str(error), self._to_set('letters', MEND)) from error
            if not text:
                raise self._wrong(path, 'its transcript is empty', 'leave it out')

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path, target = self.utterances[index].path, self.targets[index]
        remedy = self._to_set('rate', f'give it with {self.rate} per second')
        sound = log_spectrogram(read_sound(path, self.rate, self.setting, remedy), self.rate)
        frames, needed = -(-sound.shape[1] // self.stride), int(frames_needed(target[None]))
        if frames < needed:
            problem = (
                f'its {sound.shape[1]} frames become {frames} of the network, and its '
                f'{len(target)} letters need {needed}'
            )
            remedy = f'{MEND}, or set configs.dataset.stride of another network'
            raise self._wrong(path, problem, remedy)
        return F.pad(sound, (0, 0, 0, 1), value=1.0), target

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        samples = [self[index] for index in indices]
        frames, letters = (
            max(each.shape[-1] for each in part) for part in zip(*samples, strict=True)
        )
        return [
            (F.pad(sound, (0, frames - sound.shape[-1])), F.pad(target, (0, letters - len(target))))
            for sound, target in samples
        ]

    def _to_set(self, name: str, otherwise: str) -> str:
        """The remedy where ``name`` is a setting of the data set, and where it is none."""
        return f'set configs.dataset.{name}' if name in self.settable else otherwise

    def _wrong(self, path: Path, problem: str, remedy: str) -> DatasetError:
        """The error for one utterance."""
        return DatasetError.about(self.setting, str(path), problem, remedy)


class Speech(dict[str, Dataset]):
    """{'train', 'test'} from manifests: lines ``sound,transcript``, without a header.

    Sound is the path of a .wav or .sph file. The transcript is a text, or the path of a .txt file
    with it. Paths are relative to the manifest's folder. Capitals become small letters.

    Args:
        train, test: The manifests.
        rate: Samples per second of all files.
        letters: Those of the transcripts.
        stride: See ``Utterances``.

    Raises:
        DatasetError: If a manifest or a transcript cannot be read.
    """

    def __init__(
        self,
        train: str,
        test: str,
        rate: int = 16_000,
        letters: str = LETTERS,
        stride: int = STRIDE,
    ) -> None:
        super().__init__()
        for split, path in (('train', train), ('test', test)):
            found = read_manifest(Path(path).expanduser(), split)
            self[split] = Utterances(found, rate, letters, split, ('rate', 'letters'), stride)


class AN4(dict[str, Dataset]):
    """{'train', 'test'} of AN4: 948 and 130 utterances, spelled words and numbers, 16 kHz.

    Args:
        root: The published folder, with etc/an4_train.fileids and etc/an4_train.transcription, and
            sound files under wav/; or one with the manifests an4_train_manifest.csv,
            an4_test_manifest.csv and perhaps an4_val_manifest.csv, which becomes the split 'valid'.
        rate: Samples per second of all files.
        stride: See ``Utterances``.

    Raises:
        DatasetError: If the data is missing or damaged.
    """

    def __init__(self, root: str = './data/an4', rate: int = 16_000, stride: int = STRIDE) -> None:
        super().__init__()
        folder = Path(root).expanduser()
        if (folder / MANIFESTS['train']).is_file():
            found: Mapping[str, Sequence[Utterance]] = {
                split: read_manifest(folder / name, 'root')
                for split, name in MANIFESTS.items()
                if split != 'valid' or (folder / name).is_file()
            }
        elif (folder / 'etc').is_dir():
            found = {split: list(read_standard(folder, split, root)) for split in ('train', 'test')}
        else:
            raise DatasetError.about(
                'root',
                root,
                f'there is neither etc/ nor {MANIFESTS["train"]}',
                'set the folder an4 of the published archive, or one with manifests',
            )
        for split, utterances in found.items():
            self[split] = Utterances(utterances, rate, settable=['rate'], stride=stride)


def read_manifest(path: Path, setting: str) -> list[Utterance]:
    """The utterances of a manifest. Raises DatasetError. See ``Speech``."""
    utterances = []
    try:
        with path.open(newline='', encoding='utf-8') as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row:
                    continue
                if len(row) != 2:
                    problem = f'line {number} has {len(row)} fields'
                    raise DatasetError.about(setting, str(path), problem, 'write sound,transcript')
                text = row[1].strip()
                if text.endswith('.txt'):
                    text = (path.parent / text).read_text(encoding='utf-8').strip()
                utterances.append(Utterance(path.parent / row[0], text.lower()))
    except (OSError, UnicodeError, csv.Error) as error:
        remedy = 'set the path of a manifest, and mend what it names'
        raise DatasetError.about(setting, str(path), str(error), remedy) from error
    if not utterances:
        raise DatasetError.about(setting, str(path), 'it has no line', 'write sound,transcript')
    return utterances


def read_standard(folder: Path, split: str, root: str) -> Iterator[Utterance]:
    """The utterances of a split of the published folder. Raises DatasetError."""
    try:
        names = (folder / f'etc/an4_{split}.fileids').read_text('utf-8').split()
        lines = (folder / f'etc/an4_{split}.transcription').read_text('utf-8').splitlines()
    except (OSError, UnicodeError) as error:
        raise DatasetError.about('root', root, str(error), 'fetch the folder again') from error
    said = {}
    for line in filter(None, map(str.strip, lines)):
        match = SPOKEN.fullmatch(line)
        if match:
            said[match[2]] = match[1].lower()
    for name in names:
        files = [folder / f'wav/{name}{ending}' for ending in ('.wav', '.sph')]
        path = next((file for file in files if file.is_file()), None)
        text = said.get(name.rpartition('/')[2])
        if path is None or text is None:
            lacks = 'transcript' if text is None else 'sound, .wav or .sph'
            raise DatasetError.about('root', root, f'{name} has no {lacks}', 'fetch it again')
        yield Utterance(path, text)
