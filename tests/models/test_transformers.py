"""GPT and the masked model: sizes, initial weights, and what a position sees."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from models.losses import TokenLoss
from models.transformer import GPT, MaskedLanguageModel


@pytest.fixture(params=[GPT, MaskedLanguageModel])
def model(request) -> nn.Module:
    torch.manual_seed(0)
    return request.param(11, layers=2, context=8)


def test_gpt_2_has_124_million_parameters():
    with torch.device('meta'):
        model = GPT(50_257, layers=12, context=1024)
    width, blocks = 768, 12 * (12 * 768**2 + 13 * 768)
    expected = (50_257 + 1024) * width + blocks + 2 * width
    assert sum(p.numel() for p in model.parameters()) == expected == 124_439_808


def test_the_blocks_grow_with_the_cube_of_the_layers():
    with torch.device('meta'):
        counts = [sum(p.numel() for p in GPT(1, n, 1).blocks.parameters()) for n in (2, 4, 8)]
    for count, layers in zip(counts, (2, 4, 8), strict=True):
        assert count == pytest.approx(49_152 * layers**3, rel=0.02)


def test_logits_of_each_token_and_a_gradient_for_each_parameter(model):
    logits = model(torch.randint(11, (3, 8)))
    assert logits.shape == (3, 8, 11)
    logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_position_of_a_gpt_sees_what_is_before_it_and_of_the_encoder_everything():
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 3] = 7
    for kind, is_seen in ((GPT, False), (MaskedLanguageModel, True)):
        model = kind(11, layers=2, context=8).eval()
        before, after = model(tokens)[0], model(changed)[0]
        assert torch.allclose(before[:3], after[:3]) != is_seen
        assert not torch.allclose(before[5], after[5])


def test_the_initial_loss_is_near_that_of_a_guess(model):
    loss = TokenLoss()(model(torch.randint(11, (4, 8))), torch.randint(11, (4, 8)))
    assert abs(loss.item() - math.log(11)) < 0.1


def test_what_adds_to_the_stream_starts_smaller_with_depth():
    deep = GPT(11, layers=8, context=8)
    block = deep.blocks[0].requires_grad_(False)
    std = [float(block.mix.weight.std()), float(block.expand.weight.std())]
    assert std == pytest.approx([0.02 / 4, 0.02], rel=0.05)
    assert all((p == 0).all() for name, p in deep.named_parameters() if name.endswith('.bias'))


def test_sizes_that_cannot_be(model):
    with pytest.raises(ValueError, match='9 tokens, the context is 8'):
        model(torch.zeros(1, 9).long())
    with pytest.raises(ValueError, match='heads are 64 wide'):
        GPT(11, layers=2, width=100)
    with pytest.raises(ValueError, match='layers = 0'):
        GPT(11, layers=0, width=64)


def test_the_token_loss_is_the_mean_over_all_positions_that_are_predicted():
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[0, 1, -100], [2, -100, -100]])
    picked = logits.log_softmax(-1)[[0, 0, 1], [0, 1, 0], [0, 1, 2]]
    torch.testing.assert_close(TokenLoss()(logits, targets), -picked.mean())
