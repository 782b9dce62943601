"""What is refused or compared between ranks before the first step, and what a failure ends."""

from __future__ import annotations

import ast
import copy
import re
import time
import warnings
from dataclasses import replace

import pytest
import torch
from dgc_helpers import SHAPES, exact, loss, parameters, train, values, wrap

import dgc
from dgc.algorithms.demo import demo
from dgc.algorithms.one_bit_adam import one_bit_adam
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.codec import Codec
from dgc.compressors import Dense, TopK
from dgc.engines import EngineError, LocalEngine
from dgc.exchanges import (
    AllGather,
    CompressedAllReduce,
    GTopKDoubling,
    Hierarchical,
    SparDL,
)
from dgc.memory import AveragedMomentum, DecoupledMomentum, FirstMoment, NoMemory, Residual
from dgc.optim import OneBitAdam
from dgc.planner import BySize, PerTensor, Whole
from dgc.rules import LayerRules
from dgc.saved_state import restore
from dgc.schedule import DensitySchedule
from dgc.wiring import comparable


class TestTheHandshake:
    """Ranks that would make different engine calls, or different steps, are refused together."""

    @staticmethod
    def refused(make, match):
        def worker(engine):
            with pytest.raises(dgc.HandshakeError, match=match):
                make(engine)
            return True

        assert dgc.simulate(2, worker) == [True, True]

    def test_a_device_of_another_number_is_no_difference(self):
        one, other = (
            [BucketSpec.of([ParameterSpec('w', (2, 3), device=torch.device('cuda', n))], None)]
            for n in (0, 1)
        )
        assert one != other
        assert comparable(one) == comparable(other)

    def test_another_planner(self):
        planners = (BySize(), PerTensor())
        self.refused(
            lambda engine: wrap(parameters(), exact(planner=planners[engine.rank]), engine),
            'differ in the planner',
        )

    def test_a_profile_on_one_rank_only(self):
        profiles = (None, lambda: None)
        self.refused(
            lambda engine: wrap(parameters(), exact(), engine, profile=profiles[engine.rank]),
            'differ in the planner',
        )

    @pytest.mark.parametrize('settings', [{'lr': 0.2}, {'weight_decay': 0.5}, {'nesterov': True}])
    def test_another_setting_of_the_optimizer(self, settings):
        def make(engine):
            ours = {'momentum': 0.9, **(settings if engine.rank else {})}
            wrap(parameters(), exact(), engine, **ours)

        self.refused(make, 'differ in the optimizer')


