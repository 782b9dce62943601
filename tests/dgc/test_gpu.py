"""What only a GPU shows: kernels, streams, NCCL, a GradScaler, train.py. Run by ``make gpu``."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from dgc_helpers import loss, parameters, values, wrap
from torch import Tensor, nn

import dgc
from dgc.algorithms import ALGORITHMS, Kind
from dgc.planner import BySize
from dgc.reducer import Reducer

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU'),
]
SETTINGS = {
    'power-sgd': {'rank': 2},
    'one-bit-adam': {'freeze_step': 3},
    'hierarchical': {'local_size': 2},
    'chunk': {'chunk': 8},
    'demo': {'topk': 4, 'chunk': 8},
}
TIMED = ('omgs', 'mgwfbp', 'lags')  # are planned from measured times
NAMES = [n for n, row in ALGORITHMS.items() if row.kind is Kind.SYNCHRONOUS and n not in TIMED]
DIGITS = (
    *('train.py', '--configs', 'configs/digits/cnn.py', 'configs/dgc/wm5.py'),
    *('--devices', 'gpu', '--configs.train.num_epochs=8', '--configs.train.batch_size=32'),
)
# A process of its own, as the only rank: NCCL refuses two ranks on one GPU.
NCCL = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dgc
from dgc.engines.torch_distributed import TorchEngine
from dgc.hooks import CompressionHook

def train(network, optimizer):
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.randn(64, 512, device='cuda')).square().mean().backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in network.parameters())

def inner(network):
    return dgc.DGCSGD(network.parameters(), lr=0.01, momentum=0.9)

engine = TorchEngine('cuda')
network = nn.Linear(512, 512).cuda()
parts = dgc.deep_gradient_compression(0.01)
named = network.named_parameters()
train(network, dgc.DistributedOptimizer(inner(network), named, parts, engine))
assert engine.all_gather(torch.arange(3, device='cuda')).tolist() == [[0, 1, 2]]

network = DistributedDataParallel(nn.Linear(512, 512).cuda())
optimizer = inner(network)
CompressionHook(network, optimizer, dgc.deep_gradient_compression(0.01))
train(network, optimizer)
engine.close()
"""


