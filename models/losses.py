"""Loss functions of sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ['CTC', 'TokenLoss', 'frames_needed']


class TokenLoss(nn.CrossEntropyLoss):
    """The mean cross-entropy over all positions: logits [..., classes], classes [...] -> scalar.

    Positions whose class is ``ignore_index``, -100, do not count. The arguments are those of
    torch's CrossEntropyLoss.
    """

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flatten all positions; the logits of half precision are widened."""
        return super().forward(outputs.flatten(0, -2).float(), targets.flatten())


def frames_needed(targets: Tensor) -> Tensor:
    """Frames without which CTC gives a transcript no probability: letters [B, length] -> [B].

    Each letter needs one, and so does the blank between two that are equal. Letters that are 0 are
    padding.
    """
    is_letter = targets != 0
    is_repeated = is_letter[:, 1:] & (targets[:, 1:] == targets[:, :-1])
    return is_letter.sum(1) + is_repeated.sum(1)


class CTC(nn.Module):
    """Connectionist temporal classification (Graves et al., ICML 2006), per letter.

    Logits [B, T, classes] and letters [B, length] -> scalar: the negative log-likelihood of each
    transcript, divided by its length, averaged over the batch. Class 0 is the blank; letters that
    are 0 are padding.
    """

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """All frames count: those behind an utterance must be blank with certainty.

        Raises:
            ValueError: If a transcript needs more frames; the loss would be infinite.
        """
        for sample, needed in enumerate(frames_needed(targets).tolist()):
            if needed > outputs.shape[1]:
                raise ValueError(
                    f'the {outputs.shape[1]} frames that the network outputs are too few for '
                    f'sample {sample} of a batch: its {int((targets[sample] != 0).sum())} letters '
                    f'need {needed}; leave it out, or choose a network of a smaller stride'
                )
        frames = torch.full((len(outputs),), outputs.shape[1], dtype=torch.int64)
        return F.ctc_loss(
            outputs.float().log_softmax(-1).transpose(0, 1),
            targets,
            frames,
            (targets != 0).sum(1),
        )
