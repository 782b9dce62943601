"""What DistributedOptimizer refuses, rather than train wrongly."""

import pytest
import torch
from dgc_helpers import exact, loss, parameters, train, wrap
from torch.nn import Parameter

import dgc
from dgc.clipping import ClipByModelNorm
from dgc.engines import LocalEngine
from dgc.memory import Residual
from dgc.planner import BySize, Whole


class TestRefusals:
    def sgd(self, named, **settings):
        return torch.optim.SGD([p for _, p in named], lr=0.1, **settings)

    def wrap(self, optimizer, named, composition=None, **settings):
        composition = composition or dgc.dense()
        return dgc.DistributedOptimizer(optimizer, named, composition, LocalEngine(), **settings)

    def test_parameters_without_a_name_are_listed(self):
        """horovod#1389: half of the names passed."""
        named = parameters()
        with pytest.raises(ValueError) as caught:
            self.wrap(self.sgd(named), named[::2])
        assert 'parameter 1 (16, 10) of group 0' in str(caught.value)
        assert 'parameter 3 () of group 0' in str(caught.value)
        assert 'parameter 0' not in str(caught.value)

    def test_a_name_of_two_parameters_is_listed(self):
        named = [('w', Parameter(torch.ones(1))), ('w', Parameter(torch.ones(1)))]
        with pytest.raises(ValueError, match='two of w'):
            self.wrap(self.sgd(named), named)

    def test_a_parameter_of_two_names_is_listed(self):
        shared = Parameter(torch.ones(2, 2))
        named = [('encoder', shared), ('b', Parameter(torch.ones(1))), ('decoder', shared)]
        with pytest.raises(ValueError, match='one parameter as encoder and decoder'):
            self.wrap(torch.optim.SGD([shared, named[1][1]], lr=0.1), named)

    def test_names_of_parameters_that_are_not_trained_are_welcome(self):
        named = parameters()
        optimizer = self.wrap(torch.optim.SGD([named[0][1]], lr=0.1), named)
        assert set(optimizer.reducer.state_dict()['memory']) == {'wide.weight'}

    def test_momentum_twice_is_refused(self):
        """Paddle PR#20758."""
        named = parameters()
        with pytest.raises(
            ValueError, match=r'MomentumCorrection holds .* SGD would apply it again'
        ):
            self.wrap(self.sgd(named, momentum=0.9), named, exact())

    def test_momentum_nowhere_is_refused(self):
        named = parameters()
        inner = dgc.DGCSGD([p for _, p in named], lr=0.1, momentum=0.9)
        for composition in (dgc.dense(), exact(memory=Residual())):
            with pytest.raises(ValueError, match='DGCSGD leaves momentum to the memory'):
                self.wrap(inner, named, composition)

    def test_without_momentum_any_optimizer_fits_any_memory(self):
        for optimizer in (torch.optim.SGD, dgc.DGCSGD):
            for composition in (dgc.dense(), exact(), exact(memory=Residual())):
                named = parameters()
                wrapped = self.wrap(optimizer([p for _, p in named], lr=0.1), named, composition)
                train(wrapped, named, 1)
                assert wrapped.steps == 1

    def test_a_warm_up_in_epochs_needs_their_length(self):
        named = parameters()
        composition = exact(warmup_epochs=2)
        with pytest.raises(ValueError, match='needs steps_per_epoch: give it, or set warmup_steps'):
            self.wrap(self.sgd(named), named, composition)
        self.wrap(self.sgd(named), named, exact(warmup_steps=5))
        self.wrap(self.sgd(named), named, composition, steps_per_epoch=5)
        self.wrap(self.sgd(named), named, exact(warmup_epochs=2, warmup_stage_steps=5))


def test_a_parameter_unfrozen_after_wrapping_is_refused_not_applied_unreduced():
    frozen = Parameter(torch.zeros(3), requires_grad=False)
    named = [*parameters(), ('late', frozen)]
    optimizer = wrap(named, dgc.dense())
    frozen.requires_grad = True
    loss(named, 0, 0).backward()
    with pytest.raises(RuntimeError, match='late was not trained when'):
        optimizer.step()


