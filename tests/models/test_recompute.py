"""Recomputed activations: the same gradients, with less kept for the backward pass."""

from __future__ import annotations

import torch

from models.language import TransformerLanguageModel


def gradients(recomputes: bool) -> tuple[list[torch.Tensor], int]:
    """The gradients of a batch with dropout, and the bytes kept between the two passes."""
    torch.manual_seed(1)
    model = TransformerLanguageModel(11, width=16, layers=3, heads=2, context=8, dropout=0.2)
    if recomputes:
        model.gradient_checkpointing_enable()
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t
    ):
        loss = model(torch.arange(32).view(4, 8) % 11).square().sum()
    bytes_kept = sum(tensor.nbytes for tensor in kept.values())
    loss.backward()
    return [p.grad for p in model.parameters()], bytes_kept


def test_the_gradients_are_the_same_and_less_is_kept():
    plain, much = gradients(False)
    again, little = gradients(True)
    assert all(a.equal(b) for a, b in zip(plain, again, strict=True))
    assert little < much / 2


def test_nothing_is_computed_twice_in_evaluation():
    model = TransformerLanguageModel(11, width=16, layers=1, heads=2, context=8).eval()
    model.gradient_checkpointing_enable()
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.inference_mode():
        model(torch.zeros(1, 8, dtype=torch.long))
    assert calls == [1]
