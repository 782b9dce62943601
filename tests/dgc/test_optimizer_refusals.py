"""What DistributedOptimizer refuses, rather than train wrongly."""

import pytest
import torch
from dgc_helpers import exact, loss, parameters, train, wrap
from torch.nn import Parameter

import dgc
from dgc.engines import LocalEngine
from dgc.memory import Residual


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
        assert set(optimizer.state_dict()['memory']) == {'wide.weight'}

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
        with pytest.raises(ValueError, match='needs steps_per_epoch'):
            self.wrap(self.sgd(named), named, composition)
        self.wrap(self.sgd(named), named, composition, steps_per_epoch=5)
        self.wrap(self.sgd(named), named, exact(warmup_epochs=2, warmup_stage_steps=5))


def test_a_parameter_unfrozen_after_wrapping_is_refused_not_applied_unreduced():
    frozen = Parameter(torch.zeros(3), requires_grad=False)
    named = [*parameters(), ('late', frozen)]
    optimizer = wrap(named, dgc.dense())
    frozen.requires_grad = True
    loss(named, 0, 0).backward()
    with pytest.raises(RuntimeError, match='late was frozen'):
        optimizer.step()


def test_detached_parameters_can_be_wrapped_again():
    named = parameters()
    first = wrap(named, dgc.dense())
    first.detach()
    second = wrap(named, dgc.dense())
    loss(named, 0, 0).backward()
    second.step()
    assert first.reducer.progress.steps == 0
    assert second.reducer.progress.steps == 1
