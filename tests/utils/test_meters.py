"""Meters against plain computations, and that they add up over workers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.letters import LETTERS, encode
from datasets.windows import IGNORED
from utils.meters import (
    R2,
    BitsPerByte,
    CharacterErrorRate,
    CrossEntropy,
    ErrorRate,
    MeterError,
    Perplexity,
    Ranking,
    TopK,
    WordErrorRate,
    edits,
)


def plain_percentage(outputs: torch.Tensor, targets: torch.Tensor, k: int) -> float:
    """Samples whose class has fewer than ``k`` classes scored above it."""
    correct = 0
    for scores, target in zip(outputs.tolist(), targets.tolist(), strict=True):
        correct += sum(score > scores[target] for score in scores) < k
    return 100 * correct / max(len(targets), 1)


@given(st.integers(0, 40), st.integers(2, 12), st.integers(1, 11), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_topk_is_the_plain_percentage_however_it_is_cut(samples, classes, k, workers, data):
    k, seed = min(k, classes - 1), data.draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, classes, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    sums = torch.zeros(2, dtype=torch.float64)
    for rank in range(workers):
        meter = TopK(k)
        for part in range(rank, samples, workers):  # batches of one
            meter.update(outputs[part : part + 1], targets[part : part + 1])
        sums += meter.sums()
    assert TopK.value(sums) == pytest.approx(plain_percentage(outputs, targets, k))


def test_a_whole_batch_at_once():
    outputs = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    targets = torch.tensor([1, 1, 0])
    results = {}
    for k in (1, 2):
        meter = TopK(k)
        meter.update(outputs, targets)
        results[k] = TopK.value(meter.sums())
    assert results == {1: pytest.approx(100 / 3), 2: pytest.approx(200 / 3)}


def test_nothing_seen_is_no_error():
    assert TopK.value(TopK().sums()) == 0.0


def test_counts_stay_exact_where_float32_would_round():
    meter = TopK()
    meter.correct = meter.count = 2**24 + 1
    assert meter.sums().tolist() == [2**24 + 1, 2**24 + 1]


@pytest.mark.parametrize(
    ('outputs', 'targets', 'message'),
    [
        (torch.ones(2, 1), torch.ones(2, 1), r'scores \[batch, classes\].*\[2, 1\].*float32'),
        (torch.ones(2, 9), torch.ones(2), 'whole numbers.*float32'),
        (torch.ones(2, 9), torch.ones(2, 9, dtype=torch.long), r'targets \[2, 9\]'),
        (torch.ones(2, 9, 9), torch.ones(2, dtype=torch.long), r'returns \[2, 9, 9\]'),
        (torch.ones(2), torch.ones(2, dtype=torch.long), r'returns \[2\]'),
        (torch.ones(2, 3), torch.ones(2, dtype=torch.long), '100 % of 3 classes: set k below 3'),
        (torch.ones(2, 5), torch.ones(2, dtype=torch.long), '100 % of 5 classes: set k below 5'),
    ],
)
def test_a_meter_that_cannot_apply_is_refused(outputs, targets, message):
    """failures row 5"""
    with pytest.raises(MeterError, match=message):
        TopK(5).update(outputs, targets)


@pytest.mark.parametrize('k', [0, -1])
def test_no_class_that_is_a_hit_is_refused(k):
    with pytest.raises(MeterError, match=f'top-{k} accuracy is always 0 %: set k to 1 or more'):
        TopK(k).update(torch.ones(2, 9), torch.ones(2, dtype=torch.long))


@pytest.mark.parametrize('kind', [TopK, CrossEntropy, Perplexity, R2, WordErrorRate])
@pytest.mark.parametrize('outputs', [(torch.ones(2, 9), None), {'logits': torch.ones(2, 9)}])
def test_a_model_that_returns_no_tensor_is_refused(kind, outputs):
    with pytest.raises(MeterError, match=f'the model returns a {type(outputs).__name__}: have it'):
        kind().update(outputs, torch.ones(2, dtype=torch.long))


# ---------------------------------------------------------------- likelihoods


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 999))
@settings(deadline=None)
def test_likelihoods_add_up_over_ranks_with_unequal_numbers_of_tokens(samples, ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, 3, 7, generator=generator)
    targets = torch.randint(7, (samples, 3), generator=generator)
    targets[torch.rand(samples, 3, generator=generator) < 0.2] = IGNORED
    kept = targets != IGNORED
    losses = -outputs.log_softmax(-1)[kept].gather(1, targets[kept][:, None])
    mean = float(losses.double().mean()) if kept.any() else 0.0
    expected = {CrossEntropy: mean, Perplexity: math.exp(mean), BitsPerByte: mean / math.log(2)}
    for kind, value in expected.items():
        sums = torch.zeros(2, dtype=torch.float64)
        for rank in range(ranks):
            meter = kind()
            if rank < samples:  # another rank has nothing
                meter.update(outputs[rank::ranks], targets[rank::ranks])
            sums += meter.sums()
        assert kind.value(sums) == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert kind.better == 'lower'


def test_a_perplexity_that_is_too_large_is_infinite():
    assert Perplexity.value(torch.tensor([1e6, 1.0])) == math.inf


@pytest.mark.parametrize(
    ('outputs', 'targets'),
    [
        (torch.ones(2, 3, 4), torch.ones(2, dtype=torch.long)),
        (torch.ones(2, 4), torch.ones(2)),
        (torch.ones(2), torch.ones(2, dtype=torch.long)),
    ],
)
def test_a_likelihood_that_cannot_apply_is_refused(outputs, targets):
    with pytest.raises(MeterError, match='the likelihood needs scores'):
        CrossEntropy().update(outputs, targets)


# ---------------------------------------------------------------- regression


@given(st.integers(2, 30), st.integers(1, 4), st.integers(0, 999), st.floats(-100, 100))
@settings(deadline=None)
def test_r2_is_one_minus_errors_over_variance(samples, ranks, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(samples, 2, generator=generator, dtype=torch.float64) + shift
    outputs = targets + 0.3 * torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    sums = torch.zeros(4, dtype=torch.float64)
    for rank in range(ranks):
        meter = R2()
        meter.update(outputs[rank::ranks], targets[rank::ranks])
        sums += meter.sums()
    errors = (outputs - targets).square().sum()
    expected = 1 - float(errors / (targets - targets.mean()).square().sum())
    assert R2.value(sums) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_r2_of_what_cannot_be_compared():
    with pytest.raises(MeterError, match='one shape'):
        R2().update(torch.ones(3, 1), torch.ones(3))
    meter = R2()
    meter.update(torch.ones(3), torch.full((3,), 2.0))
    assert R2.value(meter.sums()) == 0.0 == R2.value(R2().sums())


# ---------------------------------------------------------------- error rates


def plain_distance(first: str, second: str) -> int:
    """Levenshtein's recursion."""
    if not first or not second:
        return len(first) + len(second)
    replaced = plain_distance(first[1:], second[1:]) + (first[0] != second[0])
    return min(
        replaced, 1 + plain_distance(first[1:], second), 1 + plain_distance(first, second[1:])
    )


