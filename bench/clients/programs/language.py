# mypy: ignore-errors
"""In the style of PyTorch's word language model: an LSTM, clipped gradients, no optimizer."""

import torch
import torch.distributed as dist
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +

WORDS, WIDTH, HIDDEN, BATCH, BPTT = 100, 64, 64, 10, 12
LR, CLIP = 20.0, 0.25

Hidden = tuple[Tensor, Tensor]


class RNNModel(nn.Module):
    """An embedding, an LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, HIDDEN)
        self.decoder = nn.Linear(HIDDEN, WORDS)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, words: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """From int64 ``[time, batch]`` to logits ``[time, batch, words]`` and the next state."""
        output, hidden = self.rnn(self.encoder(words), hidden)
        return self.decoder(output), hidden

    def init_hidden(self) -> Hidden:
        """Return zeros."""
        return torch.zeros(1, BATCH, HIDDEN), torch.zeros(1, BATCH, HIDDEN)


def corpus(rank: int) -> Tensor:
    """Return this rank's columns of text, int64 ``[steps * bptt + 1, batch]``."""
    generator = torch.Generator().manual_seed(100 + rank)
    follows = torch.randperm(WORDS, generator=torch.Generator().manual_seed(7))
    words = [torch.randint(WORDS, (BATCH,), generator=generator)]
    for _ in range(STEPS * BPTT):
        others = torch.randint(WORDS, (BATCH,), generator=generator)
        is_other = torch.rand(BATCH, generator=generator) < 0.2
        words.append(torch.where(is_other, others, follows[words[-1]]))
    return torch.stack(words)


def main() -> None:
    """Train."""
    dist.init_process_group('gloo')
    torch.manual_seed(0)
    network = RNNModel()
    model = DistributedDataParallel(network)
    composition = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP)  # +
    model.register_comm_hook(CompressionState(composition), compression_hook)  # +

    text, hidden, losses = corpus(dist.get_rank()), network.init_hidden(), []
    for start in range(0, STEPS * BPTT, BPTT):
        data, targets = text[start : start + BPTT], text[start + 1 : start + BPTT + 1]
        model.zero_grad()
        hidden = (hidden[0].detach(), hidden[1].detach())
        output, hidden = model(data, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-LR)
        losses.append(loss.item())
    save(dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
