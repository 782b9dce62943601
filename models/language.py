"""Language models: an LSTM and a small transformer."""

import torch
from torch import Tensor, nn

from models.recompute import Recomputing

__all__ = [
    'LSTMLanguageModel',
    'TransformerLanguageModel',
    'lstm_language_model',
    'transformer_language_model',
]

INITIAL_STD = 0.02  # of the transformer's weights, as in GPT-2


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers, one linear layer: tokens [B, T] -> logits [B, T, vocabulary].

    Dropout acts between the layers, not between time steps (Zaremba, Sutskever and Vinyals, 2014).
    Every call begins with a state of zeros.
    """

    def __init__(
        self, vocabulary: int, width: int = 650, layers: int = 2, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.decoder = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embedding(tokens))  # [B, T, width]
        x, _ = self.lstm(x)
        return self.decoder(self.dropout(x))


class TransformerLanguageModel(Recomputing):
    """A decoder with pre-layer normalization: tokens [B, T] -> logits [B, T, vocabulary].

    The architecture of GPT-2 (Radford et al., 2019), with learned positions and without tied
    weights.

    Args:
        vocabulary: Number of tokens.
        width: Size of the embeddings.
        layers: Number of blocks.
        heads: Attention heads per block.
        context: The largest T.
        dropout: Probability.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        context: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                4 * width,
                dropout,
                activation='gelu',
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > len(self.positions):
            raise ValueError(f'{length} tokens, the context is {len(self.positions)}')
        x = self.dropout(self.embedding(tokens) + self.positions[:length])  # [B, T, width]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            x = self.apply_block(block, x, src_mask=mask, is_causal=True)
        return self.decoder(self.norm(x))


def lstm_language_model(vocabulary: int = 10_000) -> LSTMLanguageModel:
    """19.8 M parameters: the medium network of Zaremba, Sutskever and Vinyals (2014)."""
    return LSTMLanguageModel(vocabulary)


def transformer_language_model(vocabulary: int = 10_000) -> TransformerLanguageModel:
    """A transformer with 8.3 M parameters."""
    return TransformerLanguageModel(vocabulary)