class TestPartsThatDoNotFit:
    @pytest.mark.parametrize(
        'exchange', [GTopKDoubling(), SparDL(teams=2), Hierarchical(GTopKDoubling(), 2)]
    )
    def test_stochastic_codings_where_several_ranks_write_the_same_sum(self, exchange):
        compressor = Dense() if exchange.selects else TopK()
        with pytest.raises(ValueError, match='several ranks write the same sum'):
            dgc.Composition(NoMemory(), compressor, Codec('qsgd4', 'int32'), exchange)

    def test_unbiased_codings_in_an_exchange_that_feeds_back(self):
        with pytest.raises(ValueError, match='error feedback of its own'):
            dgc.Composition(codec=Codec('qsgd2', 'none'), exchange=CompressedAllReduce())

    def test_a_momentum_that_all_ranks_share_inside_a_machine(self):
        exchange = Hierarchical(AllGather(), 2)
        with pytest.raises(ValueError, match='AveragedMomentum must be the same on all'):
            dgc.Composition(AveragedMomentum(), TopK(), Codec(), exchange)

    def test_an_optimizer_that_expects_momenta_without_a_memory_that_sends_them(self):
        named = parameters()
        adam = OneBitAdam([p for _, p in named])
        with pytest.raises(ValueError, match=r'OneBitAdam expects momenta.*Residual sends none'):
            dgc.DistributedOptimizer(adam, named, exact(memory=Residual()))

    @pytest.mark.parametrize('kind', [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
    @pytest.mark.parametrize(
        ('density', 'beta2', 'warns'),
        [(0.01, 0.95, True), (0.0001, 0.999, True), (0.01, 0.999, False), (0.001, 0.999, False)],
    )
    def test_a_second_moment_that_forgets_between_two_arrivals(self, kind, density, beta2, warns):
        named = parameters()
        optimizer = kind([p for _, p in named], betas=(0.9, beta2))
        composition = dgc.deep_gradient_compression(density, memory=Residual())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            dgc.DistributedOptimizer(optimizer, named, composition)
        expected = [f'beta2={beta2:g}', f'every {1 / density:.0f} steps'] if warns else []
        assert len(said) == warns
        assert all(part in str(said[0].message) for part in expected)

    @pytest.mark.parametrize('density', [0.01, 0.0001, 0.00003])
    @pytest.mark.parametrize(('memory', 'beta1'), [(Residual(), 0.9), (FirstMoment(), 0.0)])
    def test_the_remedy_for_a_second_moment_is_accepted(self, density, memory, beta1):
        named = parameters()
        composition = dgc.deep_gradient_compression(density, memory=memory)
        with pytest.warns(UserWarning) as said:
            optimizer = torch.optim.AdamW([p for _, p in named], betas=(beta1, 0.95))
            dgc.DistributedOptimizer(optimizer, named, composition)
        (remedy,) = re.findall(r'set betas=(\(.*\))$', str(said[0].message))
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            betas = ast.literal_eval(remedy)
            optimizer = torch.optim.AdamW([p for _, p in named], betas=betas)
            dgc.DistributedOptimizer(optimizer, named, composition)
        assert betas[0] == beta1

    def test_two_betas_of_an_optimizer_that_divides_by_nothing(self):
        """Lion's second one averages gradients, not their squares."""
        named = parameters()
        optimizer = torch.optim.SGD([{'params': [p for _, p in named], 'betas': (0.9, 0.5)}], 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            dgc.DistributedOptimizer(
                optimizer, named, dgc.deep_gradient_compression(0.01, memory=Residual())
            )

    def test_a_second_moment_of_uncompressed_gradients(self):
        named = parameters()
        optimizer = torch.optim.AdamW([p for _, p in named], betas=(0.9, 0.5))
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            dgc.DistributedOptimizer(optimizer, named, dgc.dense())

    @pytest.mark.parametrize('inner', [lambda p: dgc.DGCSGD(p, momentum=0.9), OneBitAdam])
    def test_inner_steps_whose_momentum_is_left_to_a_memory(self, inner):
        named = parameters()
        moved = [p for _, p in named]
        with pytest.raises(ValueError, match='leaves its momentum to a memory'):
            dgc.LocalSteps(inner(moved), torch.optim.SGD(moved, 0.7), named)

    @pytest.mark.parametrize(
        'rules', [LayerRules(), LayerRules(min_dims=0, ratios={'scale': 1, 'bias': 1})]
    )
    def test_one_bit_adam_with_a_parameter_that_is_never_compressed(self, rules):
        composition = replace(one_bit_adam(), rules=rules)
        with pytest.raises(ValueError, match=r'scale, bias would never be compressed'):
            wrap(parameters(), composition)

    @pytest.mark.parametrize(
        ('settings', 'reason'),
        [
            ({'values': 'qsgd2'}, 'unbiased'),
            ({'indices': 'none'}, 'dense messages'),
            ({'memory': DecoupledMomentum()}, 'does not fit a parameter server'),
            ({'memory': AveragedMomentum()}, 'does not fit a parameter server'),
        ],
    )
    def test_what_no_parameter_server_can_do(self, settings, reason):
        from dgc.parameter_server import dual_way

        with pytest.raises(ValueError, match=reason):
            dual_way(**settings)

    def test_machines_whose_ranks_are_not_consecutive_are_refused_on_every_rank(self):
        def worker(engine):
            engine.local_rank, engine.local_size = engine.rank // 2, 2  # round robin
            with pytest.raises(ValueError, match='rank 1 is number 0'):
                Hierarchical(AllGather()).check(engine)
            return True

        assert all(dgc.simulate(4, worker))


class TestAFailedStep:
    """One rank's bucket raises: its later buckets must not meet other ranks' collectives."""

    def test_later_buckets_of_the_rank_make_no_calls(self):
        class Broken(TopK):
            def select(self, corrected, density):
                raise MemoryError('no memory for a bucket')

        named = parameters({**SHAPES, 'last.weight': (8, 8)})
        optimizer = wrap(named, exact(compressor=Broken()))
        assert len(optimizer.buckets) > 2
        calls = []
        optimizer.engine.all_gather = calls.append
        loss(named, 0, 0).backward()
        with pytest.raises(MemoryError):
            optimizer.step()
        assert calls == []

    @pytest.mark.parametrize('error', [MemoryError, EngineError])
    def test_with_skip_the_optimizer_goes_on(self, error):
        failures = [error('once')]

        class OnceBroken(TopK):
            def select(self, corrected, density):
                if failures:
                    raise failures.pop()
                return super().select(corrected, density)

        named, others = parameters(), parameters()
        optimizer = wrap(named, exact(compressor=OnceBroken(), nonfinite='skip'))
        loss(named, 0, 0).backward()
        with pytest.raises(error):
            optimizer.step()
        train(optimizer, named, 3)
        undisturbed = wrap(others, exact(nonfinite='skip'))
        train(undisturbed, others, 3)
        assert all(map(torch.equal, values(named), values(others)))


class TestPhasesOfOneBitAdam:
    def test_a_skipped_step_of_the_warm_up_moves_both_sides_or_none(self):
        """The optimizer takes a gradient for a gradient and a momentum for a momentum."""
        named = parameters()
        composition = replace(one_bit_adam(freeze_step=3), nonfinite='skip')
        optimizer = wrap(named, composition)
        for step in range(6):
            optimizer.zero_grad()
            scale = torch.inf if step == 1 else 1.0
            (scale * loss(named, 0, step)).backward()
            optimizer.step()
            if step != 1:
                (sends,) = {group['sends_momentum'] for group in optimizer.param_groups}
                assert sends == (step >= 3)
        steps = {state['step'] for state in optimizer.state.values()}
        assert steps == {2}  # of three steps of the warm-up, one was skipped
        assert all(state['is_frozen'] for state in optimizer.state.values())

    @pytest.mark.parametrize('planner', [None, Whole()])
    def test_what_had_no_gradient_in_the_warm_up_is_not_divided_by_epsilon(self, planner):
        """Its first gradient comes later; or it never comes, and what it decodes is a scale."""
        shapes = {'used': (16, 10), 'late': (16, 10), 'never': (16, 10)}
        named = parameters(shapes)
        optimizer = wrap(named, one_bit_adam(freeze_step=3, planner=planner), lr=0.01)
        before = values(named)
        for step in range(8):
            optimizer.zero_grad()
            of_used = loss(named[:1], 0, step)
            rest = sum((p * (step > 4)).sum() for _, p in named[1:2]) + (named[2][1] * 0).sum()
            (of_used + rest).backward()
            optimizer.step()
        moved = [float((a - b).abs().max()) for a, b in zip(values(named), before, strict=True)]
        assert 0.01 < moved[0] < 1 and moved[1:] == [0, 0]

    def test_a_frozen_denominator_follows_what_is_loaded_or_written(self):
        """It is kept, since v stays: but for another v, which a checkpoint or a program brings."""
        named, others = parameters(), parameters()
        first, second = (OneBitAdam([p for _, p in each], lr=0.1) for each in (named, others))
        for optimizer, each in ((first, named), (second, others)):
            for step in range(4):
                optimizer.param_groups[0]['sends_momentum'] = step >= 2
                optimizer.zero_grad()
                loss(each, 0, step + (each is others)).backward()  # other gradients, so another v
                optimizer.step()
        with torch.no_grad():
            for (_, ours), (_, theirs) in zip(named, others, strict=True):
                theirs.copy_(ours)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for _ in range(2):
            for optimizer, each in ((first, named), (second, others)):
                optimizer.zero_grad()
                loss(each, 0, 7).backward()
                optimizer.step()
                for state in optimizer.state.values():
                    state['exp_avg_sq'].mul_(2)
            assert all(map(torch.equal, values(named), values(others)))
        (_, weight), before = named[0], values(named)[0]
        state = first.state[weight]
        denominator = state['exp_avg_sq'].sqrt() / (1 - 0.999 ** state['step']) ** 0.5 + 1e-8
        first.step()
        expected = before - 0.1 / (1 - 0.9 ** state['step']) * weight.grad / denominator
        torch.testing.assert_close(weight.detach(), expected)


class TestFinalSigns:
    def test_a_sum_that_overflows_is_seen_before_the_sign_hides_it(self):
        def worker(engine):
            named = parameters({'wide.weight': (16, 16)})
            optimizer = wrap(named, demo(topk=4, chunk=8, nonfinite='skip'), engine, lr=1.0)
            before = values(named)
            (named[0][1] * 2e38).sum().backward()
            optimizer.step()
            return all(map(torch.equal, values(named), before))

        assert all(dgc.simulate(4, worker))


class TestSavedStates:
    def test_a_state_of_another_world_size_is_refused_without_merging(self):
        saved = dgc.simulate(2, lambda engine: wrap(parameters(), exact(), engine).state_dict())
        with pytest.raises(ValueError, match='that of rank 0 of 2, and there are 1 ranks here'):
            wrap(parameters(), exact()).load_state_dict(saved[0])

    def test_a_state_of_an_earlier_version_keeps_its_residuals(self):
        named = parameters()
        optimizer = wrap(named, dgc.deep_gradient_compression(0.05))
        train(optimizer, named, 3)
        memory = optimizer.reducer.state_dict()['memory']
        earlier = {'memory': memory, 'compressor': {'calls': 5}, 'exchange': {}}
        fresh = wrap(parameters(), dgc.deep_gradient_compression(0.05))
        restore([bucket.state for bucket in fresh.buckets], earlier, 1, {})
        after = fresh.reducer.state_dict()['memory']
        for name, entries in memory.items():
            for entry, tensor in entries.items():
                assert torch.equal(after[name][entry], tensor)

    def test_outer_settings_are_those_of_the_run_that_resumes(self):
        def local_steps(lr):
            named = parameters()
            moved = [p for _, p in named]
            outer = torch.optim.SGD(moved, lr, momentum=0.9)
            return dgc.LocalSteps(torch.optim.SGD(moved, 0.1), outer, named, every=2)

        resumed = local_steps(0.5)
        resumed.load_state_dict(local_steps(0.7).state_dict())
        assert resumed.outer.param_groups[0]['lr'] == 0.5

    def test_buckets_that_are_never_compressed_keep_no_state_of_an_exchange(self):
        named = parameters()
        optimizer = wrap(named, replace(exact(), schedule=DensitySchedule()))
        assert all(not bucket.state['exchange'] for bucket in optimizer.buckets)


@pytest.mark.parametrize('make', [dgc.dense, dgc.deep_gradient_compression])
def test_ten_thousand_small_parameters_are_wrapped_in_linear_time(make):
    """docs/failures.md, row 12: 2,000 parameters took 0.65 s of processor time, 10,000 took 16."""
    seconds = []
    for count in (1000, 10_000):
        named = [(f'w{n}', torch.nn.Parameter(torch.ones(4, 4))) for n in range(count)]
        inner = dgc.DGCSGD([p for _, p in named], lr=0.1)
        start = time.process_time()
        dgc.DistributedOptimizer(inner, named, make(planner=BySize()), LocalEngine())
        seconds.append(time.process_time() - start)
    assert seconds[1] < 35 * seconds[0]  # 100 where the time is quadratic
