"""What a reducer is given: gradients during the backward pass, or the movement of local steps."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import SHAPES, exact, loss, parameters, plan_buckets, values
from torch.nn import Parameter

import dgc
from dgc.engines import LocalEngine
from dgc.planner import PerTensor, Whole
from dgc.reducer import Reducer
from dgc.sources import GradientHooks, Movement

PLANNERS = {'per tensor': PerTensor(), 'one bucket': Whole()}
planners = pytest.mark.parametrize('planner', PLANNERS.values(), ids=PLANNERS)


class Recorder(Reducer):
    """Notes which buckets are complete, in order."""

    def __init__(self, named, composition):
        engine = LocalEngine()
        super().__init__(plan_buckets(named, composition, engine), composition, engine)
        self.complete = []

    def ready(self, index):
        self.complete.append(self.buckets[index].name)
        super().ready(index)


def hooks(named, composition=None, **settings):
    """A recorder, and a source that is open for the first step."""
    reducer = Recorder(named, composition or exact())
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.1)
    source = GradientHooks(reducer, optimizer, {p: name for name, p in named}, **settings)
    reducer.set_densities(0, 1)
    source.begin()
    return reducer, source


class TestGradientHooks:
    @planners
    def test_every_bucket_is_submitted_once_as_it_is_complete(self, planner):
        named = parameters()
        reducer, source = hooks(named, exact(planner=planner))
        loss(named, 0, 0).backward()
        assert sorted(reducer.complete) == sorted(bucket.name for bucket in reducer.buckets)
        source.finish()
        assert reducer.synchronize()
        source.check_result()

    @planners
    def test_the_buckets_hold_the_gradients(self, planner):
        named = parameters()
        reducer, source = hooks(named, dgc.dense(planner=planner))
        expected = torch.autograd.grad(loss(named, 0, 0), [p for _, p in named])
        loss(named, 0, 0).backward()
        source.finish()
        found = dict(pair for bucket in reducer.buckets for pair in bucket.gradients())
        for (name, _), gradient in zip(named, expected, strict=True):
            assert torch.equal(found[name], gradient)

    def test_parameters_without_a_gradient_are_sent_as_zeros(self):
        named = parameters()
        reducer, source = hooks(named, dgc.dense(planner=Whole()))
        reducer.buckets[0].gradient.fill_(7.0)  # of an earlier step
        named[0][1].sum().backward()
        assert reducer.complete == []
        source.finish()
        reducer.synchronize()
        for name, gradient in reducer.buckets[0].gradients():
            assert (gradient == (1.0 if name == named[0][0] else 0.0)).all()

    def test_a_bucket_is_complete_after_the_last_of_the_steps_batches(self):
        named = parameters()
        reducer, source = hooks(named, batches_per_step=3)
        for _ in range(2):
            loss(named, 0, 0).backward()
            assert reducer.complete == []
        loss(named, 0, 0).backward()
        assert len(reducer.complete) == len(reducer.buckets)
        source.finish()

    def test_has_begun_from_the_first_gradient_to_the_end_of_the_step(self):
        named = parameters()
        reducer, source = hooks(named)
        assert not source.has_begun
        named[0][1].sum().backward()
        assert source.has_begun
        source.finish()
        assert not source.has_begun
        reducer.synchronize()
        source.begin()
        assert not source.has_begun

    def test_a_gradient_after_the_end_of_a_step_is_refused(self):
        named = parameters()
        _, source = hooks(named)
        source.finish()
        with pytest.raises(RuntimeError, match=r'gradient of scale between synchronize\(\) and'):
            dict(named)['scale'].backward()

    def test_after_detach_gradients_are_the_training_loops_again(self):
        named = parameters()
        reducer, source = hooks(named)
        source.detach()
        for _ in range(3):
            loss(named, 0, 0).backward()
        assert reducer.complete == []
        assert not source.has_begun
        assert not any(p._post_accumulate_grad_hooks for _, p in named)


def moved(named, shift=0.25):
    """Change every parameter as an inner optimizer would; returns where they were."""
    before = values(named)
    with torch.no_grad():
        for index, (_, parameter) in enumerate(named):
            parameter.sub_(shift * (index + 1))
    return before


class TestMovement:
    @planners
    @pytest.mark.parametrize('make', [dgc.dense, exact])
    def test_it_hands_down_the_movement_and_restores_the_agreed_parameters(self, make, planner):
        named = parameters()
        reducer = Recorder(named, make(planner=planner))
        source = Movement(reducer)
        loss(named, 0, 0).backward()  # the last local gradient, which is no part of it
        before = moved(named)
        difference = [b - p for b, p in zip(before, values(named), strict=True)]
        source.finish()
        assert all(map(torch.equal, values(named), before))
        found = dict(pair for bucket in reducer.buckets for pair in bucket.gradients())
        for (name, parameter), movement in zip(named, difference, strict=True):
            assert torch.equal(found[name], movement)
            assert torch.equal(parameter.grad, movement)

    def test_the_result_of_the_reducer_is_in_the_gradients(self):
        def worker(engine):
            named = parameters()
            composition = dgc.dense()
            reducer = Reducer(plan_buckets(named, composition, engine), composition, engine)
            source = Movement(reducer)
            moved(named, float(engine.rank))
            source.finish()
            reducer.synchronize()
            source.check_result()
            return [p.grad.clone() for _, p in named]

        for gradients in dgc.simulate(3, worker):
            for index, gradient in enumerate(gradients):
                torch.testing.assert_close(gradient, torch.full_like(gradient, index + 1.0))

    def test_agreed_are_copies_of_the_parameters_by_name(self):
        named = parameters()
        source = Movement(Recorder(named, dgc.dense()))
        before = moved(named)
        assert source.agreed.keys() == dict(named).keys()
        assert all(
            torch.equal(source.agreed[n], b) for (n, _), b in zip(named, before, strict=True)
        )
        held = dict(source.agreed)
        source.begin()
        assert all(source.agreed[name] is held[name] for name in held)
        assert all(torch.equal(source.agreed[name], p) for name, p in named)
        assert not any(agreed.requires_grad for agreed in source.agreed.values())

    def test_without_a_movement_zeros_are_sent(self):
        named = parameters()
        reducer = Recorder(named, dgc.dense())
        loss(named, 0, 0).backward()
        Movement(reducer).finish()
        assert not any(bucket.gradient.any() for bucket in reducer.buckets)

    def test_members_are_all_parameters_that_are_trained(self):
        named = parameters()
        source = Movement(Recorder(named, exact()))
        assert {member.name for member in source.members} == set(SHAPES)
        assert {member.parameter for member in source.members} == {p for _, p in named}

    def test_a_movement_that_is_not_finite_is_handed_down_and_undone(self):
        named = parameters()
        reducer = Recorder(named, dgc.dense(planner=Whole()))
        source = Movement(reducer)
        before = values(named)
        named[0][1].data.fill_(torch.inf)
        named[1][1].data.fill_(torch.nan)
        source.finish()
        assert all(map(torch.equal, values(named), before))
        assert not reducer.buckets[0].gradient.isfinite().all()

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_it_has_the_parameters_type(self, dtype):
        named = parameters(dtype=dtype)
        reducer = Recorder(named, exact())
        source = Movement(reducer)
        before = moved(named)
        source.finish()
        assert all(bucket.gradient.dtype == dtype for bucket in reducer.buckets)
        assert all(map(torch.equal, values(named), before))

    def test_channels_last_keeps_its_memory_format(self):
        weight = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
        named = [('w', Parameter(weight.clone()))]
        reducer = Recorder(named, exact())
        source = Movement(reducer)
        named[0][1].data.add_(1.0)
        expected = weight - named[0][1].detach()
        source.finish()
        assert named[0][1].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(named[0][1].detach(), weight)
        assert torch.equal(reducer.buckets[0].gradient, expected.flatten())
