"""IMDB (Maas et al., 2011): 25,000 reviews of films to train with, 25,000 to test, good or bad."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from datasets.download import fetch_once
from datasets.errors import DatasetError, check_available
from datasets.vocabulary import Vocabulary

__all__ = ['IMDB', 'Reviews', 'words_of']

ARCHIVE = 'aclImdb_v1.tar.gz'
MEMBER = re.compile(r'(?:.*/)?(train|test)/(neg|pos)/(\d+_\d+)\.txt')
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
LABELS = {'neg': 0, 'pos': 1}
PADDING = '<pad>'  # the word 0
MAX_BYTES = 2**20  # of one review
CACHED = 'reviews.npz'
PARTS = ('words', 'ends', 'labels')  # in it, of each split
VERSION = 1  # of the file with the numbers of the words


class Review(NamedTuple):
    """One review: its split, 'neg' or 'pos', its file's name, and its text."""

    split: str
    kind: str
    name: str
    text: str


class Reviews(Dataset[tuple[Tensor, int]]):
    """Pairs (words int64 [length], label): 1 for a good review, 0 for a bad one.

    Of a longer review the last words are used. A shorter one is followed by the word 0.

    Args:
        words: The numbers of all words, one review after the other.
        ends: Where each review ends, [N].
        labels: [N].
        length: Words of a sample.
    """

    def __init__(self, words: Tensor, ends: Tensor, labels: Tensor, length: int) -> None:
        self.words, self.labels = words, labels
        self.length = self.tokens_per_sample = length
        self._ends = ends
        self._begins = torch.cat([ends.new_zeros(1), ends[:-1]])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        begin, end = int(self._begins[index]), int(self._ends[index])
        words = self.words[max(begin, end - self.length) : end]
        sample = torch.zeros(self.length, dtype=torch.int64)
        sample[: len(words)] = words
        return sample, int(self.labels[index])

    def some(self, count: int | None) -> Reviews:
        """As many reviews, evenly spread, of which as many are good as before; None for all."""
        if count is None:
            return self
        chosen = torch.arange(count) * len(self) // count
        parts = [self.words[self._begins[i] : self._ends[i]] for i in chosen]
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        return Reviews(torch.cat(parts), ends, self.labels[chosen], self.length)


class IMDB(dict[str, Dataset]):
    """{'train', 'test'}: int64 words [length] and labels.

    The vocabulary is that of the training part. Reviews are read and numbered once; the result is
    kept in ``cache`` with a checksum, under a name that depends on the files and ``vocabulary``.

    Args:
        root: The folder aclImdb, the folder that it is in, or the archive, which is not unpacked.
        vocabulary: Number of words that the model knows, with those for padding and unknown ones.
        length: Words of a sample.
        num_train, num_test: Number of reviews to use, evenly spread. None: all.
        cache: Folder of the numbered reviews.

    Raises:
        DatasetError: If the data is missing or damaged, or a setting is invalid.
    """

    def __init__(
        self,
        root: str = './data/aclImdb',
        vocabulary: int = 10_000,
        length: int = 200,
        num_train: int | None = None,
        num_test: int | None = None,
        cache: str = './data/cache',
    ) -> None:
        for setting, value, least in (('vocabulary', vocabulary, 2), ('length', length, 1)):
            if value < least:
                raise DatasetError.about(setting, value, 'too few', f'choose {least} or more')
        source = find(root)
        mark = hashlib.sha256(f'{VERSION} {vocabulary} {signature(source)}'.encode()).hexdigest()
        folder = Path(cache).expanduser() / f'imdb-{mark[:16]}'

        def number_all(partial: Path) -> None:
            (partial / folder.name).mkdir()
            write(partial / folder.name / CACHED, list(read(source, root)), vocabulary, root)

        try:
            fetch_once(folder, number_all)
        except OSError as error:
            remedy = 'set a folder that can be written, or a readable root'
            raise DatasetError.about('cache', cache, str(error), remedy) from error
        parts = load(folder / CACHED, length)
        for split, count in (('train', num_train), ('test', num_test)):
            check_available(f'num_{split}', count, len(parts[split]), 'reviews')
            parts[split] = parts[split].some(count)
        super().__init__(parts)


def words_of(text: str) -> list[str]:
    """The words of a review, in small letters, without punctuation and line breaks of HTML."""
    return WORD.findall(text.lower().replace('<br />', ' '))


def find(root: str) -> Path:
    """The folder with train/ and test/, or the archive. Raises DatasetError."""
    path = Path(root).expanduser()
    for candidate in (path, path / 'aclImdb', path / ARCHIVE):
        if candidate.is_file() or (candidate / 'train').is_dir():
            return candidate
    raise DatasetError.about(
        'root',
        root,
        'there is neither train/ nor aclImdb/ nor an archive',
        f'set the folder aclImdb, or the path of {ARCHIVE}',
    )


