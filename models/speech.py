"""A network that hears letters, like Deep Speech 2 (Amodei et al., ICML 2016)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

__all__ = ['STRIDE', 'DeepSpeech', 'Lookahead']

BANDS = 41  # height of the first kernel
STRIDE = 2  # frames of the spectrogram that become one of the output
CERTAIN = 1e4  # logits of frames after the end: this much more for the blank than for letters


class Lookahead(nn.Module):
    """A weighted sum of each feature over this frame and those that follow: [B, T, F] -> the same.

    It gives a network that hears in one direction a short view ahead (section 3.7 of the paper).

    Args:
        features: F.
        context: Number of frames, this one among them.
    """

    def __init__(self, features: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.conv = nn.Conv1d(features, features, context, groups=features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), (0, self.context - 1))).transpose(1, 2)


class DeepSpeech(nn.Module):
    """Two convolutions, LSTM layers, one linear layer: spectrograms -> logits, for CTC.

    The input [B, bins + 1, T] has a last row that is 1 within an utterance and 0 behind its end.
    The output is [B, ceil(T / STRIDE), classes]; class 0 is the blank. What is behind the end
    changes nothing (but the statistics of BatchNorm after the convolutions, in training), and
    frames there are blank with certainty, so that a loss or a decoder needs no lengths.

    Args:
        classes: Letters and the blank.
        bins: Frequencies of the spectrogram, at least those that the first kernel spans.
        channels: Of the convolutions.
        hidden: Units of an LSTM layer, in each direction.
        layers: Number of LSTM layers.
        bidirectional: Whether layers hear in both directions, whose outputs are added; otherwise
            a ``Lookahead`` follows them.
        context: Frames of the lookahead.

    Raises:
        ValueError: For fewer ``bins``: with 20 to 22, the backward pass of the first convolution
            ends with a segmentation fault in oneDNN 3.12 on a CPU with AVX-512.
    """

    def __init__(
        self,
        classes: int,
        bins: int = 161,
        channels: int = 32,
        hidden: int = 800,
        layers: int = 5,
        bidirectional: bool = True,
        context: int = 20,
    ) -> None:
        super().__init__()
        if bins < BANDS:
            raise ValueError(f'bins must be at least {BANDS}, got {bins}')
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(1, channels, (BANDS, 11), (2, STRIDE), (20, 5), bias=False),
                nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5), bias=False),
            ]
        )
        self.conv_norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in self.convs])
        self.hidden = hidden
        bands = ((bins + 1) // 2 + 1) // 2
        sizes = [channels * bands] + [hidden] * layers
        self.norms = nn.ModuleList([nn.BatchNorm1d(size) for size in sizes[1:]])
        self.lstms = nn.ModuleList(
            [nn.LSTM(size, hidden, bidirectional=bidirectional) for size in sizes[:-1]]
        )
        self.lookahead = None if bidirectional else Lookahead(hidden, context)
        self.decoder = nn.Linear(hidden, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, -1].sum(1).long() + STRIDE - 1) // STRIDE  # [B], of the output
        features = x[:, None, :-1]
        for conv, norm in zip(self.convs, self.conv_norms, strict=True):
            features = F.hardtanh(norm(conv(features)), 0, 20)  # [B, C, bands, T']
            is_sound = torch.arange(features.shape[-1], device=x.device) < lengths[:, None]
            features = features * is_sound[:, None, None]
        total = features.shape[-1]
        packed = pack_padded_sequence(
            features.flatten(1, 2).permute(2, 0, 1), lengths.cpu(), enforce_sorted=False
        )
        for lstm, norm in zip(self.lstms, self.norms, strict=True):
            packed = self._normalized(norm, self._both(lstm(packed)[0]))
        hidden, _ = pad_packed_sequence(packed, batch_first=True, total_length=total)
        if self.lookahead is not None:
            hidden = F.hardtanh(self.lookahead(hidden), 0, 20)
        logits = self.decoder(hidden)
        is_letter = torch.arange(logits.shape[-1], device=x.device) > 0
        return torch.where(is_sound[..., None], logits, -CERTAIN * is_letter.to(logits.dtype))

    def _both(self, packed: PackedSequence) -> PackedSequence:
        """Add the outputs of both directions, where there are two."""
        data = packed.data.unflatten(-1, (-1, self.hidden)).sum(-2)
        return packed._replace(data=data)

    @staticmethod
    def _normalized(norm: nn.Module, packed: PackedSequence) -> PackedSequence:
        """Normalize each feature over the frames of all utterances, without those behind ends."""
        return packed._replace(data=norm(packed.data))
