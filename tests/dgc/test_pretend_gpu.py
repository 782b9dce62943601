"""The paths for GPUs, on one that is not there: no mixed devices, the same numbers, few waits."""

from __future__ import annotations

from collections.abc import Iterator

import dgc_helpers
import pytest
import torch
from dgc_helpers import parameters, train, values, wrap
from pretend_gpu import GPU, Count, counted, is_on_gpu, pretended
from test_properties import EXCHANGES, NUMBERED, TABLE, fits, momenta
from torch import Tensor, nn

import dgc
from bench.breakdown import Echo
from dgc import ops
from dgc.algorithms import ALGORITHMS
from dgc.codec import Codec, CodecError
from dgc.codec.message import HEADER
from dgc.planner import Whole
from dgc.sparse import Sparse


@pytest.fixture
def gpu(monkeypatch) -> Iterator[None]:
    """Parameters of the helpers lie on the pretended GPU."""
    with pretended():
        monkeypatch.setattr(dgc_helpers, 'DEVICE', GPU)
        yield


class TestPretending:
    """It refuses what a GPU refuses."""

    def test_tensors_of_two_devices(self, gpu):
        here, there = torch.ones(3), torch.ones(3, device='cuda')
        for wrong in (
            lambda: here + there,
            lambda: there.add_(here),
            lambda: torch.cat([here, there]),
        ):
            with pytest.raises(RuntimeError, match='two devices'):
                wrong()
        assert ((there * torch.tensor(2.0)).device, here.device) == (GPU, torch.device('cpu'))
        assert (there.cpu() + here).tolist() == [2, 2, 2]

    def test_indices_of_another_device(self, gpu):
        here, there = torch.arange(3), torch.arange(3, device='cuda')
        with pytest.raises(RuntimeError, match='indices should be'):
            here[there]
        assert is_on_gpu(there[here])

    def test_numpy_and_the_kernels_of_the_cpu(self, gpu):
        there = torch.ones(3, device='cuda')
        with pytest.raises(TypeError, match='cuda:0'):
            there.numpy()
        if ops.is_native(torch.device('cpu')):
            with pytest.raises(NotImplementedError, match='CUDA'):
                torch.ops.dgc.finite([there])

    def test_views_and_gradients_are_where_their_tensor_is(self, gpu):
        there = torch.ones(4, device='cuda', requires_grad=True)
        (there[1:].view(3, 1).square().sum() / 2).backward()
        assert there.grad.device == there[2:].device == torch.zeros_like(there).device == GPU
        assert there.grad.tolist() == [0, 1, 1, 1]

    def test_numbers_of_the_cpu_are_not_joined_with_those_of_a_gpu(self, gpu):
        there = torch.ones((), device='cuda')
        with pytest.raises(RuntimeError, match='two devices'):
            torch.stack([there, torch.ones(())])

    def test_waits_are_counted(self, gpu):
        there = torch.ones(4, device='cuda')
        with counted() as count:
            there.add_(1)
            assert not count.waits
            there.sum().item()
            there[there > 1]
            there.cpu()
            torch.tensor([1.0], device='cuda')
        assert count.waits.total() == 4
        assert count.kernels['aten.add_'] == 1

    def test_it_ends(self):
        with pretended():
            there = torch.ones(4, device='cuda')
        assert there.device == torch.device('cpu')
        with pytest.raises((RuntimeError, AssertionError)):
            torch.ones(4, device='cuda:99')


