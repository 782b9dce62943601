"""Who sees which samples: equal shares in training, every sample once in evaluation."""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from datasets import DatasetError
from utils.config import Config
from utils.data import (
    EvaluationStreams,
    Located,
    SampleError,
    StreamShare,
    TrainShare,
    build_datasets,
    collate,
    evaluation_loader,
    train_loader,
)
from utils.loading import Loading


class Augmented(torch.utils.data.Dataset):
    """Samples with noise of every random generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[float, float, int]:
        return random.random() + float(np.random.random()), float(torch.rand(())), index


class AtOnce(Augmented):
    """Loads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[float, float, int]]:
        return [self[index] for index in indices]


@pytest.mark.parametrize('kind', [Augmented, AtOnce])
def test_the_rest_of_an_epoch_is_augmented_as_in_the_whole_one(kind):
    """By processes that load data, whichever of them loads a sample."""

    def epoch(number: int, skipped: int, processes: int) -> list:
        loader, share = train_loader(kind(), 3, 1, 2, 0, Loading(processes))
        share.epoch, share.skipped = number, skipped
        return [torch.stack([part.double() for part in batch]).tolist() for batch in loader]

    whole = epoch(0, 0, 2)
    assert len(whole) == 4
    assert epoch(0, 6, 1) == whole[2:]
    assert epoch(0, 12, 1) == []
    others = {tuple(batch[0]) for batch in epoch(1, 0, 2)}
    assert not others & {tuple(batch[0]) for batch in whole}


class Groups(Augmented):
    """Samples are the process group in which they are loaded."""

    def __getitem__(self, index: int) -> int:
        return os.getpgid(0)


def test_signals_to_the_group_of_a_rank_do_not_reach_the_processes_that_load_data():
    loaders = [
        train_loader(Groups(), 3, 0, 1, 0, Loading(1))[0],
        evaluation_loader(Groups(), 3, 0, 1, Loading(1)),
    ]
    for loader in loaders:
        groups = {int(group) for batch in loader for group in batch}
        assert len(groups) == 1 and os.getpgid(0) not in groups


