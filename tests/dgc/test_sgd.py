import copy
import warnings

import pytest
import torch
from dgc_helpers import exact, loss, parameters
from torch.nn import Parameter

import dgc
from dgc import DGCSGD, ops
from dgc.engines import LocalEngine
from dgc.optim import sgd

# The tests of the arithmetic apply the momentum to the gradients themselves.
pytestmark = pytest.mark.filterwarnings('ignore:DGCSGD leaves its momentum')


def descend(optimizer_class, momenta, steps=5, **settings) -> torch.Tensor:
    """A parameter after steps on fixed gradients; ``momenta`` turns them into what it is given."""
    parameter = Parameter(torch.linspace(-1, 1, 6).view(2, 3))
    optimizer = optimizer_class([parameter], lr=0.1, **settings)
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        parameter.grad = momenta(torch.randn(2, 3, generator=draw))
        optimizer.step()
    return parameter.detach()


def memory(momentum: float, nesterov: bool):
    """What a dense MomentumCorrection makes of a gradient."""
    buffer = torch.zeros(2, 3)

    def momentum_of(gradient):
        buffer.mul_(momentum).add_(gradient)
        return gradient + momentum * buffer if nesterov else buffer.clone()

    return momentum_of


@pytest.mark.parametrize(('momentum', 'nesterov'), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize('weight_decay', [0.0, 0.1])
def test_with_momentum_in_the_gradient_it_is_torch_sgd(momentum, nesterov, weight_decay):
    settings = {'momentum': momentum, 'nesterov': nesterov, 'weight_decay': weight_decay}
    ours = descend(DGCSGD, memory(momentum, nesterov), **settings)
    torchs = descend(torch.optim.SGD, lambda gradient: gradient, **settings)
    torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-6)


def test_weight_decay_has_momentum_where_there_is_no_gradient():
    """Ten steps under m = 0.9 decay far more than ten without."""
    plain, heavy = (
        descend(DGCSGD, torch.zeros_like, steps=10, momentum=momentum, weight_decay=0.1)
        for momentum in (0.0, 0.9)
    )
    torch.testing.assert_close(plain, torch.linspace(-1, 1, 6).view(2, 3) * 0.99**10)
    assert (heavy.abs() < 0.8 * plain.abs())[plain != 0].all()


def test_parameters_without_a_gradient_are_left_alone():
    parameter = Parameter(torch.ones(2))
    DGCSGD([parameter], lr=1.0, weight_decay=0.5).step()
    assert parameter.tolist() == [1, 1]


def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned():
    parameter = Parameter(torch.tensor([2.0]))
    optimizer = DGCSGD([parameter], lr=0.25)

    def closure():
        value = parameter.square().sum()
        value.backward()
        return value

    assert optimizer.step(closure).item() == 4
    assert parameter.item() == 1


def test_state_goes_on_where_it_was_saved():
    def step(parameter, optimizer):
        parameter.grad = torch.ones(2)
        optimizer.step()

    one = Parameter(torch.ones(2))
    first = DGCSGD([one], lr=0.1, momentum=0.9, weight_decay=0.1)
    step(one, first)
    other = Parameter(one.detach().clone())
    second = DGCSGD([other], lr=0.1, momentum=0.9, weight_decay=0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    step(one, first)
    step(other, second)
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ('settings', 'complaint'),
    [
        ({'lr': -1.0}, 'lr must be at least 0'),
        ({'momentum': -0.1}, 'momentum must be at least 0'),
        ({'weight_decay': -0.1}, 'weight_decay must be at least 0'),
        ({'nesterov': True}, 'nesterov needs a momentum'),
    ],
)
def test_impossible_settings_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        DGCSGD([Parameter(torch.ones(1))], **settings)


def test_updates_are_divided_by_their_elements():
    updates = [tuple(torch.zeros(n) for _ in range(3)) for n in (3, 4, 9, 1, 1, 8)]
    parts = [[len(w) for w, _, _ in part] for part in sgd.in_parts(updates, 8)]
    assert parts == [[3, 4], [9], [1, 1], [8]]
    assert list(sgd.in_parts([])) == []


def plainly(parameter, gradient, buffer, group):
    sgd.step_plainly([parameter], [gradient], [buffer], group)


@pytest.mark.skipif(not ops.is_native(torch.device('cpu')), reason='the kernels are not compiled')
@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('numel', [1, 17, 100_003])
def test_the_fused_step_is_the_plain_one(numel, nesterov):
    group = {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.01, 'nesterov': nesterov}
    results = []
    for step in (sgd.native.step, plainly):
        draw = torch.Generator().manual_seed(0)
        parameter, buffer = (torch.randn(numel, 1, generator=draw) for _ in range(2))
        for _ in range(3):
            step(parameter, torch.randn(numel, 1, generator=draw), buffer, group)
        results.append((parameter, buffer))
    for fused, plain in zip(*results, strict=True):  # torch may round a product and a sum as one
        torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-7)