@pytest.mark.parametrize('number', range(len(TABLE)), ids=list(TABLE))
def test_every_composition_trains_as_on_the_cpu(number, monkeypatch):
    """Exchanges among three ranks, or four where three are not served; variants among two."""
    row = NUMBERED[number][1]
    size = next(
        n for n in ((3, 4) if row in EXCHANGES or row in ALGORITHMS else (2, 3, 4)) if fits(row, n)
    )
    momentum, nesterov = momenta(row)[-1]

    def worker(engine: dgc.Engine) -> list[Tensor]:
        named = parameters()
        optimizer = wrap(
            named, TABLE[row].make(), engine, momentum=momentum, nesterov=nesterov,
            weight_decay=0.01, steps_per_epoch=3,
        )  # fmt: skip
        train(optimizer, named, 2, engine.rank)
        return [each.cpu() for each in values(named)]

    right = dgc.simulate(size, worker)
    with pretended(), counted() as count:
        monkeypatch.setattr(dgc_helpers, 'DEVICE', GPU)
        ours = dgc.simulate(size, worker)
    # Each worker's kernels are waited for before another one runs.
    assert count.waits['synchronize'] >= 2 * size
    assert count.kernels.total() > 2 * size * len(dgc_helpers.SHAPES)
    for one, other in zip(ours, right, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_an_error_of_a_kernel_ends_all_simulated_workers(gpu, monkeypatch):
    """It shows where a worker waits for the GPU, between two workers."""

    def worker(engine: dgc.Engine) -> Tensor:
        tensor = torch.ones(3, device='cuda')
        if engine.rank == 1:
            monkeypatch.setattr(torch.cuda, 'synchronize', failing)
        return engine.all_reduce(tensor)

    def failing(_: object = None) -> None:
        raise RuntimeError('CUDA error: device-side assert triggered')

    with pytest.raises(RuntimeError, match='device-side assert'):
        dgc.simulate(3, worker)


def messages(codec: Codec, *which: list[int]) -> list[Tensor]:
    """Messages on the GPU with these indices, written without a look at their order."""
    found = []
    for indices in which:
        right = Sparse(torch.ones(len(indices)), torch.arange(len(indices)), 20)
        raw = codec.encode(right)
        raw[HEADER.size : HEADER.size + 8 * len(indices)] = torch.tensor(indices).view(torch.uint8)
        found.append(raw.to(GPU))
    return found


@pytest.mark.parametrize('wrong', [[3, 2, 5], [2, 2, 5], [-1, 2, 5], [1, 2, 20]], ids=str)
def test_damaged_indices_of_one_of_several_messages_are_found(gpu, wrong):
    codec, right = Codec('fp32', 'int64'), [[0, 7, 19], [1, 2, 3]]
    parts = codec.decode_all(messages(codec, *right))
    assert [part.indices.tolist() for part in parts] == right
    for place in range(3):
        with pytest.raises(CodecError, match='outside the 20 elements'):
            codec.decode_all(messages(codec, *right[:place], wrong, *right[place:]))
    for others in ([[4]], [[4, 5], []]):  # of other lengths
        with pytest.raises(CodecError, match='outside the 20 elements'):
            codec.decode_all(messages(codec, *others, wrong))
    assert len(codec.decode_all(messages(codec, [4], [], [4, 6]))) == 3
    assert codec.decode_all([]) == []


def test_finiteness_of_tensors_of_two_devices(gpu):
    tensors = [torch.ones(3, device='cuda'), torch.ones(3)]
    assert ops.reference.finite(tensors)
    tensors[1][0] = torch.inf
    assert not ops.reference.finite(tensors)


def count_step(layers: int, **parts) -> Count:
    """What the update of a network of so many layers in one bucket costs."""
    model = nn.ParameterList(torch.randn(32, 32).to(GPU) for _ in range(layers))
    inner = dgc.DGCSGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    composition = dgc.deep_gradient_compression(0.02, planner=Whole(), **parts)
    optimizer = dgc.DistributedOptimizer(inner, model.named_parameters(), composition, Echo(4))
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in model:
            parameter.grad = torch.randn(parameter.shape, generator=draw).to(GPU)
        with counted() as count:
            optimizer.step()
    return count


@pytest.mark.parametrize('parts', [{}, {'nonfinite': 'skip'}, {'fp16_values': True}], ids=str)
def test_waits_and_kernels_do_not_grow_with_the_number_of_parameters(gpu, parts):
    few, many = count_step(2, **parts), count_step(60, **parts)
    # A threshold that was missed is searched for again: a few more.
    assert many.waits.total() <= few.waits.total() + 3, (few.waits, many.waits)
    assert many.kernels.total() <= few.kernels.total() + 8, (few.kernels, many.kernels)


def test_an_update_of_one_bucket_waits_a_few_times(gpu):
    count = count_step(60)
    assert count.waits.total() <= 12, count.waits
    assert count.kernels.total() <= 70, count.kernels
