# mypy: ignore-errors
"""In the style of nanoGPT: a GPT with AdamW, GradScaler, accumulation and clipping."""

import math

import torch
import torch.distributed as dist
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +
from dgc.memory import Residual  # +

VOCAB, BLOCK, LAYERS, HEADS, WIDTH, BATCH = 40, 32, 2, 2, 64, 4
ACCUMULATION, GRAD_CLIP = 2, 1.0
LEARNING_RATE, MIN_LR, LR_WARMUP = 3e-3, 3e-4, 10


class Block(nn.Module):
    """Attention to earlier positions, then a perceptron; both add to their input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, time, width]`` in and out."""
        b, t, c = x.shape
        qkv = self.attn(self.norms[0](x)).view(b, t, 3, HEADS, c // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, time, width / heads]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """A decoder whose embedding is also its output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of int64 ``[batch, time]``."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW, with weight decay of the matrices alone."""
        parameters = list(self.parameters())
        groups = [
            {'params': [p for p in parameters if p.dim() >= 2], 'weight_decay': 0.1},
            {'params': [p for p in parameters if p.dim() < 2], 'weight_decay': 0.0},
        ]
        return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))


def get_lr(step: int) -> float:
    """A linear warm-up, then a cosine."""
    if step < LR_WARMUP:
        return LEARNING_RATE * (step + 1) / LR_WARMUP
    progress = (step - LR_WARMUP) / max(1, STEPS - LR_WARMUP)
    return MIN_LR + (LEARNING_RATE - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress))


def get_batch(text: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and the tokens after them, int64 ``[batch, time]`` each."""
    starts = torch.randint(len(text) - BLOCK - 1, (BATCH,)).tolist()
    x = torch.stack([text[start : start + BLOCK] for start in starts])
    y = torch.stack([text[start + 1 : start + BLOCK + 1] for start in starts])
    return x, y


def synthetic_text() -> Tensor:
    """Return 50,000 tokens, each of which decides the next one in nine of ten cases."""
    generator = torch.Generator().manual_seed(7)
    follows = torch.randperm(VOCAB, generator=generator).tolist()
    others = torch.randint(VOCAB, (50_000,), generator=generator).tolist()
    surprises = (torch.rand(50_000, generator=generator) < 0.1).tolist()
    text = [0]
    for surprise, other in zip(surprises, others, strict=True):
        text.append(other if surprise else follows[text[-1]])
    return torch.tensor(text)


def main() -> None:
    """Train."""
    dist.init_process_group('gloo')
    torch.manual_seed(0)
    raw_model = GPT()
    optimizer = raw_model.optimizer()
    scaler = torch.amp.GradScaler('cpu', init_scale=2.0**24)  # overflows in the first steps
    model = DistributedDataParallel(raw_model)
    parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
    model.register_comm_hook(CompressionState(parts, scaler=scaler), compression_hook)  # +

    text, losses = synthetic_text(), []
    torch.manual_seed(1 + dist.get_rank())
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group['lr'] = get_lr(step)
        total = 0.0
        for micro_step in range(ACCUMULATION):
            model.require_backward_grad_sync = micro_step == ACCUMULATION - 1
            x, y = get_batch(text)
            with torch.autocast('cpu', torch.float16):
                loss = model(x, y) / ACCUMULATION
            total += loss.item()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    save(dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
