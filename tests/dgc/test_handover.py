"""Steps that apply sparse means without dense gradients: the same bits, and ``.grad`` when read."""

import functools
import itertools
import types

import pytest
import torch
from dgc_helpers import exact, loss, parameters, set_gradients, values, wrap
from state_helpers import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dgc
from dgc import ops
from dgc.mean import LazyGradient, SparseMean
from dgc.memory import Residual
from dgc.ops import native, reference
from dgc.ops.contract import Step, Target
from dgc.optim.targets import is_exact
from dgc.sparse import Sparse

CPU = torch.device('cpu')
pytestmark = pytest.mark.skipif(not ops.is_native(CPU), reason='the kernels are not compiled')

SHAPES = {'wide.weight': (64, 20), 'narrow.weight': (16, 10), 'bias': (10,), 'scale': (),
          'square.weight': (40, 41)}  # fmt: skip
MATRICES = [name for name in SHAPES if name.endswith('.weight')]
MOMENTA = [(0.0, False), (0.9, False), (0.9, True)]
NESTEROV = {'plain': None, 'momentum': False, 'nesterov': True}  # of the rules of an update
STEPS = [step for step in Step if step is not Step.NONE]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def message(numel: int, count: int, seed: int) -> Sparse:
    draw = torch.Generator().manual_seed(seed)
    indices = torch.randperm(numel, generator=draw)[:count].sort().values
    return Sparse(torch.randn(len(indices), generator=draw), indices, numel)