def test_a_parameter_in_another_order_or_type_takes_the_plain_step():
    strided = Parameter(torch.randn(4, 3).t())
    strided.grad = torch.zeros(3, 4)
    half = Parameter(torch.randn(3).bfloat16())
    half.grad = torch.zeros(3).bfloat16()
    assert not sgd.fits_kernel(strided, strided.grad, torch.zeros(3, 4))
    assert not sgd.fits_kernel(half, half.grad, torch.zeros(3))
    before = [strided.detach().clone(), half.detach().clone()]
    DGCSGD([strided, half], lr=0.1, momentum=0.9, weight_decay=0.1).step()
    torch.testing.assert_close(strided.detach(), before[0] * 0.99)
    torch.testing.assert_close(half.detach(), before[1] * 0.99, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize('was', [torch.channels_last, torch.contiguous_format])
def test_a_buffer_of_a_run_in_another_memory_format_is_gone_on_with(was):
    def optimizer(memory_format):
        weight = torch.arange(96.0).view(2, 3, 4, 4).to(memory_format=memory_format)
        parameter = Parameter(weight)
        parameter.grad = torch.ones_like(parameter)
        return parameter, DGCSGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1)

    earlier, first = optimizer(was)
    first.step()
    others = {torch.channels_last, torch.contiguous_format} - {was}
    later, second = optimizer(others.pop())
    later.data.copy_(earlier.detach())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for each in (first, second):
        each.step()
    torch.testing.assert_close(later.detach(), earlier.detach())


def test_the_published_dampening_is_accepted_at_its_default_only():
    """failures row 23"""
    parameters = [Parameter(torch.zeros(2))]
    assert DGCSGD(parameters, lr=0.1, momentum=0.9, dampening=0)
    with pytest.raises(ValueError, match=r'dampening must be 0, got 0\.5'):
        DGCSGD(parameters, lr=0.1, momentum=0.9, dampening=0.5)


class TestMomentumThatNothingApplies:
    """Lightning registers no communication hook on CPUs: DGCSGD then trained without momentum."""

    def step(
        self, momentum: float, wrap=lambda optimizer, named: optimizer, steps: int = 4
    ) -> list[str]:
        parameter = Parameter(torch.ones(3))
        optimizer = wrap(DGCSGD([parameter], lr=0.1, momentum=momentum), [('p', parameter)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            for _ in range(steps):
                parameter.square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [str(each.message) for each in caught if 'DGCSGD' in str(each.message)]

    def test_is_warned_of_once(self):
        (message,) = self.step(0.9)
        assert 'the momentum is not applied' in message and 'compression_hook' in message

    def test_in_its_first_step_a_hook_may_meet_it(self):
        assert self.step(0.9, steps=1) == []

    def test_no_momentum_needs_no_memory(self):
        assert self.step(0.0) == []

    def test_a_memory_applies_it(self):
        def wrap(optimizer, named):
            return dgc.DistributedOptimizer(optimizer, named, engine=LocalEngine())

        assert self.step(0.9, wrap) == []

    @pytest.mark.parametrize('kind', ['DistributedOptimizer', 'LocalSteps'])
    def test_a_wrapper_that_was_detached_applies_none(self, kind):
        def wrap(optimizer, named):
            if kind == 'LocalSteps':
                inner = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
                wrapper = dgc.LocalSteps(inner, optimizer, named, exact(), LocalEngine(), every=1)
            else:
                wrapper = dgc.DistributedOptimizer(optimizer, named, engine=LocalEngine())
            named[0][1].square().sum().backward()
            wrapper.step()
            assert optimizer.has_memory
            wrapper.detach()
            return optimizer

        (message,) = self.step(0.9, wrap)
        assert 'the momentum is not applied' in message


class TestWeightDecayThatIsTurnedOffAndOn:
    """Its momentum fades, and is dropped, by the steps since weight decay last added to it."""

    PHASES = ((0.1, 3), (0.0, 30), (0.1, 3), (0.0, 12))  # 0.5^30 is kept, 0.5^42 is not

    @pytest.mark.parametrize('route', ['plain', 'dense', 'sparse'])
    def test_it_begins_to_fade_anew(self, route):
        named = parameters()
        plain = DGCSGD([parameter for _, parameter in named], lr=0.01, momentum=0.5)
        optimizer = plain
        if route != 'plain':
            optimizer = dgc.DistributedOptimizer(plain, named, exact(), LocalEngine())
        for weight_decay, steps in self.PHASES:
            kept = {p: held['decay_momentum'].clone() for p, held in plain.state.items()}
            for group in plain.param_groups:
                group['weight_decay'] = weight_decay
            for step in range(steps):
                optimizer.zero_grad()
                loss(named, 0, step).backward()
                if route == 'dense':
                    optimizer.synchronize()
                optimizer.step()
        for _, parameter in named:
            left = plain.state[parameter]['decay_momentum']
            assert left.any()
            torch.testing.assert_close(left, kept[parameter] * 0.5**steps)

    def test_it_is_dropped_once_it_is_negligible(self):
        named = parameters()
        optimizer = DGCSGD([p for _, p in named], lr=0.01, momentum=0.5, weight_decay=0.1)
        for weight_decay, steps in [(0.1, 3), (0.0, 12), (0.1, 3), (0.0, 40)]:
            optimizer.param_groups[0]['weight_decay'] = weight_decay
            for step in range(steps):
                optimizer.zero_grad()
                loss(named, 0, step).backward()
                optimizer.step()
        assert not optimizer.state
