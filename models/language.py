"""Language models: LSTMs, whose state may go on from batch to batch, and a small transformer."""

from typing import Any

import torch
from torch import Tensor, nn

from models.recompute import Recomputing

__all__ = [
    'CarryingLSTM',
    'LSTMLanguageModel',
    'TransformerLanguageModel',
    'lstm_language_model',
    'transformer_language_model',
]

INITIAL_STD = 0.02  # of the transformer's weights, as in GPT-2


class CarryingLSTM(nn.LSTM):
    """An LSTM whose every batch begins with the state in which the one before ended.

    Row i of a batch continues row i of the one before; gradients do not flow back into it. While
    training, all batches have as many rows. In evaluation a batch may have fewer than the one
    before, and its rows continue the first of them. A state that is not finite is not carried on
    (zeros are), so that a step that is skipped for it leaves no trace. See ``utils/carried.py``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: list[Tensor] = []

    def forget(self) -> None:
        """Begin the next batch with zeros."""
        self._state = []

    def carried(self) -> list[Tensor]:
        """Hidden and cell state, each [layers, rows, width]; empty at the beginning."""
        return list(self._state)

    def carry(self, tensors: list[Tensor]) -> None:
        """Begin the next batch with the state that ``carried`` returned."""
        device = next(self.parameters()).device
        self._state = [tensor.to(device) for tensor in tensors]

    def forward(self, inputs: Tensor, state: Any = None) -> Any:  # type: ignore[override]
        """As torch's LSTM with ``batch_first``. Raises ValueError for another number of rows."""
        if state is None and self._state:
            state = self._first(len(inputs))
        outputs, state = super().forward(inputs, state)
        self._state = [part.detach().nan_to_num(0, 0, 0) for part in state]
        return outputs, state

    def _first(self, rows: int) -> tuple[Tensor, ...]:
        """The state of the first rows."""
        known = self._state[0].shape[1]
        if rows > known or (self.training and rows != known):
            raise ValueError(
                f'a batch of {rows} rows cannot continue one of {known}: forget the state first'
            )
        return tuple(part[:, :rows].contiguous() for part in self._state)


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers, one linear layer: tokens [B, T] -> logits [B, T, vocabulary].

    Dropout acts between the layers, not between time steps (Zaremba, Sutskever and Vinyals, 2014).

    Args:
        vocabulary: Number of tokens.
        width: Of the embeddings and of each layer.
        layers: Number of LSTM layers.
        dropout: Probability.
        carries: Whether a batch begins with the state in which the one before ended, for truncated
            back-propagation; otherwise every call begins with zeros.
        tied: Whether the embedding is also the weight of the last layer (Press and Wolf, 2017).
        spread: Initial weights are uniform between -spread and spread.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 650,
        layers: int = 2,
        dropout: float = 0.5,
        carries: bool = False,
        tied: bool = False,
        spread: float = 0.05,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        kind = CarryingLSTM if carries else nn.LSTM
        self.lstm = kind(width, width, layers, batch_first=True, dropout=between)
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -spread, spread)

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