def signature(source: Path) -> str:
    """What tells whether the files have changed: names and sizes, or size and time of an archive.

    The place does not count.
    """
    if source.is_file():
        status = source.stat()
        return f'{status.st_size} {status.st_mtime_ns}'
    digest = hashlib.sha256()
    for path in files(source):
        digest.update(f'{path.relative_to(source)} {path.stat().st_size}\n'.encode())
    return digest.hexdigest()


def files(folder: Path) -> Iterator[Path]:
    """The reviews of a folder, in order."""
    for split in ('train', 'test'):
        for kind in LABELS:
            yield from sorted((folder / split / kind).glob('*.txt'))


def read(source: Path, root: str) -> Iterator[Review]:
    """The reviews of a folder or an archive. Raises DatasetError where one cannot be read."""
    if source.is_file():
        yield from read_archive(source, root)
        return
    for path in files(source):
        if path.stat().st_size > MAX_BYTES:
            raise too_large(root, str(path))
        text = path.read_text(encoding='utf-8', errors='replace')
        yield Review(path.parent.parent.name, path.parent.name, path.stem, text)


def read_archive(source: Path, root: str) -> Iterator[Review]:
    """The reviews of an archive, read from it one by one; nothing is unpacked onto the disk.

    Everything but regular files with the names of reviews is passed over.
    """
    try:
        with tarfile.open(source, 'r|*') as archive:
            for member in archive:
                match = MEMBER.fullmatch(member.name)
                if match is None or not member.isreg():
                    continue
                if member.size > MAX_BYTES:
                    raise too_large(root, member.name)
                content = archive.extractfile(member)
                assert content is not None  # it is a regular file
                split, kind, name = match.groups()
                yield Review(split, kind, name, content.read().decode(errors='replace'))
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DatasetError.about(
            'root', root, f'{source} is no archive or damaged ({error})', 'fetch it again'
        ) from error


def too_large(root: str, name: str) -> DatasetError:
    """The error for a file that is no review."""
    problem = f'{name} has more than {MAX_BYTES} bytes'
    return DatasetError.about('root', root, problem, 'remove it: it is no review')


def write(path: Path, reviews: list[Review], vocabulary: int, root: str) -> None:
    """Number the words of all reviews, and write them with a checksum.

    Raises:
        DatasetError: If a split lacks good or bad reviews.
    """
    reviews.sort(key=lambda review: review[:3])
    for split in ('train', 'test'):
        if {review.kind for review in reviews if review.split == split} != set(LABELS):
            raise DatasetError.about(
                'root', root, f'{split}/ lacks good or bad reviews', 'fetch the data again'
            )
    texts: dict[str, list[list[str]]] = {'train': [], 'test': []}
    for review in reviews:
        texts[review.split].append(words_of(review.text))
    known = Vocabulary.of(texts['train'], vocabulary, first=[PADDING])
    arrays: dict[str, Any] = {
        'vocabulary': np.frombuffer('\n'.join(known.words).encode(), dtype=np.uint8)
    }
    for split, words in texts.items():
        numbers = [known.encode(each) for each in words]
        labels = [LABELS[review.kind] for review in reviews if review.split == split]
        arrays[f'{split}/words'] = torch.cat(numbers).numpy()
        arrays[f'{split}/ends'] = np.cumsum([len(each) for each in numbers])
        arrays[f'{split}/labels'] = np.array(labels, dtype=np.int64)
    with path.open('wb') as file:
        np.savez(file, **{**arrays, 'checksum': np.array(checksum(arrays))})


def load(path: Path, length: int) -> dict[str, Reviews]:
    """Read what ``write`` wrote. Raises DatasetError where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        is_whole = str(arrays.pop('checksum')) == checksum(arrays)
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error
    if not is_whole:
        raise damaged(path, 'its checksum differs')
    parts = {}
    for split in ('train', 'test'):
        words, ends, labels = (torch.from_numpy(arrays[f'{split}/{name}']) for name in PARTS)
        parts[split] = Reviews(words, ends, labels, length)
    return parts


def damaged(path: Path, reason: str) -> DatasetError:
    """The error for numbered reviews that cannot be used."""
    problem = f'{path} is damaged ({reason})'
    return DatasetError.about('cache', str(path.parents[1]), problem, f'remove {path.parent}')


def checksum(arrays: dict[str, Any]) -> str:
    """SHA-256 of names, types and contents."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f'{name} {arrays[name].dtype}'.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
