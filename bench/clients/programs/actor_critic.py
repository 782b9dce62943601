# mypy: ignore-errors
"""An actor and a critic, each with an optimizer of its own."""

import torch
import torch.distributed as dist
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dgc  # +
from dgc.memory import Residual  # +

STATES, ACTIONS, EPISODES, LENGTH, DISCOUNT = 8, 4, 16, 10, 0.9


def network(outputs: int) -> nn.Module:
    """From ``[episodes, states]`` to ``[episodes, outputs]``."""
    return nn.Sequential(nn.Linear(STATES, 64), nn.Tanh(), nn.Linear(64, outputs))


def rewards(states: Tensor, actions: Tensor) -> Tensor:
    """Return 1 where the action is the number of the largest of the first entries of the state."""
    return (states[:, :ACTIONS].argmax(1) == actions).float()


def returns(received: Tensor) -> Tensor:
    """Return the discounted sums of later rewards, ``[length, episodes]`` in and out."""
    sums = torch.zeros_like(received)
    total = torch.zeros(received.shape[1])
    for time in reversed(range(len(received))):
        total = received[time] + DISCOUNT * total
        sums[time] = total
    return sums


def main() -> None:
    """Train."""
    dist.init_process_group('gloo')
    torch.manual_seed(0)
    actor, critic = network(ACTIONS), network(1)
    actor, critic = DistributedDataParallel(actor), DistributedDataParallel(critic)  # -
    actor_adam = torch.optim.Adam(actor.parameters(), lr=3e-3)
    critic_adam = torch.optim.Adam(critic.parameters(), lr=3e-3)
    parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
    actor_adam = dgc.DistributedOptimizer(actor_adam, actor.named_parameters(), parts)  # +
    critic_adam = dgc.DistributedOptimizer(critic_adam, critic.named_parameters(), parts)  # +

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        states = torch.randn(LENGTH, EPISODES, STATES)
        with torch.no_grad():
            choice = torch.distributions.Categorical(logits=actor(states.flatten(0, 1)))
            actions = choice.sample()
        received = rewards(states.flatten(0, 1), actions).view(LENGTH, EPISODES)
        goal = returns(received).flatten()

        logits = actor(states.flatten(0, 1))
        values = critic(states.flatten(0, 1)).squeeze(1)
        advantages = (goal - values).detach()
        chosen = torch.distributions.Categorical(logits=logits).log_prob(actions)
        actor_loss, critic_loss = -(chosen * advantages).mean(), F.smooth_l1_loss(values, goal)
        actor_adam.zero_grad()
        critic_adam.zero_grad()
        (actor_loss + critic_loss).backward()
        actor_adam.step()
        critic_adam.step()
        losses.append(critic_loss.item())
    save(dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
