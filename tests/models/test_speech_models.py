"""The network that hears letters: sizes, padding, directions, and its loss."""

from __future__ import annotations

import pytest
import torch

from models.losses import CTC, frames_needed
from models.speech import STRIDE, DeepSpeech, Lookahead

SMALL = {'bins': 41, 'channels': 2, 'hidden': 6, 'layers': 2}


def sounds(*frames: int, bins: int = 41) -> torch.Tensor:
    """A batch of noise, padded to the longest."""
    batch = torch.zeros(len(frames), bins + 1, max(frames))
    for row, length in zip(batch, frames, strict=True):
        row[:-1, :length] = torch.randn(bins, length)
        row[-1, :length] = 1
    return batch


@pytest.fixture(params=[True, False], ids=['both directions', 'lookahead'])
def model(request) -> DeepSpeech:
    torch.manual_seed(0)
    return DeepSpeech(5, **SMALL, bidirectional=request.param, context=4)


@pytest.mark.parametrize('frames', [1, 2, 9, 20])
def test_logits_for_one_frame_of_each_stride(model, frames):
    assert model.eval()(sounds(frames)).shape == (1, -(-frames // STRIDE), 5)


def test_the_frequencies_of_16_khz_fit(model):
    assert DeepSpeech(5, 161, 2, 6, 1)(sounds(10, 7, bins=161)).shape == (2, 5, 5)


def test_fewer_frequencies_than_the_first_kernel_spans_are_refused():
    with pytest.raises(ValueError, match='bins must be at least 41, got 40'):
        DeepSpeech(5, bins=40)


def test_padding_changes_nothing_and_is_blank(model):
    batch = sounds(8, 20)
    logits = model.eval()(batch)
    torch.testing.assert_close(model(batch[:1, :, :8])[0], logits[0, :4])
    probabilities = logits[0, 4:].softmax(-1)
    assert (probabilities[:, 0] == 1).all() and logits.isfinite().all()


def test_a_gradient_for_each_parameter(model):
    CTC()(model(sounds(18, 30)), torch.tensor([[1, 2, 2], [4, 0, 0]])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_only_the_lookahead_sees_what_follows_and_no_further():
    look = Lookahead(3, 4)
    x = torch.randn(1, 10, 3)
    later = x.clone()
    later[0, 7] += 1
    changed = ((look(x) - look(later)).abs() > 1e-6).any(-1)[0]
    assert changed.tolist() == [False] * 4 + [True] * 4 + [False] * 2


def test_the_loss_is_torchs_with_lengths():
    """Frames behind the end, blank with certainty, leave the likelihood as it is."""
    torch.manual_seed(0)
    logits = torch.randn(2, 9, 5)
    logits[0, 6:] = torch.tensor([0.0, *[-1e4] * 4])
    targets = torch.tensor([[1, 1, 0, 0], [2, 3, 4, 1]])
    expected = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), targets, torch.tensor([6, 9]), torch.tensor([2, 4])
    )
    torch.testing.assert_close(CTC()(logits, targets), expected)


@pytest.mark.parametrize(
    ('letters', 'needed'), [([1], 1), ([1, 2, 1], 3), ([1, 1, 1], 5), ([2, 1, 1, 2], 5)]
)
def test_the_loss_is_finite_with_the_frames_that_a_transcript_needs_and_no_fewer(letters, needed):
    targets = torch.tensor([[3, 0, 0, 0, 0], [*letters, *[0] * (5 - len(letters))]])
    assert frames_needed(targets).tolist() == [1, needed]
    logits = torch.randn(2, needed, 5)
    assert CTC()(logits, targets).isfinite()
    if needed > 1:
        text = f'the {needed - 1} frames .* sample 1 .* its {len(letters)} letters need {needed};'
        with pytest.raises(ValueError, match=text):
            CTC()(logits[:, 1:], targets)
