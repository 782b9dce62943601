"""Windows of texts: what is predicted, from what, and how batches continue each other."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets import DatasetError, PennTreebank, TextFile
from datasets.vocabulary import UNKNOWN, Vocabulary
from datasets.windows import IGNORED, MaskedWindows, StreamWindows, Windows

PTB = {
    'train': 'the cat sat\non the mat\n' * 6,
    'valid': 'the dog sat\n' * 4,
    'test': 'a cat sat on a dog\n' * 3,
}


@pytest.fixture
def ptb(tmp_path):
    for name, text in PTB.items():
        (tmp_path / f'ptb.{name}.txt').write_text(text)
    return tmp_path


@given(st.integers(2, 60), st.integers(1, 20))
@settings(deadline=None)
def test_each_token_after_the_first_is_predicted_once_from_those_before(count, length):
    length = min(length, count - 1)
    tokens = torch.arange(count)
    windows = Windows(tokens, length)
    predicted = []
    for inputs, targets in windows:
        kept = targets != IGNORED
        assert torch.equal(targets[kept], inputs[kept] + 1)
        predicted += targets[kept].tolist()
    assert predicted == list(range(1, count))


@given(st.integers(2, 60), st.integers(1, 20), st.integers(0, 9))
@settings(deadline=None)
def test_shifted_windows_lie_in_the_text_and_end_nowhere_else(count, length, seed):
    length = min(length, count - 1)
    torch.manual_seed(seed)
    windows = Windows(torch.arange(count), length, shift=True)
    assert len(windows) == (count - 1) // length
    for index, (inputs, targets) in enumerate(windows):
        assert torch.equal(targets, inputs + 1)  # and none is ignored
        assert index * length <= inputs[0] + length and inputs[0] < (index + 1) * length


def test_windows_are_shifted_anew_and_the_same_again_from_the_same_seed():
    windows = Windows(torch.arange(1000), 50, shift=True)

    def starts(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [int(inputs[0]) for inputs, _ in windows.__getitems__(list(range(19)))]

    assert starts(0) == starts(0) != starts(1)


def test_a_text_shorter_than_a_window_is_refused(tmp_path):
    path = tmp_path / 'short.txt'
    path.write_text('ten bytes.')
    line = r'configs.dataset.length = 9: the text has 9 tokens'
    with pytest.raises(DatasetError, match=line):
        TextFile(str(path), length=9)


def test_bytes_are_cut_into_a_part_that_trains_and_one_that_tests(tmp_path):
    path = tmp_path / 'text'
    path.write_bytes(bytes(range(200)))
    data = TextFile(str(path), length=10, test_fraction=0.25)
    assert data['train'].tokens.tolist() == list(range(150))
    assert data['test'].tokens.tolist() == list(range(150, 200))
    assert data['test'][0][0].dtype == data['test'][0][1].dtype == torch.int64


def test_words_that_the_training_part_lacks_are_unknown(tmp_path):
    path = tmp_path / 'text'
    path.write_text('b a b\n' * 9 + 'b c b\n')
    data = TextFile(str(path), 'words', vocabulary=9, length=2)
    # <unk>, then by frequency: b, <eos> and a
    assert data['train'].tokens[:4].tolist() == [1, 3, 1, 2]
    assert data['test'].tokens.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ('settings', 'line'),
    [
        ({'tokens': 'letters'}, "tokens = 'letters'.*choose from bytes, words"),
        ({'reading': 'aloud'}, "reading = 'aloud'.*choose from windows, streams, masked"),
        ({'test_fraction': 1}, 'test_fraction = 1'),
        ({'vocabulary': 65}, 'vocabulary = 65: there are 256 bytes'),
        ({'path': 'nowhere/text'}, 'path = .*No such file'),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path, settings, line):
    path = tmp_path / 'text'
    path.write_text('a' * 500)
    with pytest.raises(DatasetError, match=line):
        TextFile(**{'path': str(path), **settings})


def test_the_penn_treebank_has_the_words_of_its_training_text(ptb):
    data = PennTreebank(str(ptb), length=3)
    assert list(data) == ['train', 'valid', 'test']
    words = [data['train'].tokens.tolist(), data['test'].tokens.tolist()]
    assert len(words[0]) == len(PTB['train'].replace('\n', ' <eos> ').split())
    assert words[1][0] == words[1][4] == 0  # 'a' is in no line of the training text
    assert words[0][0] == words[0][5]  # the
    assert all(split.streams for split in data.values())


def test_a_word_that_is_not_utf8_is_a_word_of_its_own(ptb):
    """As in a text file: it is in no vocabulary, and the others are where they were."""
    whole = PennTreebank(str(ptb), length=3)['test'].tokens
    (ptb / 'ptb.test.txt').write_bytes(PTB['test'].replace('cat', 'c\xe2t', 1).encode('latin-1'))
    found = PennTreebank(str(ptb), length=3)['test'].tokens
    assert found[1] == 0 and whole[1] != 0
    assert torch.equal(torch.cat([found[:1], found[2:]]), torch.cat([whole[:1], whole[2:]]))


def test_the_validation_text_may_train(ptb):
    (ptb / 'ptb.train.txt').unlink()
    data = PennTreebank(str(ptb), length=3, train_on='valid')
    assert list(data) == ['train', 'test']
    assert len(data['train'].tokens) == 16
    with pytest.raises(DatasetError, match=r'root = .*ptb.train.txt cannot be read'):
        PennTreebank(str(ptb), length=3)


@given(st.lists(st.text('ab', max_size=3), max_size=30), st.integers(1, 9), st.randoms())
def test_a_vocabulary_does_not_depend_on_the_order_of_texts(words, size, order: random.Random):
    first = Vocabulary.of([words], size)
    order.shuffle(words)
    assert Vocabulary.of([[word] for word in words], size).words == first.words
    assert len(first) <= max(size, 1) and UNKNOWN in first.words
    known = [word for word in words if word in first.words]
    assert first.decode(first.encode(known).tolist()) == known


# ---------------------------------------------------------------- hidden tokens


def test_hidden_tokens_are_predicted_and_no_others():
    torch.manual_seed(0)
    masked = MaskedWindows(Windows(torch.arange(4001) % 97, 40), mask=97)
    inputs, targets = map(torch.stack, zip(*masked.__getitems__(list(range(100))), strict=True))
    whole = (torch.arange(4000) % 97).view(100, 40)
    chosen = targets != IGNORED
    assert (chosen.sum(1) == 6).all()  # 15 % of 40
    assert torch.equal(targets[chosen], whole[chosen])
    assert torch.equal(inputs[~chosen], whole[~chosen])
    share = (inputs[chosen] == 97).double().mean()
    assert 0.7 < share < 0.9
    changed = (inputs[chosen] != whole[chosen]).double().mean()
    assert share < changed < 0.97  # some are random, some stay


def test_a_test_hides_the_same_tokens_every_time_and_training_others():
    windows = Windows(torch.arange(401), 40)
    fixed, anew = MaskedWindows(windows, 500, seed=1), MaskedWindows(windows, 500)
    assert torch.equal(fixed[3][0], fixed.__getitems__([0, 3])[1][0])
    assert not torch.equal(fixed[3][0], MaskedWindows(windows, 500, seed=2)[3][0])
    assert not torch.equal(anew[3][0], anew[3][0])


def test_even_the_shortest_window_has_a_hidden_token():
    masked = MaskedWindows(Windows(torch.arange(9), 1), 500, seed=0)
    assert all((targets != IGNORED).sum() == 1 for _, targets in masked)


def test_streams_are_windows_without_shift():
    windows = StreamWindows(torch.arange(21), 5, streams=4)
    assert [inputs[0].item() for inputs, _ in windows] == [0, 5, 10, 15]
