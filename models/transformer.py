"""Transformers over tokens: a decoder as GPT-2, and an encoder that predicts hidden tokens as BERT.

One number decides the size: L blocks are 64·L wide, with L heads of 64. The blocks have about
49,152·L³ parameters; the tied embedding adds vocabulary·64·L.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.recompute import Recomputing

__all__ = ['GPT', 'Block', 'MaskedLanguageModel']

HEAD = 64  # width of an attention head, as in GPT-2 and BERT
STD = 0.02  # of initial weights, as in both


class Block(nn.Module):
    """Self-attention, then a perceptron of one hidden layer; each adds to its normalized input.

    Args:
        width: Of the stream, [B, T, width].
        heads: Which divide it.
        causal: Whether a position sees only itself and those before.
        dropout: Probability, on the attention and on what is added.
    """

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout, self.training)
        added = self.contract(F.gelu(self.expand(self.norm2(x))))
        return x + F.dropout(added, self.dropout, self.training)

    def attend(self, x: Tensor) -> Tensor:
        """Attention over the positions of [B, T, width]."""
        batch, length, width = x.shape
        parts = self.attention(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, heads, T, width / heads]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.causal
        )
        return self.mix(mixed.transpose(1, 2).reshape(batch, length, width))


class Transformer(Recomputing):
    """Token and position embeddings, blocks, and a last layer tied to the token embedding.

    Weights are drawn from N(0, 0.02²), those that add to the stream from N(0, 0.02² / 2L), so that
    its variance does not grow with the depth (Radford et al., 2019); biases are zero.

    Args:
        vocabulary: Number of tokens.
        layers: L.
        context: The largest T.
        dropout: Probability.
        width: 64·L, unless given: a multiple of 64.

    Raises:
        ValueError: For no layers, or a width that is no multiple of 64.
    """

    causal = True

    def __init__(
        self,
        vocabulary: int,
        layers: int = 12,
        context: int = 1024,
        dropout: float = 0.0,
        width: int | None = None,
    ) -> None:
        super().__init__()
        width = HEAD * layers if width is None else width
        if layers < 1 or width < HEAD or width % HEAD:
            raise ValueError(
                f'layers = {layers}, width = {width}: there must be a layer, and heads are {HEAD} '
                'wide'
            )
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        blocks = [Block(width, width // HEAD, self.causal, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.apply(initialise)
        for block in blocks:
            for added in (block.mix, block.contract):
                nn.init.normal_(added.weight, std=STD / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] -> logits [B, T, vocabulary]. Raises ValueError where T is too large."""
        length, context = tokens.shape[1], self.positions.num_embeddings
        if length > context:
            raise ValueError(f'{length} tokens, the context is {context}')
        positions = torch.arange(length, device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        for block in self.blocks:
            x = self.apply_block(block, x)
        return F.linear(self.norm(x), self.embedding.weight)


class GPT(Transformer):
    """A decoder: the logits of a position are those of the next token. See ``Transformer``.

    12 layers with 50,257 tokens are GPT-2 small, 124 M parameters.
    """


class MaskedLanguageModel(Transformer):
    """An encoder: every position sees all others, and the logits are those of its own token.

    As BERT (Devlin et al., 2019), but for normalization before the layers instead of after them,
    and without segments and next-sentence prediction. ``vocabulary`` counts the mask token.
    """

    causal = False


def initialise(module: nn.Module) -> None:
    """Draw the weights of a linear layer or an embedding, and set biases to zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