def dataset(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def shares(total: int, size: int, epoch: int = 0, seed: int = 1) -> list[list[int]]:
    """What each of ``size`` workers draws."""
    drawn = []
    for rank in range(size):
        share = TrainShare(range(total), rank, size, seed)
        share.epoch = epoch
        drawn.append(list(share))
        assert len(drawn[-1]) == len(share)
    return drawn


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 3))
@settings(deadline=None)
def test_shares_are_equally_long_and_disjoint_and_leave_out_fewer_than_workers(total, size, epoch):
    drawn = shares(total, size, epoch)
    together = [sample for share in drawn for sample in share]
    assert {len(share) for share in drawn} == {total // size}
    assert len(set(together)) == len(together) > total - size
    assert set(together) <= set(range(total))


@given(st.integers(1, 60), st.integers(1, 9))
@settings(deadline=None)
def test_all_ranks_cut_the_same_permutation(total, size):
    whole = shares(total, 1)[0]
    drawn = shares(total, size)
    for index in range(total // size * size):
        assert drawn[index % size][index // size] == whole[index]


def test_the_order_changes_with_the_epoch_and_the_seed_and_with_nothing_else():
    first = shares(100, 3)
    assert shares(100, 3) == first
    assert shares(100, 3, epoch=1) != first
    assert shares(100, 3, seed=2) != first
    torch.manual_seed(5)
    assert shares(100, 3) == first
    left_out = [set(range(100)) - {s for share in shares(100, 3, e) for s in share} for e in (0, 1)]
    assert left_out[0] != left_out[1]  # nobody sits out for ever


def test_training_batches_are_full_and_equally_many():
    loaders = [train_loader(dataset(23), 3, rank, 2, 0)[0] for rank in range(2)]
    batches = [[len(batch) for (batch,) in loader] for loader in loaders]
    assert batches == [[3, 3, 3], [3, 3, 3]]


def test_setting_the_epoch_of_the_share_reorders_the_loader():
    loader, share = train_loader(dataset(24), 4, 0, 2, 0)
    first = torch.cat([batch for (batch,) in loader])
    share.epoch = 1
    assert not torch.equal(torch.cat([batch for (batch,) in loader]), first)


@pytest.mark.parametrize(('total', 'batch', 'size', 'samples'), [(10, 6, 2, 5), (3, 4, 1, 3)])
def test_a_batch_larger_than_the_share_is_refused(total, batch, size, samples):
    text = f'configs.train.batch_size: {samples} training samples per worker are fewer than'
    with pytest.raises(ValueError, match=text):
        train_loader(dataset(total), batch, 0, size, 0)


@pytest.mark.parametrize('total', [0, 1, 2, 5, 12])
@pytest.mark.parametrize('size', [1, 2, 3, 7])
def test_evaluation_sees_each_sample_once(total, size):
    seen = []
    for rank in range(size):
        loader = evaluation_loader(dataset(total), 2, rank, size)
        mine = [sample for (batch,) in loader for sample in batch.tolist()]
        assert total // size <= len(mine) <= total // size + 1
        seen += mine
    assert sorted(seen) == list(range(total))


def test_five_samples_on_three_ranks():
    loaders = [evaluation_loader(dataset(5), 2, rank, 3) for rank in range(3)]
    batches = [[batch.tolist() for (batch,) in loader] for loader in loaders]
    assert batches == [[[0, 3]], [[1, 4]], [[2]]]


# ---------------------------------------------------------------- streams


@given(st.integers(1, 80), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None)
def test_each_row_of_a_batch_continues_the_one_before(total, size, rows, per_step):
    """Also where a step has several backward passes, and in a part of an epoch."""
    seen = []
    for rank in range(size):
        share = StreamShare(range(total), rank, size, 0, rows)
        order = list(share)
        assert len(order) == len(share) == total // (size * rows) * rows
        passes = [order[i : i + rows] for i in range(0, len(order), rows)]
        for before, after in itertools.pairwise(passes):
            assert after == [sample + 1 for sample in before]
        share.epoch, share.skipped = 3, min(rows * per_step, len(order))
        assert list(share) == order[share.skipped :]  # the same in every epoch
        seen += order
    assert len(set(seen)) == len(seen) > total - size * rows


@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 5))
@settings(deadline=None)
def test_streams_of_an_evaluation_are_the_same_at_any_number_of_ranks(total, streams, size):
    def runs(size: int) -> list[list[int]]:
        """What follows what, over all ranks."""
        found = []
        for rank in range(size):
            batches = list(EvaluationStreams(total, streams, rank, size))
            assert len(batches) == len(EvaluationStreams(total, streams, rank, size))
            rows: list[list[int]] = [[] for _ in batches[0]] if batches else []
            for before, after in itertools.pairwise(batches):
                assert after == [sample + 1 for sample in before[: len(after)]]
            for batch in batches:
                for row, sample in zip(rows, batch, strict=False):
                    row.append(sample)
            found += rows
        return sorted(found)

    assert sorted(itertools.chain(*runs(size))) == list(range(total))
    assert runs(size) == runs(1)


class Consecutive(Augmented):
    """Samples that continue each other."""

    streams = 4


def test_loaders_ask_the_data_set_for_its_order():
    loaders = [train_loader(Located(Consecutive(), 'train'), 4, r, 2, 0, rows=2)[0] for r in (0, 1)]
    batches = [[batch[-1].tolist() for batch in loader] for loader in loaders]
    # Two backward passes of two rows: streams of 6 samples that begin at 0 and 6, 12 and 18.
    assert batches[0] == [[0, 6, 1, 7], [2, 8, 3, 9], [4, 10, 5, 11]]
    assert batches[1] == [[sample + 12 for sample in batch] for batch in batches[0]]
    test = evaluation_loader(Located(Consecutive(), 'test'), 9, 0, 3)
    assert [batch[-1].tolist() for batch in test] == [[s, 18 + s] for s in range(6)]


# ---------------------------------------------------------------- data of one's own


class Lazy(torch.utils.data.Dataset):
    """Opens its file with its first sample, as data sets of HDF5 files do."""

    def __init__(self) -> None:
        self.file: object = None
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.file = self.file or object()
        if index == 7:
            raise ValueError('no label')
        return torch.zeros(2), index


class Numbered(torch.utils.data.Dataset):
    """Samples are their numbers, also beyond the length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Batches(Lazy):
    """Gives whole batches."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        self.asked.append(indices)
        return [self[index] for index in indices]


def test_the_first_sample_is_read_on_a_copy():
    """docs/failures.md, row 19: a file opened before a fork would be shared by processes."""
    lazy = Lazy()
    made = {'train': lazy, 'val': [(torch.zeros(2), 1.0)]}
    data = build_datasets(Config(None, dataset=Config(lambda: made)))
    assert list(data) == ['train', 'val'] and lazy.file is None
    assert [len(split) for split in data.values()] == [9, 1]


@pytest.mark.parametrize('kind', [Lazy, Batches])
def test_a_sample_that_cannot_be_read_is_named(kind):
    """docs/failures.md, row 19."""
    data = kind()
    located = Located(data, 'train')
    loader = evaluation_loader(located, 3, 0, 1)
    line = "configs.dataset: sample 7 of 'train' cannot be read: ValueError: no label"
    with pytest.raises(SampleError, match=line) as raised:
        list(loader)
    assert isinstance(raised.value.__cause__, ValueError)
    assert data.asked == ([[0, 1, 2], [3, 4, 5], [6, 7, 8]] if kind is Batches else [])


@pytest.mark.parametrize('data', [[(1, 2), (3, 4)], Numbered(2)])
def test_a_loop_over_the_samples_ends_with_the_last(data):
    assert list(Located(data, 'train')) == [data[0], data[1]]


def test_a_loop_over_the_samples_does_not_end_with_a_broken_one():
    class Short(Numbered):
        def __getitem__(self, index: int) -> int:
            return [1][index]

    with pytest.raises(SampleError, match="sample 1 of 'train' cannot be read: IndexError"):
        list(Located(Short(2), 'train'))


def test_an_exception_in_a_batch_whose_samples_are_sound_passes_through():
    data = Batches()
    data.__getitems__ = lambda indices: 1 // 0
    with pytest.raises(ZeroDivisionError):
        list(evaluation_loader(Located(data, 'test'), 3, 0, 1))


def test_samples_of_different_shapes_are_refused_and_both_are_named():
    """docs/failures.md, row 19."""
    with pytest.raises(
        DatasetError, match=r'shapes or types \(\[\(2,\), \(\)\] and \[\(3,\), \(\)\]'
    ):
        collate([(torch.zeros(2), 0), (torch.zeros(3), 1)])