@given(st.text('ab', max_size=5), st.text('ab', max_size=5))
@settings(deadline=None, max_examples=50)
def test_edits_are_the_fewest(first, second):
    assert edits(first, second) == plain_distance(first, second) == edits(second, first)


def scores(*texts: str) -> torch.Tensor:
    """What a network that is certain of some texts returns, with a blank after each letter."""
    paths = [[part for number in encode(text).tolist() for part in (number, 0)] for text in texts]
    longest = max(map(len, paths))
    padded = torch.tensor([path + [0] * (longest - len(path)) for path in paths])
    return torch.nn.functional.one_hot(padded, 1 + len(LETTERS)).float()


def letters(*texts: str) -> torch.Tensor:
    """Transcripts, padded."""
    return torch.nn.utils.rnn.pad_sequence(list(map(encode, texts)), batch_first=True)


def test_error_rates_in_characters_and_words_over_ranks():
    batches = [
        (scores('go too', 'yes'), letters('go to', 'yes')),
        (scores('no no no'), letters('no')),
    ]
    rates = {}
    for kind in (CharacterErrorRate, WordErrorRate):
        sums = torch.zeros(2, dtype=torch.float64)
        for outputs, targets in batches:  # each of a rank
            meter = kind()
            meter.update(outputs, targets)
            sums += meter.sums()
        rates[kind] = kind.value(sums)
        assert kind.better == 'lower'
    assert rates[CharacterErrorRate] == pytest.approx(100 * (1 + 0 + 6) / (5 + 3 + 2))
    assert rates[WordErrorRate] == pytest.approx(100 * (1 + 0 + 2) / (2 + 1 + 1))


def test_an_error_rate_that_cannot_apply_is_refused():
    for outputs, targets in (
        (torch.ones(2, 3), letters('a', 'b')),
        (torch.ones(2, 3, 5), letters('a', 'b')),
        (scores('a', 'b'), torch.ones(2)),
    ):
        with pytest.raises(MeterError, match='an error rate needs scores'):
            CharacterErrorRate().update(outputs, targets)
    assert issubclass(WordErrorRate, ErrorRate)


# ---------------------------------------------------------------- which is better


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.sampled_from(['higher', 'lower']))
def test_the_best_is_the_largest_or_the_smallest(values, better):
    ranking = Ranking(better)
    best = ranking.best(values)
    assert best == (max if better == 'higher' else min)(values)
    assert not any(ranking.improves(value, best) for value in values)


@pytest.mark.parametrize('better', ['higher', 'lower'])
def test_what_is_not_a_number_is_never_better(better):
    ranking = Ranking(better)
    assert not any(ranking.improves(math.nan, best) for best in (1.0, math.inf, math.nan, None))
    assert all(ranking.improves(value, math.nan) for value in (1.0, math.inf, -math.inf))
    assert ranking.improves(1.0, None) and ranking.best([math.nan, 2.0, math.nan]) == 2.0


def test_a_meter_that_says_neither_is_refused():
    with pytest.raises(ValueError, match="'higher' or 'lower', and not 'smaller'"):
        Ranking('smaller')
