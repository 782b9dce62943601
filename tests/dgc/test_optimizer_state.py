"""What DistributedOptimizer saves, and goes on from."""

import copy

import pytest
import torch
from dgc_helpers import exact, parameters, train, values, wrap
from torch.nn import Parameter

import dgc
from dgc.engines import LocalEngine
from dgc.memory import Residual
from dgc.planner import PerTensor


class TestState:
    def saved(self, composition=None, steps=3):
        named = parameters()
        optimizer = wrap(named, composition or exact(), momentum=0.9, weight_decay=0.01)
        train(optimizer, named, steps)
        return named, optimizer, copy.deepcopy(optimizer.state_dict())

    def test_it_may_be_loaded_into_another_grouping(self):
        """pytorch PR#48670: state is kept by parameter name, not by bucket."""
        _, optimizer, state = self.saved()
        other = parameters()
        resumed = wrap(
            other,
            exact(rules=dgc.LayerRules(dense=['narrow.*']), planner=PerTensor(dense_bytes=4)),
            momentum=0.9,
            weight_decay=0.01,
        )
        assert len(resumed.reducer.buckets) != len(optimizer.reducer.buckets) or [
            bucket.name for bucket in resumed.reducer.buckets
        ] != [bucket.name for bucket in optimizer.reducer.buckets]
        resumed.load_state_dict(state)
        for name, buffers in resumed.reducer.state_dict()['memory'].items():
            for buffer, tensor in buffers.items():
                assert torch.equal(tensor, state['ranks']['rank 0 of 1']['memory'][name][buffer])

    def test_it_ends_a_step_that_was_broken_off(self):
        """What it had sent already is not taken for that of the next."""
        named = [(f'p{number}', Parameter(torch.zeros(64, 64))) for number in range(3)]
        optimizer = wrap(named, exact(0.01), lr=1.0)
        state = copy.deepcopy(optimizer.state_dict())
        named[2][1].sum().backward()
        with pytest.raises(RuntimeError, match='got 2 gradients'):
            named[2][1].sum().backward()
        optimizer.load_state_dict(state)
        sum(parameter.sum() for _, parameter in named).backward()
        optimizer.step()
        assert [int(parameter.count_nonzero()) for _, parameter in named] == [41, 41, 41]

    def test_the_order_of_the_parameters_may_change(self):
        _, _, state = self.saved()
        other = parameters()[::-1]
        resumed = dgc.DistributedOptimizer(
            dgc.DGCSGD([p for _, p in other[::-1]], lr=0.1, momentum=0.9, weight_decay=0.01),
            other,
            exact(),
            LocalEngine(),
        )
        resumed.load_state_dict(state)
        kept = resumed.reducer.state_dict()['memory']['wide.weight']['velocity']
        assert torch.equal(kept, state['ranks']['rank 0 of 1']['memory']['wide.weight']['velocity'])
        assert kept.any()

    def test_loading_keeps_the_wrapped_optimizers_groups_and_momentum_shared(self):
        _, _, state = self.saved()
        named = parameters()
        resumed = wrap(named, exact(), momentum=0.5)
        resumed.load_state_dict(state)
        assert resumed.param_groups is resumed.optimizer.param_groups
        assert all(bucket.momentum == 0.9 for bucket in resumed.reducer.buckets)
        resumed.param_groups[0]['momentum'] = 0.25
        assert all(bucket.momentum == 0.25 for bucket in resumed.reducer.buckets)

    @pytest.mark.parametrize(
        'make', [dgc.dense, lambda: exact(memory=Residual())], ids=['none', 'residual']
    )
    def test_a_saved_tensor_without_a_place_here_is_refused(self, make):
        _, _, state = self.saved()
        with pytest.raises(ValueError, match=r'the saved (momentum|velocity) of .* would be lost'):
            wrap(parameters(), make()).load_state_dict(state)

    def test_another_shape_is_refused_by_name(self):
        _, _, state = self.saved()
        named = parameters({'wide.weight': (64, 21), 'narrow.weight': (16, 10), 'bias': (10,),
                            'scale': ()})  # fmt: skip
        with pytest.raises(ValueError, match=r'wide.weight was saved with shape \(64, 20\)'):
            wrap(named, exact(), momentum=0.9).load_state_dict(state)

    def test_it_does_not_change_while_training_goes_on(self):
        named, optimizer, _ = self.saved()
        state = optimizer.state_dict()
        before = copy.deepcopy(state['ranks']['rank 0 of 1']['memory'])
        train(optimizer, named, [3])
        for name, buffers in before.items():
            for buffer, tensor in buffers.items():
                assert torch.equal(state['ranks']['rank 0 of 1']['memory'][name][buffer], tensor)

    @pytest.mark.parametrize(
        ('ramp', 'first', 'third'),
        [
            (
                {'warmup_epochs': 4, 'warmup_coeff': [0.5, 0.4, 0.3, 0.2], 'warmup_stage_steps': 1},
                0.5,
                0.3,
            ),
            ({'warmup_steps': 9}, 0.1**0.1, 0.1**0.3),
        ],
    )
    def test_the_density_goes_on_from_the_saved_step(self, ramp, first, third):
        _, optimizer, state = self.saved(exact(0.1, **ramp), steps=2)
        resumed = wrap(parameters(), exact(0.1, **ramp))
        assert resumed.reducer.buckets[0].density == pytest.approx(first)
        resumed.load_state_dict(state)
        assert resumed.steps == 2
        assert resumed.reducer.buckets[0].density == optimizer.reducer.buckets[0].density
        assert resumed.reducer.buckets[0].density == pytest.approx(third)


def test_an_empty_state_that_was_left_out_is_loaded_and_one_that_was_not_empty_is_refused():
    """torch.distributed.checkpoint leaves out empty dictionaries, such as the state of DGCSGD."""
    saved = wrap(parameters(), exact(), momentum=0.9).state_dict()
    assert saved['state'] == {} and saved['entries'] == 0
    del saved['state']
    wrap(parameters(), exact(), momentum=0.9).load_state_dict(saved)
    for entries in (1, None):
        other = {**saved, 'entries': entries}
        with pytest.raises(ValueError, match="with 'state' and 'param_groups'"):
            wrap(parameters(), exact(), momentum=0.9).load_state_dict(other)


def test_a_state_given_to_the_wrapped_optimizer_is_the_wrappers_too():
    named = parameters()
    optimizer = wrap(named, exact(), lr=0.1, momentum=0.9)
    optimizer.optimizer.load_state_dict(optimizer.optimizer.state_dict())
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    optimizer.param_groups[0]['lr'] = 0.0
    optimizer.param_groups[0]['momentum'] = 0.5
    assert {bucket.momentum for bucket in optimizer.buckets} == {0.5}
    before = values(named)
    train(optimizer, named, 1)
    assert all(map(torch.equal, values(named), before))