def run(*words: str, **environment: str) -> None:
    """Run this Python in the repository's root; its output is shown if it fails."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def trained(name: str, device: str) -> list[Tensor]:
    """The parameters of one rank of four after four steps of an algorithm."""

    def worker(engine):
        named = [(n, nn.Parameter(p.detach().to(device))) for n, p in parameters()]
        composition = ALGORITHMS[name].composition(0.05, **SETTINGS.get(name, {}))
        optimizer = wrap(named, composition, engine, steps_per_epoch=3)
        for step in range(4):
            optimizer.zero_grad()
            twins = [(n, nn.Parameter(p.detach().cpu())) for n, p in named]
            loss(twins, engine.rank, step).backward()
            pairs = zip(named, twins, strict=True)
            sum((p * twin.grad.to(device)).sum() for (_, p), (_, twin) in pairs).backward()
            optimizer.step()
        return [value.cpu() for value in values(named)]

    return dgc.simulate(4, worker)[0]


@pytest.mark.parametrize('name', NAMES)
def test_a_gpu_computes_what_a_cpu_computes(name):
    for ours, right in zip(trained(name, 'cuda'), trained(name, 'cpu'), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


def fitted(network: nn.Module, loss_of, steps: int, **settings) -> list[float]:
    """Losses of a network under Deep Gradient Compression."""
    parts = dgc.deep_gradient_compression(
        0.05, planner=BySize(sparse_bytes=1 << 20), nonfinite='skip' if settings else 'stop'
    )
    inner = dgc.DGCSGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    optimizer = dgc.DistributedOptimizer(inner, network.named_parameters(), parts, **settings)
    scaler = settings.get('scaler')
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss_of()
        if scaler is None:
            value.backward()
            optimizer.step()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(float(value.detach()))
    return losses


def test_streams_beside_the_backward_pass_change_no_bit(monkeypatch):
    """A reducer works on a stream of its own: the same bits as on the backward pass's."""

    def parameters_after_twenty_steps():
        torch.manual_seed(0)
        network = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)]).cuda()
        draw = torch.Generator('cuda').manual_seed(1)

        def loss_of():
            return network(torch.randn(64, 512, device='cuda', generator=draw)).square().mean()

        fitted(network, loss_of, 20)
        return [each.detach().clone() for each in network.parameters()]

    first, again = parameters_after_twenty_steps(), parameters_after_twenty_steps()
    monkeypatch.setattr(Reducer, '_stream', lambda *_: nullcontext())
    for one, two, three in zip(first, again, parameters_after_twenty_steps(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_half_precision_with_a_gradient_scaler():
    """A scale that is too large overflows and falls, the steps are skipped, and it learns."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    inputs = torch.randn(512, 64, device='cuda')
    labels = inputs[:, :10].argmax(1)

    def loss_of():
        with torch.autocast('cuda', torch.float16):
            return nn.functional.cross_entropy(network(inputs), labels)

    scaler = torch.amp.GradScaler('cuda', init_scale=2.0**40)
    losses = fitted(network, loss_of, 150, scaler=scaler)
    assert scaler.get_scale() < 2.0**40
    assert losses[-1] < 0.5 * losses[0]


def test_a_compiled_model_trains():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 1)).cuda()
    compiled = torch.compile(network)
    inputs = torch.randn(256, 32, device='cuda')
    wanted = inputs.sum(1, keepdim=True)
    losses = fitted(network, lambda: (compiled(inputs) - wanted).square().mean(), 100)
    assert losses[-1] < 0.2 * losses[0]


def test_parameters_of_a_gpu_and_of_a_cpu_train_together():
    network = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64).cuda()])
    inputs = torch.randn(8, 64)
    losses = fitted(network, lambda: network[1](network[0](inputs).cuda()).square().mean(), 20)
    assert losses[-1] < losses[0]


def test_state_moves_between_a_gpu_and_a_cpu():
    def fresh(device: str) -> dgc.DistributedOptimizer:
        named = [(n, nn.Parameter(p.detach().to(device))) for n, p in parameters()]
        return wrap(named, dgc.deep_gradient_compression(0.05), momentum=0.9, steps_per_epoch=3)

    ours = fresh('cuda')
    for parameter in ours.param_groups[0]['params']:
        parameter.grad = torch.randn_like(parameter)
    ours.step()
    state, memory = ours.state_dict(), ours.reducer.state_dict()['memory']
    assert memory['wide.weight']
    for device in ('cpu', 'cuda'):
        other = fresh(device)
        other.load_state_dict(state)
        for key, entry in other.reducer.state_dict()['memory'].items():
            for name, tensor in entry.items():
                assert torch.equal(tensor.cpu(), memory[key][name].cpu())


def test_one_process_with_nccl():
    alone = {'RANK': '0', 'WORLD_SIZE': '1', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1'}
    run('-c', NCCL, **alone, MASTER_ADDR='127.0.0.1', MASTER_PORT='29617')


def test_train_py_under_torchrun(tmp_path):
    launcher = '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '1'
    run(*launcher, *DIGITS, '--runs', str(tmp_path), '--configs.engine.name=torch')


def test_an_interrupted_run_of_four_workers_goes_on_bit_for_bit(tmp_path):
    words = (
        *DIGITS, '--runs', str(tmp_path), '--configs.deterministic=True',
        '--configs.engine.name=simulated', '--configs.engine.size=4',
    )  # fmt: skip
    run(*words, '--name', 'straight')
    run(*words, '--name', 'parts', '--configs.train.num_steps=44')  # 4 of 8 epochs
    run(*words, '--name', 'parts', '--resume', 'auto')
    found = [
        sorted((tmp_path / name / 'checkpoints').glob('e0007.*.pth'))
        for name in ('straight', 'parts')
    ]
    assert len(found[0]) == len(found[1]) == 4
    for pair in zip(*found, strict=True):
        ours, theirs = (torch.load(file, weights_only=True, map_location='cpu') for file in pair)
        for name, tensor in ours['model'].items():
            assert torch.equal(tensor, theirs['model'][name]), name
