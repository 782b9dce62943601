"""The networks that predict the next token: sizes, shapes, and that they do not look ahead."""

import math

import pytest
import torch
from torch import nn

from models.language import (
    LSTMLanguageModel,
    TransformerLanguageModel,
    lstm_language_model,
    transformer_language_model,
)

# Worked out by hand: embedding, two LSTM layers with two biases a gate, decoder with bias;
# embedding, positions, four blocks of 12·256² and their biases and norms, norm, decoder.
PARAMETERS = {
    lstm_language_model: 6_500_000 + 2 * (8 * 650 * 650 + 8 * 650) + 6_510_000,
    transformer_language_model: 2 * 2_560_000 + 128 * 256 + 4 * (12 * 256**2 + 13 * 256) + 512,
}
SMALL = {
    LSTMLanguageModel: {'width': 8},
    TransformerLanguageModel: {'width': 8, 'heads': 2, 'layers': 2, 'context': 6},
}


@pytest.mark.parametrize(('make', 'count'), PARAMETERS.items())
def test_number_of_parameters(make, count):
    assert sum(p.numel() for p in make().parameters()) == count


@pytest.mark.parametrize(('network', 'sizes'), SMALL.items())
def test_logits_of_each_token_and_a_gradient_for_each_parameter(network, sizes):
    model = network(11, **sizes)
    logits = model(torch.randint(11, (3, 6)))
    assert logits.shape == (3, 6, 11)
    logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(('network', 'sizes'), SMALL.items())
def test_a_token_changes_no_logits_before_it(network, sizes):
    model = network(11, **sizes).eval()
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 3] = 7
    before, after = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(before[:3], after[:3])
    assert not torch.allclose(before[3], after[3])
    assert not torch.allclose(before[5], after[5])  # but all after it


@pytest.mark.parametrize(('network', 'sizes'), SMALL.items())
def test_initial_loss_is_near_that_of_a_guess(network, sizes):
    torch.manual_seed(0)
    logits = network(11, **sizes)(torch.randint(11, (4, 6)))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(11, (24,)))
    assert abs(loss.item() - math.log(11)) < 0.1


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match='7 tokens, the context is 6'):
        TransformerLanguageModel(11, **SMALL[TransformerLanguageModel])(torch.zeros(1, 7).long())
