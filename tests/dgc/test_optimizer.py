"""DistributedOptimizer: what a training loop may do to it, and what it refuses."""

import time

import pytest
import torch
from dgc_helpers import exact, kept_by, loss, parameters, set_gradients, target, train, values, wrap
from torch import nn
from torch.nn import Parameter

import dgc
from dgc import ops
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.engines import LocalEngine
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import BySize, PerTensor

MAKERS = {
    'dense': dgc.dense,
    'dgc': lambda: dgc.deep_gradient_compression(0.1),
    'residual': lambda: dgc.deep_gradient_compression(0.1, memory=Residual(), compressor=TopK()),
}
every = pytest.mark.parametrize('make', MAKERS.values(), ids=MAKERS)


class TestTraining:
    @every
    def test_one_rank_trains_normally(self, make):
        """hivemind PR#450: with one rank, the gradients came out as zeros."""
        named = parameters()
        goals = [target(p, 0, 0, index) for index, (_, p) in enumerate(named)]
        optimizer = wrap(named, make(), lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            loss(named, 0, 0).backward()
            optimizer.step()
        for (_, parameter), goal in zip(named, goals, strict=True):
            torch.testing.assert_close(parameter.detach(), goal, rtol=0, atol=1e-2)

    def test_error_feedback_engages_at_the_first_step(self):
        """grace#10."""
        for memory in (Residual(), MomentumCorrection()):
            named = parameters()
            optimizer = wrap(named, exact(memory=memory))
            train(optimizer, named, 1)
            sparse, dense = optimizer.reducer.buckets[:2], optimizer.reducer.buckets[2]
            assert all(kept_by(bucket).count_nonzero() > 0.9 * bucket.numel for bucket in sparse)
            assert not kept_by(dense).any()

    def test_momentum_is_applied_once(self):
        """Paddle PR#20758: one rank, uncompressed, equals momentum SGD."""
        ours, torchs = parameters(), parameters()
        train(wrap(ours, dgc.deep_gradient_compression(1.0), momentum=0.9), ours, 8)
        train(torch.optim.SGD([p for _, p in torchs], lr=0.1, momentum=0.9), torchs, 8)
        torch.testing.assert_close(values(ours), values(torchs), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize('ratio', [1.0, 0.05])
    def test_weight_decay_is_each_groups_own(self, ratio):
        """Paddle PR#22888: BatchNorm's decay is 0, others' 1e-4; gradients of zero show decay
        alone."""
        ours, torchs = parameters(), parameters()

        def groups(named):
            return [
                {'params': [p for _, p in named if p.dim() >= 2], 'weight_decay': 1e-2},
                {'params': [p for _, p in named if p.dim() < 2], 'weight_decay': 0.0},
            ]

        inner = dgc.DGCSGD(groups(ours), lr=0.1, momentum=0.9)
        optimizer = dgc.DistributedOptimizer(inner, ours, exact(ratio), LocalEngine())
        reference = torch.optim.SGD(groups(torchs), lr=0.1, momentum=0.9)
        for _ in range(5):
            for named, step in ((ours, optimizer), (torchs, reference)):
                step.zero_grad()
                set_gradients(named, {name: torch.zeros(p.shape) for name, p in named})
                step.step()
        torch.testing.assert_close(values(ours), values(torchs), rtol=1e-6, atol=1e-7)
        before = dict(zip([n for n, _ in ours], values(parameters()), strict=True))
        for name, parameter in ours:
            assert torch.equal(parameter, before[name]) == (parameter.dim() < 2)

    def test_decay_beside_real_gradients_has_its_own_momentum(self):
        """Paddle PR#21278: uncompressed, with decay, it is momentum SGD."""
        ours, torchs = parameters(), parameters()
        settings = {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.05}
        train(wrap(ours, exact(1.0), **settings), ours, 10)
        train(torch.optim.SGD([p for _, p in torchs], **settings), torchs, 10)
        torch.testing.assert_close(values(ours), values(torchs), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize('optimizer', [torch.optim.Adam, torch.optim.RMSprop])
    def test_other_optimizers_apply_the_mean(self, optimizer):
        ours, torchs = parameters(), parameters()
        inner = optimizer([p for _, p in ours], lr=0.01)
        train(dgc.DistributedOptimizer(inner, ours, dgc.dense(), LocalEngine()), ours, 5)
        train(optimizer([p for _, p in torchs], lr=0.01), torchs, 5)
        torch.testing.assert_close(values(ours), values(torchs))


class TestShapesAndTypes:
    @every
    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_models_train_on_a_cpu_with_float32_memories(self, make, dtype):
        """horovod#2108, #4047."""

        def worker(engine):
            named = parameters(dtype=dtype)
            optimizer = wrap(named, make(), engine, momentum=0.5)
            train(optimizer, named, 5, engine.rank)
            buffers = [b for bucket in optimizer.reducer.buckets for b in bucket.buffers.values()]
            assert all(buffer.dtype == torch.float32 for buffer in buffers)
            return values(named)

        first, second = dgc.simulate(2, worker)
        assert all(map(torch.equal, first, second))
        assert all(p.dtype == dtype and p.isfinite().all() for p in first)
        assert not any(map(torch.equal, first, values(parameters(dtype=dtype))))

    def test_half_gradients_are_kept_to_the_last_bit(self):
        """A float16 or bfloat16 memory would lose small parts beside large ones."""
        named = parameters({'w': (8, 8)}, torch.bfloat16)
        optimizer = wrap(named, exact(0.02, memory=Residual()))
        kept = torch.zeros(64)
        for step in range(10):
            gradient = target(named[0][1], 0, step, 0) * 2.0 ** (2 * step)
            optimizer.zero_grad()
            set_gradients(named, {'w': gradient})
            optimizer.step()
            kept += gradient.float().flatten()
            kept[kept.abs().topk(2).indices] = 0
        residual = optimizer.reducer.state_dict()['memory']['w']['residual']
        assert torch.equal(residual.flatten(), kept)
        assert not torch.equal(kept, kept.bfloat16().float())

    def test_types_may_be_mixed_in_one_model(self):
        def worker(engine):
            named = parameters({'a': (8, 8), 'b': (3,)}) + [
                ('half', Parameter(torch.ones(6, 6, dtype=torch.bfloat16))),
                ('half scale', Parameter(torch.tensor(1.0, dtype=torch.bfloat16))),
            ]
            train(wrap(named, exact(), engine), named, 4, engine.rank)
            return values(named)

        first, second = dgc.simulate(2, worker)
        assert all(map(torch.equal, first, second))
        assert [p.dtype for p in first] == [torch.float32] * 2 + [torch.bfloat16] * 2

    @pytest.mark.parametrize('ratio', [1.0, 0.05])
    def test_channels_last_changes_nothing(self, ratio):
        """horovod#3491: gradients that are not contiguous."""

        def run(memory_format):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Conv2d(16, 3, 3))
            model = model.to(memory_format=memory_format)
            named = list(model.named_parameters())
            optimizer = wrap(named, exact(ratio), momentum=0.9)
            for _ in range(4):
                images = torch.randn(2, 4, 8, 8).to(memory_format=memory_format)
                optimizer.zero_grad()
                model(images).square().mean().backward()
                optimizer.step()
            return model

        contiguous, last = run(torch.contiguous_format), run(torch.channels_last)
        assert last[0].weight.is_contiguous(memory_format=torch.channels_last)
        for ours, theirs in zip(last.parameters(), contiguous.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

    def test_parameters_of_every_number_of_dimensions(self):
        """grace#2: 0-dimensional; pytorch#140396: tiny, at small densities."""
        shapes = {
            '0': (),
            '1': (1,),
            '11': (1, 1),
            '33': (3, 3),
            '5': (1, 2, 1, 3, 2),
            '0n': (0, 4),
        }
        for ratio in (0.001, 0.25, 1.0):
            named = parameters(shapes)
            before = values(named)
            train(wrap(named, exact(ratio)), named, 2)
            changed = [not torch.equal(p, b) for (_, p), b in zip(named, before, strict=True)]
            assert changed == [True] * 5 + [False]

    def test_frozen_and_integer_parameters_are_left_alone(self):
        """horovod#1608."""
        named = parameters({'w': (4, 4)}) + [
            ('frozen', Parameter(torch.ones(4, 4), requires_grad=False)),
            ('count', Parameter(torch.tensor([3, 4]), requires_grad=False)),
        ]
        optimizer = wrap(named, exact(), momentum=0.9, weight_decay=0.1)
        optimizer.zero_grad()
        named[0][1].sum().backward()
        optimizer.step()
        assert torch.equal(named[1][1], torch.ones(4, 4))
        assert named[2][1].tolist() == [3, 4]
        assert set(optimizer.reducer.state_dict()['memory']) == {'w'}

    def test_a_sparse_gradient_trains_as_a_dense_one(self):
        def run(sparse):
            torch.manual_seed(0)
            model = nn.Embedding(20, 5, sparse=sparse)
            optimizer = wrap(list(model.named_parameters()), exact(0.1))
            for step in range(3):
                optimizer.zero_grad()
                model(torch.tensor([step, 3, 3])).square().sum().backward()
                optimizer.step()
            return model.weight.detach()

        assert torch.equal(run(True), run(False))


@pytest.mark.parametrize('planner', [BySize(), PerTensor()], ids=['by size', 'per tensor'])
class TestMemoryOfGradients:
    """Whose memory autograd hands over: the mean is written into what is ours alone."""

    def test_two_parameters_may_share_a_gradient(self, planner):
        named = [(name, Parameter(torch.zeros(20, 30))) for name in 'ab']
        optimizer = wrap(named, exact(0.1, planner=planner), lr=1.0)
        a, b = (parameter for _, parameter in named)
        ((a[None] + b[None]) * torch.arange(600.0).view(1, 20, 30)).sum().backward()
        optimizer.step()
        assert a.min() == b.min() == -599
        assert a.count_nonzero() == b.count_nonzero() == 60

    def test_the_backward_pass_may_still_need_one(self, planner):
        """The bucket of ``place`` is on its way while its gradient becomes that of ``weight``."""
        draw = torch.Generator().manual_seed(0)
        shapes = {'weight': (64, 64), 'place': (32, 64), 'head': (64, 64)}
        named = [(name, Parameter(torch.randn(s, generator=draw))) for name, s in shapes.items()]
        weight, place, head = (parameter for _, parameter in named)
        inputs = torch.randn(1, 32, 64, generator=draw)

        def loss():
            hidden = inputs @ weight.t()
            hidden.register_hook(lambda _: time.sleep(0.05))
            return ((hidden + place[None]) @ head.t()).square().sum()

        (true,) = torch.autograd.grad(loss(), [weight])
        optimizer = wrap(named, exact(1.0, planner=planner), lr=1.0)
        before = weight.detach().clone()
        loss().backward()
        optimizer.step()
        torch.testing.assert_close(before - weight.detach(), true, rtol=1e-3, atol=1e-2)

    @pytest.mark.skipif(
        not ops.is_native(torch.device('cpu')), reason='only compiled kernels read pieces'
    )
    def test_those_of_layers_stay_where_autograd_put_them(self, planner):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 8))
        table = nn.Embedding(10, 48)
        first = {}

        def note(weight):
            first[weight] = weight.grad.data_ptr()

        weights = [p for p in [*table.parameters(), *model.parameters()] if p.dim() > 1]
        for weight in weights:
            weight.register_post_accumulate_grad_hook(note)
        named = [*table.named_parameters('table'), *model.named_parameters('model')]
        optimizer = wrap(named, exact(0.1, planner=planner))
        model(table(torch.arange(10)).view(10, 3, 4, 4)).square().sum().backward()
        optimizer.synchronize()
        assert first == {weight: weight.grad.data_ptr() for weight in weights}


class TestMissingGradients:
    @every
    def test_a_branch_chosen_by_the_parity_of_the_rank(self, make):
        """grace#7: one order on all ranks, zeros for what took no part."""
        shapes = {'even': (12, 12), 'odd': (12, 12), 'both': (6,)}

        def worker(engine):
            named = parameters(shapes)
            before = values(named)
            optimizer = wrap(named, make(), engine, lr=1.0)
            for _ in range(20):
                optimizer.zero_grad()
                ours = 'odd' if engine.rank % 2 else 'even'
                set_gradients(named, {ours: torch.ones(12, 12), 'both': torch.ones(6)})
                optimizer.step()
            moved = [b - p for b, p in zip(before, values(named), strict=True)]
            kept = {}
            for bucket in optimizer.reducer.buckets:
                kept |= dict(bucket.views(kept_by(bucket)))
            return moved, kept

        results = dgc.simulate(4, worker)
        for index, (name, shape) in enumerate(shapes.items()):
            moved = results[0][0][index]
            assert all(torch.equal(other[index], moved) for other, _ in results)
            assert moved.any()
            kept = sum(kept[name] for _, kept in results) / 4
            share = 20.0 if name == 'both' else 10.0  # of the mean over four ranks
            torch.testing.assert_close(moved + kept, torch.full(shape, share))

    def test_an_unused_parameter_is_sent_as_zeros(self):
        named = parameters()
        before = dict(zip([n for n, _ in named], values(named), strict=True))
        optimizer = wrap(named, exact())
        for _ in range(3):
            optimizer.zero_grad()
            set_gradients(named, {'wide.weight': torch.ones(64, 20)})
            optimizer.step()
        changed = {name for name, p in named if not torch.equal(p, before[name])}
        assert changed == {'wide.weight'}

    def test_a_step_without_any_backward_pass_changes_nothing(self):
        named = parameters()
        before = values(named)
        optimizer = wrap(named, exact())
        optimizer.step()
        assert all(map(torch.equal, values(named), before))


def test_messages_in_float16_lose_nothing_over_time():
    """A value too small for the message's scale stays until it arrives."""
    named = parameters({'w': (40, 2)})
    before = values(named)[0]
    composition = dgc.deep_gradient_compression(
        0.025, memory=Residual(), compressor=TopK(), codec=Codec('fp16', 'int32')
    )
    optimizer = wrap(named, composition, lr=1.0)
    gradient = torch.full((40, 2), 1e-7)
    gradient[0] = 3000.1
    for step in range(130):
        optimizer.zero_grad()
        set_gradients(named, {'w': gradient * (step == 0)})
        optimizer.step()
    kept = optimizer.reducer.state_dict()['memory']['w']['residual']
    assert not kept.any()
    moved = before - values(named)[0]
    assert moved[0].tolist() == pytest.approx([3000.1] * 2, rel=1e-6)