def test_a_parameter_added_after_wrapping_is_refused_not_applied_unreduced():
    named = parameters()
    optimizer = wrap(named, dgc.dense())
    added = Parameter(torch.ones(2, 3))
    optimizer.add_param_group({'params': [added]})
    (loss(named, 0, 0) + added.sum()).backward()
    with pytest.raises(RuntimeError, match=r'a parameter \(2, 3\) that was added was not trained'):
        optimizer.step()
    assert torch.equal(added.detach(), torch.ones(2, 3))


@pytest.mark.parametrize('make', [dgc.dense, exact])
def test_a_parameter_frozen_after_wrapping_is_refused_not_moved_by_what_was_kept(make):
    named = parameters()
    optimizer = wrap(named, make(), momentum=0.9)
    train(optimizer, named, 2)
    optimizer.zero_grad()
    named[0][1].requires_grad_(False)
    loss(named, 0, 2).backward()
    with pytest.raises(RuntimeError, match=r'wide\.weight was trained when'):
        optimizer.step()


def clip_in_place(parameter):
    torch.nn.utils.clip_grad_norm_([parameter], 1e-3)


def replace(parameter):
    parameter.grad = parameter.grad.clamp(-1e-3, 1e-3)


def drop(parameter):
    parameter.grad = None


COMPOSITIONS = {
    'dense': dgc.dense,
    'one bucket': lambda: dgc.dense(planner=Whole()),
    'exact': exact,
    'in pieces': lambda: exact(planner=BySize()),
    'clipped': lambda: exact(gradient_clipping=ClipByModelNorm(1e9)),
    'whole dense steps': lambda: exact(1.0, planner=Whole()),
}


@pytest.mark.parametrize('change', [clip_in_place, replace, drop])
@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
@pytest.mark.parametrize('index', range(4))
def test_a_gradient_changed_while_it_is_sent_is_refused(make, change, index):
    """It is written to while another thread reads it, or replaced where the mean was to come."""
    named = parameters()
    optimizer = wrap(named, make())
    train(optimizer, named, 2)
    optimizer.zero_grad()
    loss(named, 0, 2).backward()
    name, parameter = named[index]
    change(parameter)
    with pytest.raises(RuntimeError, match=f'the gradient of {name} was changed between'):
        optimizer.step()


@pytest.mark.parametrize('change', [clip_in_place, replace, drop])
@pytest.mark.parametrize('make', COMPOSITIONS.values(), ids=COMPOSITIONS)
@pytest.mark.parametrize('set_to_none', [True, False])
def test_after_synchronize_the_means_are_the_loops_to_change(make, change, set_to_none):
    named = parameters()
    optimizer = wrap(named, make())
    for step in range(3):
        optimizer.zero_grad(set_to_none)
        loss(named, 0, step).backward()
        optimizer.synchronize()
        before = named[0][1].detach().clone()
        change(named[0][1])
        optimizer.step()
        assert (named[0][1].detach() - before).norm() <= 1e-3 * named[0][1].numel()


def test_between_two_backward_passes_of_a_step_a_gradient_may_be_changed():
    named = parameters()
    optimizer = wrap(named, dgc.dense(), batches_per_step=2)
    loss(named, 0, 0).backward()
    for _, parameter in named:
        parameter.grad.mul_(0.5)
    halves = [parameter.grad.clone() for _, parameter in named]
    loss(named, 0, 1).backward()
    rest = torch.autograd.grad(loss(named, 0, 1), [p for _, p in named])
    optimizer.synchronize()
    for (_, parameter), half, other in zip(named, halves, rest, strict=True):
        torch.testing.assert_close(parameter.grad, half + other)


def test_detached_parameters_can_be_wrapped_again():
    named = parameters()
    first = wrap(named, dgc.dense())
    first.detach()
    second = wrap(named, dgc.dense())
    loss(named, 0, 0).backward()
    second.step()
    assert first.reducer.progress.steps == 0
    assert second.reducer.progress.steps == 1
