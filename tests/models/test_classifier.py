"""The classifier of texts: padding changes nothing, and words do."""

from __future__ import annotations

import pytest
import torch

from models.classifier import LSTMClassifier


@pytest.fixture
def model() -> LSTMClassifier:
    torch.manual_seed(0)
    return LSTMClassifier(11, width=8, hidden=8).eval()


def test_number_of_parameters():
    count = sum(p.numel() for p in LSTMClassifier(10_000).parameters())
    assert count == 640_000 + 4 * 128 * (64 + 128 + 2) + 2 * 128 + 2


def test_padding_changes_nothing(model):
    words = torch.randint(1, 11, (3, 6))
    padded = torch.cat([words, torch.zeros(3, 4, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(padded), model(words))
    assert not torch.allclose(model(words.flip(1)), model(words))


def test_a_text_without_words_is_classified(model):
    logits = model(torch.zeros(2, 4, dtype=torch.int64))
    assert logits.shape == (2, 2) and logits.isfinite().all()


def test_a_gradient_for_each_parameter_but_that_of_padding(model):
    model(torch.tensor([[1, 2, 0], [3, 0, 0]])).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (model.embedding.weight.grad[0] == 0).all() and (model.embedding.weight[0] == 0).all()
