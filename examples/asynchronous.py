"""Asynchronous training: rank 0 is the parameter server, the others train at their own pace.

    torchrun --nproc-per-node 3 examples/asynchronous.py

Both directions are sparse: 5 % of a worker's update goes up, and 5 % of what changed comes down.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from dgc.parameter_server import Address, Budget, Server, WorkerOptimizer, dual_way
from dgc.parameter_server.sockets import Service, SocketLink

HOST = '127.0.0.1'
COMPOSITION = dual_way(0.05)


def digits() -> tuple[Tensor, Tensor]:
    """Return float32 ``[1797, 64]`` from 0 to 1, and int64 ``[1797]`` from 0 to 9."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def share_port(port: int = 0) -> int:
    """Return rank 0's port on all ranks."""
    shared = torch.tensor([port])
    dist.broadcast(shared, src=0)
    return int(shared)


def serve(model: nn.Module, settings: torch.optim.Optimizer, updates: int) -> None:
    """Hold the model until ``updates`` updates of all workers together have been made."""
    budget = Budget(dist.get_world_size() - 1, steps_per_epoch=updates, updates=updates)
    server = Server(settings, model.named_parameters(), model.buffers(), COMPOSITION, budget)
    with Service(server, Address(HOST, 0)) as service:
        share_port(service.address.port)
        service.run()


def train(model: nn.Module, settings: torch.optim.Optimizer) -> None:
    """Push updates and apply the server's answers until the server has enough."""
    link = SocketLink(Address(HOST, share_port()))
    optimizer = WorkerOptimizer(
        settings, model.named_parameters(), model.buffers(), COMPOSITION, link
    )
    inputs, targets = digits()
    while not optimizer.finished:
        batch = torch.randint(len(inputs), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    optimizer.close()


@torch.no_grad()
def evaluate(model: nn.Module) -> str:
    """Return the loss and the accuracy of the model as text."""
    inputs, targets = digits()
    outputs = model(inputs)
    accuracy = (outputs.argmax(1) == targets).float().mean()
    return f'loss {F.cross_entropy(outputs, targets):.3f}, accuracy {accuracy:.1%}'


def main() -> nn.Module:
    """Train, and return the model: on rank 0 the server's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--updates', type=int, default=1000, help='of all workers together')
    arguments = parser.parse_args()

    dist.init_process_group('gloo')  # to share the port of the server
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    settings = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)  # of one update
    if dist.get_rank() == 0:
        print(f'before: {evaluate(model)}')
        serve(model, settings, arguments.updates)
        print(f'after {arguments.updates} updates: {evaluate(model)}')
    else:
        train(model, settings)
    dist.destroy_process_group()
    return model


if __name__ == '__main__':
    main()