class TestKernel:
    @pytest.mark.parametrize('step', STEPS)
    @pytest.mark.parametrize('threads', [1, 2])
    @pytest.mark.parametrize('sizes', [[1], [511, 0, 514], [40_000, 3, 100_003]])
    def test_it_is_the_reference_bit_for_bit(self, step, threads, sizes):
        assert is_exact(step), 'torch rounds otherwise on this processor'
        numel, before = sum(sizes), torch.get_num_threads()
        parts = [message(numel, count, seed) for seed, count in enumerate([numel // 50, 0, 9, 1])]
        results = []
        torch.set_num_threads(threads)
        try:
            for kernels in (native, reference):
                targets = [
                    Target(
                        random(size, 1, seed=size),
                        step if number % 2 == 0 else Step.NONE,
                        random(size, 1, seed=size + 1)
                        if step.has_buffer and not number % 2
                        else None,
                        step.example,
                    )
                    for number, size in enumerate(sizes)
                ]
                kernels.apply(targets, parts, 0.3)
                results.append([t for each in targets for t in each[:3] if t is not None])
        finally:
            torch.set_num_threads(before)
        for fused, plain in zip(*results, strict=True):
            assert fused is plain or torch.equal(torch.as_tensor(fused), torch.as_tensor(plain))

    @pytest.mark.parametrize('step', STEPS)
    def test_a_dense_gradient_is_applied_alike(self, step):
        results = []
        for kernels in (native, reference):
            buffer = random(5000, seed=1) if step.has_buffer else None
            targets = [
                Target(random(5000), step, buffer, step.example),
                Target(random(7), Step.NONE),
            ]
            kernels.apply(targets, [], gradient=random(5007, seed=2))
            results.append(
                torch.stack([targets[0].parameter, random(5000) if buffer is None else buffer])
            )
        assert torch.equal(*results)

    @pytest.mark.parametrize(
        ('target', 'part', 'complaint'),
        [
            (Target(torch.zeros(3), Step.MOMENTUM), message(3, 1, 0), 'buffer .* is missing'),
            (Target(torch.zeros(3).double(), Step.SCALED), message(3, 1, 0), 'float32'),
            (Target(torch.zeros(3), Step.DECAYED, torch.zeros(4)), message(3, 1, 0), 'size'),
            (Target(torch.zeros(3), Step.SCALED), message(5, 5, 0), 'outside'),
            (
                Target(torch.zeros(3), Step.SCALED),
                Sparse(torch.ones(2), torch.tensor([2, 1]), 3),
                'ascend',
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, target, part, complaint):
        with pytest.raises(RuntimeError, match=complaint):
            native.apply([target], [part], 1.0)

    def test_a_negative_zero_and_an_infinity_arrive_as_in_a_dense_gradient(self):
        special = torch.tensor([-0.0, 0.0, torch.inf, -torch.inf])
        part = Sparse(torch.tensor([-0.0, 0.0]), torch.tensor([0, 2]), 4)
        for step in STEPS:
            results = []
            for kernels in (native, reference):
                buffer = -special if step.has_buffer else None
                target = Target(special.clone(), step, buffer, step.example)
                kernels.apply([target], [part], 1.0)
                results.append(target.parameter.view(torch.int32))
            assert torch.equal(*results), step


def trained(engine, make, momentum, nesterov, decay, synchronizes, steps=6, **changes):
    """Parameters, gradients, state, and which parameters had a lazy gradient, after each step."""
    named, taken = parameters(SHAPES), []
    optimizer = wrap(
        named, make(), engine, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )
    for group in optimizer.param_groups:
        group.update(changes)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        loss(named, engine.rank, step).backward()
        if synchronizes:
            optimizer.synchronize()
        optimizer.step()
        taken.append([name for name, p in named if type(p.grad) is LazyGradient])
        seen.append((values(named), [p.grad.clone() for _, p in named]))
    return seen, optimizer.state_dict(), taken


MAKES = {
    'dgc': lambda: dgc.deep_gradient_compression(0.02),
    'exact': exact,
    'residual': lambda: dgc.deep_gradient_compression(0.02, memory=Residual()),
    'residual, skip': lambda: dgc.deep_gradient_compression(
        0.02, memory=Residual(), nonfinite='skip'
    ),
    'gtopk': lambda: dgc.ALGORITHMS['gtopk'].make(0.02),
    'dgc, int8': lambda: dgc.deep_gradient_compression(0.02, indices='packed', values='int8'),
}


@pytest.mark.parametrize(('momentum', 'nesterov'), MOMENTA)
@pytest.mark.parametrize('decay', [0.0, 0.01])
@pytest.mark.parametrize('make', MAKES.values(), ids=MAKES)
def test_parameters_state_and_gradients_are_those_of_a_dense_step(make, decay, momentum, nesterov):
    def worker(engine):
        return [
            trained(engine, make, momentum, nesterov, decay, synchronizes)
            for synchronizes in (False, True)
        ]

    for sparse, dense in dgc.simulate(3, worker):
        assert_same(sparse[0], dense[0])
        assert_same(sparse[1], dense[1])
        assert all(sorted(taken) == sorted(MATRICES) for taken in sparse[2][1:])
        assert not any(dense[2])


@pytest.mark.parametrize(
    'changes',
    [{'maximize': True}, {'foreach': True}, {'lr': torch.tensor(0.1)}, {'dampening': 0.5}],
)
def test_settings_that_the_kernel_does_not_cover_take_the_dense_step(changes):
    def worker(engine):
        return [
            trained(engine, MAKES['residual'], 0.9, False, 0.01, synchronizes, **changes)
            for synchronizes in (False, True)
        ]

    for sparse, dense in dgc.simulate(2, worker):
        assert_same(sparse[0], dense[0])
        assert any(sparse[2]) == ('dampening' in changes)


class Other(torch.optim.SGD):
    """A subclass, which may do anything."""


@pytest.mark.parametrize('kind', [Other, torch.optim.AdamW, torch.optim.SGD])
def test_another_optimizer_or_a_replaced_step_finds_dense_gradients(kind):
    named = parameters()
    inner, seen = kind([p for _, p in named], lr=0.1), []
    step = inner.step
    inner.step = lambda *args: (seen.extend(type(p.grad) for _, p in named), step(*args))[1]
    optimizer = dgc.DistributedOptimizer(
        inner, named, MAKES['residual'](), dgc.engines.LocalEngine()
    )
    loss(named, 0, 0).backward()
    optimizer.step()
    assert seen == [torch.Tensor] * len(named)


@pytest.mark.parametrize('place', ['instance', 'around', 'class'])
def test_a_step_replaced_below_a_scheduler_finds_dense_gradients(monkeypatch, place):
    named = parameters()
    inner, seen = torch.optim.SGD([p for _, p in named], lr=0.1), []
    own = torch.optim.SGD.step

    def step(self, closure=None):
        seen.extend(type(p.grad) for _, p in named)
        return own(self, closure)

    if place == 'around':
        inner.step = functools.wraps(inner.step)(functools.partial(step, inner))
    elif place == 'instance':
        inner.step = types.MethodType(step, inner)
        torch.optim.lr_scheduler.ConstantLR(inner)  # wraps the step that it finds
    else:
        monkeypatch.setattr(torch.optim.SGD, 'step', step)
    optimizer = dgc.DistributedOptimizer(
        inner, named, MAKES['residual'](), dgc.engines.LocalEngine()
    )
    loss(named, 0, 0).backward()
    optimizer.step()
    assert seen == [torch.Tensor] * len(named)


def test_a_scheduler_of_the_wrapped_optimizer_does_not_matter():
    named = parameters()
    optimizer = wrap(named, exact())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer.optimizer)
    loss(named, 0, 0).backward()
    optimizer.step()
    scheduler.step()
    assert type(dict(named)['wide.weight'].grad) is LazyGradient


@pytest.mark.parametrize('when', ['before', 'after', 'before all'])
def test_a_hook_finds_dense_gradients(when):
    named, seen = parameters(), []
    optimizer = wrap(named, exact())

    def hook(*_):
        seen.extend(type(p.grad) for _, p in named)

    register = {
        'before': optimizer.optimizer.register_step_pre_hook,
        'after': optimizer.optimizer.register_step_post_hook,
        'before all': register_optimizer_step_pre_hook,
    }[when]
    handle = register(hook)
    loss(named, 0, 0).backward()
    optimizer.step()
    handle.remove()
    assert seen and set(seen) == {torch.Tensor}  # the wrapper's steps call some hooks too


class Clipping(dgc.DistributedOptimizer):
    """A wrapper that changes the means in its own ``synchronize``."""

    def synchronize(self):
        usable = super().synchronize()
        torch.nn.utils.clip_grad_norm_(self._parameters, 0.1)
        return usable


def test_a_step_calls_the_synchronize_of_a_subclass():
    named = parameters({'w': (30, 30)})
    before = values(named)[0]
    inner = torch.optim.SGD([named[0][1]], lr=1.0)
    optimizer = Clipping(inner, named, exact(memory=Residual()), dgc.engines.LocalEngine())
    loss(named, 0, 0).backward()
    optimizer.step()
    assert 0.09 < (named[0][1].detach() - before).norm() < 0.11


@pytest.mark.parametrize('decay', [0.0, 0.01])
def test_autograd_refuses_a_graph_that_needs_the_parameters_before_a_step(decay):
    named = parameters({'w': (30, 30)})
    optimizer = wrap(named, exact(), momentum=0.9, weight_decay=decay)
    (_, parameter), other = named[0], named[0][1].pow(3).sum()
    loss(named, 0, 0).backward()
    optimizer.step()
    with optimizer.no_sync(), pytest.raises(RuntimeError, match='modified by an inplace operation'):
        other.backward()
    assert type(parameter.grad) is LazyGradient


@pytest.mark.parametrize('planner', [dgc.planner.Whole(), dgc.planner.PerTensor()])
def test_parameters_that_share_memory_are_updated_in_the_order_of_the_optimizer(planner):
    def worker(engine, synchronizes):
        named = parameters({'a.weight': (30, 30), 'b.weight': (30, 10)})
        (_, a), (_, b) = named
        optimizer = wrap(named, exact(memory=Residual(), planner=planner), engine)
        b.data = a.data[:10].view(30, 10)
        for step in range(2):
            optimizer.zero_grad()
            loss(named, 0, step).backward()
            if synchronizes:
                optimizer.synchronize()
            optimizer.step()
        assert type(a.grad) is not LazyGradient
        return values(named)

    engine = dgc.engines.LocalEngine
    assert_same(worker(engine(), False), worker(engine(), True))


def test_an_error_in_the_step_leaves_dense_gradients_for_another_one():
    named = parameters({'a.weight': (30, 30), 'b.weight': (30, 10)})
    (_, a), (_, b) = named
    optimizer = wrap(named, exact(memory=Residual()), momentum=0.9)
    loss(named, 0, 0).backward()
    optimizer.step()
    kept, misfit = optimizer.optimizer.state[b]['momentum_buffer'], torch.zeros(3).double()
    optimizer.zero_grad()
    loss(named, 0, 1).backward()
    optimizer.optimizer.state[b]['momentum_buffer'] = misfit
    with pytest.raises(RuntimeError, match='size of tensor'):
        optimizer.step()
    assert a.grad is not None and 0 < a.grad.count_nonzero() < a.numel() // 10
    optimizer.optimizer.state[b]['momentum_buffer'] = kept
    optimizer.step()


def test_storage_of_a_step_that_copied_gradients_is_released():
    named = parameters({'w': (30, 30)})
    optimizer = wrap(named, exact())
    (bucket,) = optimizer.reducer.buckets
    held = []
    for step in range(2):
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss(named, 0, step).backward()
        held += [named[0][1].grad.detach()] * (step == 0)  # which cannot be borrowed then
        loss(named, 0, step).backward()
        optimizer.step()
        assert (bucket._own is None) == (step == 1)


class TestGradient:
    """What a program finds in ``.grad`` after such a step."""

    @pytest.fixture
    def stepped(self):
        named = parameters({'w': (30, 30)})
        optimizer = wrap(named, exact(0.01), lr=0.0)
        set_gradients(named, {'w': random(30, 30)})
        optimizer.step()
        (_, parameter), kept = named[0], random(30, 30).flatten()
        top = kept.abs().topk(9).indices
        mean = torch.zeros(900)
        mean[top] = kept[top]
        assert type(parameter.grad) is LazyGradient
        return optimizer, parameter, mean.view(30, 30)

    def test_it_can_be_read_in_all_ways(self, stepped):
        _, parameter, mean = stepped
        gradient = parameter.grad
        assert gradient is not None
        assert (gradient.shape, gradient.dtype, gradient.device) == (mean.shape, mean.dtype, CPU)
        assert not gradient.is_sparse and not gradient.requires_grad
        assert torch.equal(gradient, mean) and torch.equal(gradient.data, mean)
        assert torch.equal(gradient + 0, mean) and torch.equal(torch.stack([gradient])[0], mean)
        assert gradient.tolist() == mean.tolist() and (gradient.numpy() == mean.numpy()).all()
        assert gradient.norm() == mean.norm() and repr(gradient) == repr(mean)
        assert torch.equal(gradient.detach().clone(), mean)

    def test_it_can_be_written(self, stepped):
        _, parameter, mean = stepped
        parameter.grad.mul_(2)
        assert torch.equal(parameter.grad + 0, 2 * mean)
        parameter.grad += 1
        assert torch.equal(parameter.grad + 0, 2 * mean + 1)
        torch.nn.utils.clip_grad_norm_([parameter], 1e-3)
        assert parameter.grad.norm() <= 1.001e-3

    def test_it_is_a_tensor_of_its_own(self, stepped):
        _, parameter, mean = stepped
        with torch.inference_mode():  # a metric reads it first
            assert parameter.grad.norm() == mean.norm()
        assert not parameter.grad._is_view()
        assert torch.equal(parameter.grad.detach_().mul_(2), 2 * mean)

    def test_the_compiler_describes_its_parameter(self, stepped):
        _, parameter, _ = stepped
        described = FakeTensorMode().from_tensor(parameter)
        assert described.grad is not None and described.grad.shape == parameter.shape

    def test_code_in_c_gets_no_null_pointer(self, stepped):
        with pytest.raises(RuntimeError, match='data pointer'):
            torch.utils.dlpack.to_dlpack(stepped[1].grad)

    def test_another_optimizer_steps_on_it(self, stepped):
        _, parameter, mean = stepped
        before = parameter.detach().clone()
        other = torch.optim.SGD([parameter], lr=0.5)
        torch.optim.SGD.step(other)
        assert torch.equal(parameter.detach(), before.add(mean, alpha=-0.5))

    @pytest.mark.parametrize('reads', [False, True])
    def test_a_backward_pass_without_zero_grad_adds_to_it(self, stepped, reads):
        optimizer, parameter, mean = stepped
        if reads:
            parameter.grad.sum()
        with optimizer.no_sync():
            set_gradients([('w', parameter)], {'w': torch.ones(30, 30)})
        assert torch.equal(parameter.grad + 0, mean + 1)
        set_gradients([('w', parameter)], {'w': torch.ones(30, 30)})
        assert torch.equal(parameter.grad + 0, mean + 2)
        optimizer.step()

    def test_zero_grad_releases_or_zeroes_it(self, stepped):
        optimizer, parameter, _ = stepped
        optimizer.zero_grad(set_to_none=False)
        assert not parameter.grad.any()
        optimizer.zero_grad()
        assert parameter.grad is None

    def test_that_of_an_earlier_step_stays_what_it_was(self, stepped):
        optimizer, parameter, mean = stepped
        earlier = parameter.grad
        optimizer.zero_grad()
        set_gradients([('w', parameter)], {'w': random(30, 30, seed=1)})
        optimizer.step()
        assert torch.equal(earlier, mean)
        assert not torch.equal(parameter.grad, mean)


def test_a_parameter_that_no_rank_used_is_left_alone():
    def worker(engine):
        seen = []
        for synchronizes in (False, True):
            named = parameters()
            optimizer = wrap(named, exact(planner=dgc.planner.Whole()), engine, weight_decay=0.1)
            for step in range(4):
                optimizer.zero_grad()
                used = named if step % 2 else [each for each in named if each[0] != 'wide.weight']
                loss(used, engine.rank, step).backward()
                if synchronizes:
                    optimizer.synchronize()
                optimizer.step()
                assert (dict(named)['wide.weight'].grad is None) == (step % 2 == 0)
            seen.append((values(named), optimizer.state_dict()))
        return seen

    for sparse, dense in dgc.simulate(2, worker):
        assert_same(sparse, dense)


def test_an_infinite_mean_is_found_without_a_dense_one():
    parts = [Sparse(torch.tensor([3e38, 1.0]), torch.tensor([0, 2]), 4)] * 2
    assert not SparseMean(parts, 1.0).is_finite
    assert SparseMean(parts, 0.5).is_finite
    assert SparseMean([parts[0].at(torch.tensor([False, False]))], 1.0).is_finite


class TestRenewal:
    """A memory that is written beside the present one, which then needs neither a copy nor a pass
    that looks for what is not finite."""

    @pytest.mark.parametrize(
        ('rule', 'numel'), [*itertools.product(NESTEROV, (1, 513, 100_003, (1 << 20) + 3))]
    )
    def test_new_buffers_are_those_of_an_update_in_place(self, rule, numel):
        gradient, v, u = (random(numel, seed=seed) for seed in range(3))
        nesterov = NESTEROV[rule]
        has_u = nesterov is not None
        into = [torch.full_like(v, torch.nan) for _ in range(1 + has_u)]
        before, u_before = v.clone(), u.clone()
        cut = numel // 3
        update = ops.Update([gradient[:cut], gradient[cut:]], u if has_u else None, 0.9,
                            bool(nesterov), into)  # fmt: skip
        found = native.accumulate(v, update, 2.5, 1000)
        assert found.is_finite and torch.equal(v, before) and torch.equal(u, u_before)
        wanted = reference.accumulate(v, update._replace(into=()), 2.5, 1000)
        for ours, theirs in zip(found[:3], wanted[:3], strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
        assert torch.equal(into[0], v) and (not has_u or torch.equal(into[1], u))

    @pytest.mark.parametrize('bad', [torch.nan, torch.inf, -torch.inf, 3e38])
    @pytest.mark.parametrize('kernels', [native, reference])
    def test_what_is_not_finite_is_found_and_the_present_ones_stay(self, kernels, bad):
        gradient, v = random(5000), torch.full((5000,), 3e38)
        gradient[-1] = bad
        before, into = v.clone(), [torch.empty(5000)]
        assert not kernels.accumulate(v, ops.Update([gradient], into=into), 1.0, 10).is_finite
        assert torch.equal(v, before)

    def test_a_skipped_exchange_restores_the_memory_before_all_of_its_step(self):
        named = parameters({'w': (64, 64)})
        reducer = wrap(named, exact(nonfinite='skip', memory=Residual())).reducer
        (bucket,) = reducer.buckets
        before = None
        for number, factor in enumerate([1.0, 1.0, 1.0, torch.nan]):
            if number == 1:
                reducer.begin_step()
                before = bucket.buffers['residual'].clone()
            bucket.continued.update(['w'] if number > 1 else [])
            named[0][1].grad = factor * random(64, 64, seed=number)
            bucket.collect(bucket.members[0])
            assert reducer.synchronize(is_final=False) == (factor == 1)
        assert torch.equal(bucket.buffers['residual'], before)

    def test_a_skipping_step_copies_no_memory(self):
        named = parameters({'w': (64, 64)})
        optimizer = wrap(named, exact(nonfinite='skip'), momentum=0.9)
        (bucket,) = optimizer.reducer.buckets
        places = []
        for step in range(4):
            optimizer.zero_grad()
            loss(named, 0, step).backward()
            optimizer.step()
            places.append(bucket.buffers['velocity'].data_ptr())
        assert places[0] != places[1] and places[:2] == places[2:]
