"""The state of an LSTM from batch to batch: what is carried, forgotten, saved, and not carried."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.language import CarryingLSTM, LSTMLanguageModel
from utils.carried import carried_by, carry, forget, fresh


@pytest.fixture
def model() -> LSTMLanguageModel:
    torch.manual_seed(0)
    return LSTMLanguageModel(11, width=8, dropout=0.0, carries=True, spread=0.5)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))


def test_two_halves_give_the_logits_of_the_whole_and_of_torchs_lstm(model, tokens):
    plain = LSTMLanguageModel(11, width=8, dropout=0.0)
    plain.load_state_dict(model.state_dict())  # the state that is carried is no part of it
    whole = plain(tokens)
    halves = torch.cat([model(tokens[:, :5]), model(tokens[:, 5:])], 1)
    torch.testing.assert_close(halves, whole)
    assert not torch.allclose(model(tokens), whole)
    forget(model)
    torch.testing.assert_close(model(tokens), whole)


def test_no_gradient_flows_into_the_batch_before(model, tokens):
    """Otherwise the second backward pass would need the graph of the first."""
    for part in tokens.split(4, 1):
        model(part).logsumexp(-1).sum().backward()


def test_what_is_carried_goes_on_in_another_model(model, tokens):
    other = LSTMLanguageModel(11, width=8, dropout=0.0, carries=True)
    other.load_state_dict(model.state_dict())
    model(tokens[:, :5])
    carry(other, carried_by(model))
    assert torch.equal(other(tokens[:, 5:]), model(tokens[:, 5:]))


def test_the_first_rows_go_on_in_an_evaluation_and_all_in_training(model, tokens):
    whole = model(tokens)
    with fresh(model.eval()):
        model(tokens[:, :5])
        torch.testing.assert_close(model(tokens[:2, 5:]), whole[:2, 5:])
        with pytest.raises(ValueError, match='a batch of 3 rows cannot continue one of 2'):
            model(tokens)
    assert carried_by(model) == [[]]
    model.train()(tokens)
    with pytest.raises(ValueError, match='a batch of 2 rows cannot continue one of 3'):
        model(tokens[:2])


def test_a_state_that_is_not_finite_is_not_carried(model, tokens):
    weight = model.embedding.weight.detach().clone()
    with torch.no_grad():
        model.embedding.weight.fill_(float('nan'))
    assert model(tokens).isnan().all()
    with torch.no_grad():
        model.embedding.weight.copy_(weight)
    assert model(tokens).isfinite().all()


def test_a_model_without_state_carries_nothing(tokens):
    model = LSTMLanguageModel(11, width=8)
    model(tokens)
    assert carried_by(model) == []
    carry(model, [])
    assert type(model.lstm) is nn.LSTM


def test_tied_weights_are_one_parameter():
    model = LSTMLanguageModel(11, width=8, tied=True)
    assert model.decoder.weight is model.embedding.weight
    assert len(list(model.parameters())) == 2 + 8  # embedding, bias of the decoder, LSTM


def test_the_state_is_no_buffer(model, tokens):
    """Buffers are averaged and compared over the ranks."""
    model(tokens)
    assert not list(model.buffers()) and isinstance(model.lstm, CarryingLSTM)
