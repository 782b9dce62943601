"""Reviews from a folder and from an archive, numbered once and kept with a checksum."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest
import torch

from datasets import IMDB, DatasetError
from datasets.imdb import MAX_BYTES, words_of

COUNT = 3  # reviews of each kind in each split


def write_reviews(root: Path) -> Path:
    for split in ('train', 'test'):
        for kind, word in (('pos', 'good'), ('neg', 'bad')):
            folder = root / split / kind
            folder.mkdir(parents=True)
            for number in range(COUNT):
                text = f'A {word} film,<br />number {number}. {"again " * number}'
                (folder / f'{number}_{number + 1}.txt').write_text(text)
    (root / 'train/unsup').mkdir()
    (root / 'train/unsup/0_0.txt').write_text('unlabelled')
    (root / 'README').write_text('a file beside')
    return root


@pytest.fixture
def reviews(tmp_path) -> Path:
    return write_reviews(tmp_path / 'aclImdb')


@pytest.fixture
def archive(reviews, tmp_path) -> Path:
    path = tmp_path / 'aclImdb_v1.tar.gz'
    with tarfile.open(path, 'w:gz') as file:
        file.add(reviews, 'aclImdb')
    shutil.rmtree(reviews)
    return path


def imdb(root: Path, **settings) -> IMDB:
    cache = settings.pop('cache', root.parent / 'cache')
    return IMDB(str(root), **{'vocabulary': 9, 'length': 5, **settings}, cache=str(cache))


def content(data: IMDB) -> dict[str, list]:
    return {split: [(words.tolist(), label) for words, label in data[split]] for split in data}


def test_words_have_no_case_punctuation_or_line_breaks():
    text = "It's <br /><br />GOOD -- isn't it?! 10/10 'quoted'"
    assert words_of(text) == ["it's", 'good', "isn't", 'it', '10', '10', 'quoted']


def test_reviews_are_padded_at_the_end_and_lose_their_first_words(reviews):
    data = imdb(reviews)
    assert len(data['train']) == len(data['test']) == 2 * COUNT
    (first, label), (last, _) = data['train'][0], data['train'][2]
    assert label == 0 and first.dtype == torch.int64
    # By frequency, then alphabet: a, again, film, number; of the rarer ones bad, good and 0.
    assert first.tolist() == [2, 6, 4, 5, 8]  # a bad film number 0
    assert last.tolist() == [4, 5, 1, 3, 3]  # film number 2 again again; 2 is unknown
    short = imdb(reviews, length=7)['train'][0][0]
    assert short.tolist() == [*first.tolist(), 0, 0]


def test_the_archive_gives_what_the_folder_gives(reviews, archive, tmp_path):
    packed = content(imdb(archive))
    unpacked = content(imdb(write_reviews(tmp_path / 'other/aclImdb')))
    assert packed == unpacked
    assert packed == content(imdb(archive.parent))  # the folder that it is in
    assert not (archive.parent / 'aclImdb').exists()


def test_words_of_the_test_are_no_part_of_the_vocabulary(reviews):
    path = reviews / 'test/pos/0_1.txt'
    path.write_text('unheard ' * 500)
    assert set(imdb(reviews)['test'][COUNT][0].tolist()) == {1}


def test_a_part_has_as_many_good_reviews_as_bad_ones(reviews):
    data = imdb(reviews, num_train=4, num_test=2)
    whole = imdb(reviews)
    assert data['train'].labels.tolist() == [0, 0, 1, 1]
    assert [len(data[split]) for split in data] == [4, 2]
    assert torch.equal(data['train'][2][0], whole['train'][3][0])


def test_reviews_are_read_once_and_again_where_they_changed(reviews, monkeypatch):
    before = content(imdb(reviews))
    with monkeypatch.context() as patched:
        patched.setattr('datasets.imdb.read', lambda *_: pytest.fail('read again'))
        assert content(imdb(reviews)) == before
    (reviews / 'train/neg/0_1.txt').write_text('another text')
    assert content(imdb(reviews)) != before


def test_damaged_numbers_are_not_used(reviews):
    imdb(reviews)
    (path,) = (reviews.parent / 'cache').glob('imdb-*/reviews.npz')
    whole = path.read_bytes()
    middle = len(whole) // 3
    for wrong in (
        whole[:-100],
        b'',
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
    ):
        path.write_bytes(wrong)
        with pytest.raises(DatasetError, match=f'damaged.*remove {path.parent}'):
            imdb(reviews)
    path.write_bytes(whole)
    imdb(reviews)


def add(archive: tarfile.TarFile, name: str, size: int = 1, **more) -> None:
    member = tarfile.TarInfo(name)
    member.size = size if not more else 0
    for key, value in more.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(b'x' * size))


def test_only_files_with_the_names_of_reviews_are_read(reviews, archive, tmp_path):
    whole = content(imdb(archive))
    other = tmp_path / 'more.tar'
    with tarfile.open(archive) as source, tarfile.open(other, 'w') as target:
        for member in source:
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
        add(target, 'aclImdb/train/pos/../../../../escaped.txt')
        add(target, 'aclImdb/train/pos/9_9.txt', type=tarfile.SYMTYPE, linkname='/etc/passwd')
        add(target, 'aclImdb/train/pos/9_9.txt', type=tarfile.FIFOTYPE)
        add(target, 'aclImdb/train/unsup/9_9.txt')
    assert content(imdb(other)) == whole


def test_archives_that_cannot_be_used_are_named(archive, tmp_path):
    cut = tmp_path / 'cut.tar.gz'
    cut.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r'root = .* is no archive or damaged'):
        imdb(cut)
    large = tmp_path / 'large.tar'
    with tarfile.open(large, 'w') as file:
        add(file, 'aclImdb/train/pos/1_1.txt', MAX_BYTES + 1)
    with pytest.raises(DatasetError, match=r'train/pos/1_1.txt has more than'):
        imdb(large)


@pytest.mark.parametrize(
    ('change', 'line'),
    [
        ({'num_train': 7}, 'num_train = 7: there are 6 reviews'),
        ({'num_test': 0}, 'num_test = 0: there are 6 reviews'),
        ({'vocabulary': 1}, 'vocabulary = 1: too few'),
        ({'length': 0}, 'length = 0: too few'),
    ],
)
def test_settings_that_cannot_be_meant(reviews, change, line):
    with pytest.raises(DatasetError, match=f'configs.dataset.{line}'):
        imdb(reviews, **change)


def test_what_is_missing_is_named(reviews, tmp_path):
    with pytest.raises(DatasetError, match=r'root = .*neither train/ nor aclImdb/ nor an archive'):
        imdb(tmp_path / 'nowhere')
    shutil.rmtree(reviews / 'test/pos')
    with pytest.raises(DatasetError, match='test/ lacks good or bad reviews'):
        imdb(reviews)
