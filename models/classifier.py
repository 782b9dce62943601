"""A classifier of texts."""

import torch
from torch import Tensor, nn

__all__ = ['LSTMClassifier']


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, mean over the words, one linear layer: words [B, T] -> logits [B, classes].

    The word 0 is padding, after the others. It changes nothing: neither the state nor the mean.

    Args:
        vocabulary: Number of words.
        width: Of the embedding.
        hidden: Units of an LSTM layer.
        layers: Number of LSTM layers.
        classes: Number of classes.
        dropout: Probability, on the embedding and on the mean.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 64,
        hidden: int = 128,
        layers: int = 1,
        classes: int = 2,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)
        nn.init.normal_(self.embedding.weight, std=0.1)
        with torch.no_grad():
            self.embedding.weight[0].zero_()

    def forward(self, words: Tensor) -> Tensor:
        is_word = (words != 0).unsqueeze(-1)  # [B, T, 1]
        outputs, _ = self.lstm(self.dropout(self.embedding(words)))  # [B, T, hidden]
        mean = (outputs * is_word).sum(1) / is_word.sum(1).clamp(min=1)
        return self.classifier(self.dropout(mean))
