"""Exchanges of dense messages and of random positions, against their plain twins.

Plain twins: low_communication_reference.py. All steps use error feedback where the exchange allows
it, with a bucket of two matrices, a vector and a scalar.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import low_communication_reference as reference
import pytest
import torch
from exchange_helpers import bits, record_calls, total_of
from torch import Tensor
from torch.nn import Parameter

import dgc
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.buckets import Bucket
from dgc.codec import Codec, CodecError
from dgc.engines import Engine, LocalEngine
from dgc.exchanges import (
    AllGather,
    CompressedAllReduce,
    Context,
    Exchange,
    Exchanged,
    MajorityVote,
    PowerSGD,
    RandomK,
    RowMeans,
    Scale,
    row_means,
)
from dgc.nonfinite import non_finite_message
from dgc.schedule import DensitySchedule
from dgc.sparse import Payload, Sparse, gather, mean_of_contributors
from dgc.state import Values

WORLD_SIZES = (1, 2, 3, 4, 5)
SHAPES = {'conv': (4, 3, 2, 2), 'bias': (7,), 'weight': (8, 9), 'scale': ()}
NUMEL = sum(map(prod, SHAPES.values()))
K = 9
DENSE_VALUES = ('fp32', 'int8', 'sign', 'qsgd4')


class Row(NamedTuple):
    """An exchange and its codec. is_sum: sums and residuals add up to the inputs."""

    make: Callable[[], Exchange]
    codec: Codec = Codec()
    is_sum: bool = True


def dense(values: str) -> Codec:
    return Codec(values, 'none')


EXCHANGES = {
    **{f'all-gather {v}': Row(AllGather, dense(v)) for v in DENSE_VALUES},
    **{f'compressed all-reduce {v}': Row(CompressedAllReduce, dense(v)) for v in DENSE_VALUES},
    **{f'majority vote {v}': Row(MajorityVote, dense(v), False) for v in DENSE_VALUES},
    'contributors, sparse': Row(lambda: AllGather(Scale.CONTRIBUTORS), is_sum=False),
    'contributors, dense': Row(lambda: AllGather(Scale.CONTRIBUTORS), dense('int8')),
    'PowerSGD rank 1': Row(lambda: PowerSGD(1)),
    'PowerSGD rank 2': Row(lambda: PowerSGD(2)),
    'row means': Row(RowMeans),
    'random-k': Row(RandomK),
    'random-k unbiased': Row(lambda: RandomK(unbiased=True), is_sum=False),
}
every_exchange = pytest.mark.parametrize('row', EXCHANGES)
every_world_size = pytest.mark.parametrize('world_size', WORLD_SIZES)


class Step(NamedTuple):
    """One step of one rank. result: as the reducer scales it. Tensors are float32 ``[n]``."""

    corrected: Tensor
    result: Tensor
    residual: Tensor
    contributions: list[Sparse]
    non_finite: bool
    sent: int


def bucket_of_shapes(
    exchange: Exchange, engine: Engine | None = None, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> Bucket:
    """Parameters of ``shapes``, with the state of the exchange and of the codec."""
    engine = engine or LocalEngine()
    specs = [ParameterSpec(name, shape) for name, shape in shapes.items()]
    spec = BucketSpec.of(specs, DensitySchedule(0.1))
    members = [(Parameter(torch.zeros(shape)), {}) for shape in shapes.values()]
    parts = {'exchange': exchange.state_for(spec), 'codec': {'draws': Values()}}
    return Bucket(spec, members, parts, engine.rank, engine.size)


def message_of(corrected: Tensor, exchange: Exchange, codec: Codec) -> Sparse:
    """All elements; of a sparse message the K largest."""
    if Payload.SPARSE not in exchange.accepts or codec.indices == 'none':
        return Sparse(corrected, None, len(corrected))
    return gather(corrected, corrected.abs().topk(K).indices.sort().values)


def reduce(exchange: Exchange, bucket: Bucket, selected: Sparse, codec: Codec, engine: Engine,
           is_finite: bool = True) -> Exchanged:  # fmt: skip
    """One call of the exchange, with the budget that the reducer gives it."""
    k = min(K, bucket.numel) if exchange.selects or not selected.is_dense else bucket.numel
    return exchange.reduce(selected, Context(bucket, k, codec, engine, is_finite))


def take_step(
    exchange: Exchange, bucket: Bucket, corrected: Tensor, codec: Codec, engine: Engine
) -> Step:
    """One exchange, what the reducer makes of its contributions, and the residual."""
    before, sent_before = corrected.clone(), engine.traffic.sent
    selected = message_of(corrected, exchange, codec)
    exchanged = reduce(exchange, bucket, selected, codec, engine)
    assert torch.equal(bits(corrected), bits(before)), "the message is the memory's own storage"
    contributions = [part._replace(values=part.values.clone()) for part in exchanged.contributions]
    residual, sent = corrected.clone(), exchanged.sent or selected
    if sent.is_dense:
        residual.zero_()
    else:
        residual[sent.indices] = 0
    if exchanged.error is not None:
        exchanged.error.add_to(residual)
    scaled, divisor = exchanged.contributions, 1
    if exchanged.scale is Scale.WORLD_SIZE:
        divisor = engine.size
    elif exchanged.scale is Scale.CONTRIBUTORS:
        scaled = [mean_of_contributors(scaled)]
    bucket.assign(scaled, divisor)
    result, nbytes = bucket.gradient.clone(), engine.traffic.sent - sent_before
    return Step(before, result, residual, contributions, exchanged.non_finite, nbytes)


def gradients_of(world_size: int, steps: int, numel: int = NUMEL) -> list[list[Tensor]]:
    """By step and rank; magnitudes differ by element."""
    generator = torch.Generator().manual_seed(world_size)
    scales = torch.linspace(0.2, 3.0, numel)
    return [
        [scales * torch.randn(numel, generator=generator) for _ in range(world_size)]
        for _ in range(steps)
    ]


def train(
    row: Row,
    gradients: Sequence[Sequence[Tensor]],
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    feeds_back: bool = True,
) -> tuple[list[list[Step]], list[Bucket]]:
    """By step and rank, in one simulation; and the buckets, by rank."""

    def worker(engine):
        exchange = row.make()
        bucket = bucket_of_shapes(exchange, engine, shapes)
        residual, steps = torch.zeros(bucket.numel), []
        for of_ranks in gradients:
            corrected = of_ranks[engine.rank] + residual
            steps.append(take_step(exchange, bucket, corrected, row.codec, engine))
            if feeds_back:
                residual = steps[-1].residual
        return steps, bucket

    steps, buckets = zip(*dgc.simulate(len(gradients[0]), worker), strict=True)
    return [list(of_ranks) for of_ranks in zip(*steps, strict=True)], list(buckets)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


class TestEveryExchange:
    @every_world_size
    @every_exchange
    def test_all_ranks_have_the_same_result_bit_for_bit(self, row, world_size):
        for step in train(EXCHANGES[row], gradients_of(world_size, 3))[0]:
            for one in step:
                assert torch.equal(one.result, step[0].result)
                pairs = zip(one.contributions, step[0].contributions, strict=True)
                for ours, first in pairs:
                    assert torch.equal(ours.values, first.values)
                assert not one.non_finite

    @every_world_size
    @pytest.mark.parametrize('row', [name for name, row in EXCHANGES.items() if row.is_sum])
    def test_results_and_residuals_add_up_to_the_gradients(self, row, world_size):
        gradients = gradients_of(world_size, 4)
        steps, buckets = train(EXCHANGES[row], gradients)
        given = sum(torch.stack(of_ranks).double().sum(0) for of_ranks in gradients)
        applied = world_size * sum(of_ranks[0].result.double() for of_ranks in steps)
        residuals = sum(one.residual.double() for one in steps[-1])
        for bucket in buckets:  # the owners' errors are in units of the mean
            if 'owner_error' in bucket.state['exchange']:
                begin, end = bucket.state.owned
                residuals[begin:end] += world_size * bucket.state['exchange']['owner_error']
        close(applied + residuals, given)

    @every_world_size
    @every_exchange
    def test_bytes_are_the_closed_form(self, row, world_size):
        exchange, codec = EXCHANGES[row].make(), EXCHANGES[row].codec
        [step], buckets = train(EXCHANGES[row], gradients_of(world_size, 1))
        spec = buckets[0].spec
        is_sparse = Payload.SPARSE in exchange.accepts and codec.indices != 'none'
        k = K if exchange.selects or is_sparse else NUMEL
        closed = exchange.bytes_sent(spec, k, codec, world_size)
        for one in step:
            assert one.sent == pytest.approx(closed, abs=1)  # all-reduces count in whole bytes

    @every_world_size
    @every_exchange
    def test_all_ranks_report_a_non_finite_gradient_of_any_rank(self, row, world_size):
        make, codec, _ = EXCHANGES[row]
        [gradients] = gradients_of(world_size, 1)

        def worker(engine):
            seen = []
            for victim in [*range(world_size), None]:
                exchange = make()
                bucket = bucket_of_shapes(exchange, engine)
                selected = message_of(gradients[engine.rank].clone(), exchange, codec)
                if engine.rank == victim:
                    payload = Payload.DENSE if selected.is_dense else Payload.SPARSE
                    selected = non_finite_message(bucket, payload)
                is_finite = engine.rank != victim
                exchanged = reduce(exchange, bucket, selected, codec, engine, is_finite)
                seen.append(exchanged.non_finite)
            return seen

        assert dgc.simulate(world_size, worker) == [[True] * world_size + [False]] * world_size

    @every_exchange
    def test_all_ranks_make_the_same_calls_beside_a_non_finite_one(self, row):
        make, codec, _ = EXCHANGES[row]
        gradients = gradients_of(3, 2)

        def worker(engine):
            log, exchange = [], make()
            record_calls(engine, log)
            bucket = bucket_of_shapes(exchange, engine)
            for step, of_ranks in enumerate(gradients):
                selected = message_of(of_ranks[engine.rank].clone(), exchange, codec)
                is_finite = (engine.rank, step) != (1, 1)
                if not is_finite:
                    payload = Payload.DENSE if selected.is_dense else Payload.SPARSE
                    selected = non_finite_message(bucket, payload)
                reduce(exchange, bucket, selected, codec, engine, is_finite)
            return log

        logs = dgc.simulate(3, worker)
        assert logs[0] == logs[1] == logs[2] != []

    @every_exchange
    def test_the_message_may_lie_in_the_buckets_total(self, row):
        """As without error feedback, where the message is the gradient itself."""
        make, codec, _ = EXCHANGES[row]
        [gradients] = gradients_of(2, 1)

        def worker(engine):
            totals = []
            for in_total in (False, True):
                exchange = make()
                bucket = bucket_of_shapes(exchange, engine)
                gradient = gradients[engine.rank].clone()
                if in_total:
                    gradient = bucket.copy_to_total(gradient)
                selected = message_of(gradient, exchange, codec)
                exchanged = reduce(exchange, bucket, selected, codec, engine)
                totals.append(total_of(exchanged.contributions))
                error = exchanged.error
                totals.append(torch.zeros(NUMEL) if error is None else error.to_dense())
            return totals

        for total, error, total_in_place, error_in_place in dgc.simulate(2, worker):
            assert torch.equal(total, total_in_place)
            assert torch.equal(error, error_in_place)

    @every_exchange
    def test_saved_state_continues_as_without_the_interruption(self, row):
        make, codec, _ = EXCHANGES[row]
        gradients = gradients_of(3, 5)

        def worker(engine):
            exchange, resumed = make(), make()
            bucket, other = (bucket_of_shapes(each, engine) for each in (exchange, resumed))
            for of_ranks in gradients[:3]:
                take_step(exchange, bucket, of_ranks[engine.rank].clone(), codec, engine)
            state = bucket.state.state_dict()
            other.state.load_state_dict(state, state['values'])
            results = []
            for of_ranks in gradients[3:]:
                for each, its_bucket in ((exchange, bucket), (resumed, other)):
                    gradient = of_ranks[engine.rank].clone()
                    results.append(take_step(each, its_bucket, gradient, codec, engine).result)
            return results

        for results in dgc.simulate(3, worker):
            assert torch.equal(results[0], results[1])
            assert torch.equal(results[2], results[3])


class TestAllGatherOfDenseMessages:
    @every_world_size
    @pytest.mark.parametrize('values', ['fp32', 'int8', 'sign'])
    def test_equals_the_plain_twin_over_steps(self, values, world_size):
        gradients = gradients_of(world_size, 3)
        for step in train(EXCHANGES[f'all-gather {values}'], gradients)[0]:
            corrected = [one.corrected for one in step]
            expected = reference.all_gather(corrected, reference.QUANTIZERS[values])
            close(step[0].result, expected.mean)
            for one, residual in zip(step, expected.residuals, strict=True):
                close(one.residual, residual)

    def test_qsgd_is_unbiased_over_steps(self):
        """Each encoding has a seed of its own: the mean of many decoded messages is the message."""
        [[gradient]] = gradients_of(1, 1)
        steps = 1000
        results, _ = train(EXCHANGES['all-gather qsgd4'], [[gradient]] * steps, feeds_back=False)
        mean = sum(of_ranks[0].result.double() for of_ranks in results) / steps
        # A value lies between two levels, a step of max/7 apart: its deviation is at most half.
        tolerance = 5 * 0.5 * float(gradient.abs().max()) / 7 / steps**0.5
        assert float((mean - gradient).abs().max()) < tolerance

    def test_ranks_round_the_same_values_differently(self):
        [[gradient]] = gradients_of(1, 1)
        [step], _ = train(EXCHANGES['all-gather qsgd4'], [[gradient, gradient]])
        first, second = step[0].contributions
        assert not torch.equal(first.values, second.values)


class TestRowMeans:
    @every_world_size
    def test_equals_the_plain_twin_over_steps(self, world_size):
        for step in train(EXCHANGES['row means'], gradients_of(world_size, 3))[0]:
            parts = [
                torch.cat(
                    [
                        reference.row_means(values, shape)
                        for values, shape in zip(
                            one.corrected.split([prod(shape) for shape in SHAPES.values()]),
                            SHAPES.values(),
                            strict=True,
                        )
                    ]
                )
                for one in step
            ]
            close(step[0].result, sum(parts) / world_size)
            for one, part in zip(step, parts, strict=True):
                close(one.residual, one.corrected - part)

    def test_a_row_of_one_sign_has_its_mean_and_zeros_count_as_positive(self):
        spec = BucketSpec.of_shape(3, 2)
        values = torch.tensor([1.0, 3.0, -1.0, -2.0, 0.0, -5.0])
        arrived = row_means.decode(row_means.encode(values, spec), spec)
        assert arrived.tolist() == [2.0, 2.0, -1.5, -1.5, 0.0, -5.0]

    def test_the_largest_floats_do_not_overflow_and_a_nan_stays_in_its_row(self):
        spec = BucketSpec.of_shape(2, 3)
        values = torch.full((6,), torch.finfo(torch.float32).max)
        assert torch.equal(row_means.decode(row_means.encode(values, spec), spec), values)
        values[1] = torch.nan
        arrived = row_means.decode(row_means.encode(values, spec), spec)
        assert arrived.isnan().tolist() == [True] * 3 + [False] * 3

    def test_a_message_of_another_length_is_refused(self):
        spec = BucketSpec.of_shape(2, 3)
        message = row_means.encode(torch.ones(6), spec)
        with pytest.raises(CodecError, match='weight has 17 bytes, received 16'):
            row_means.decode(message[:-1], spec)


class TestMeanOfContributors:
    @every_world_size
    def test_equals_the_plain_twin(self, world_size):
        for step in train(EXCHANGES['contributors, sparse'], gradients_of(world_size, 3))[0]:
            messages = [
                dict(zip(part.indices.tolist(), part.values.tolist(), strict=True))
                for part in step[0].contributions
            ]
            assert [len(message) for message in messages] == [K] * world_size
            close(step[0].result, reference.mean_of_contributors(messages, NUMEL))
            for one in step:
                largest = one.corrected.abs().topk(K).indices
                assert not one.residual[largest].any()
                assert torch.equal(one.residual + one.corrected.where(one.residual == 0, 0.0),
                                   one.corrected)  # fmt: skip

    @every_world_size
    def test_of_dense_messages_it_is_the_mean_over_the_ranks(self, world_size):
        gradients = gradients_of(world_size, 2)
        ours, _ = train(EXCHANGES['contributors, dense'], gradients)
        mean, _ = train(EXCHANGES['all-gather int8'], gradients)
        for step, expected in zip(ours, mean, strict=True):
            assert torch.equal(step[0].result, expected[0].result)


class TestMajorityVote:
    @every_world_size
    @pytest.mark.parametrize('values', ['fp32', 'int8', 'sign'])
    def test_equals_the_plain_twin(self, values, world_size):
        for step in train(EXCHANGES[f'majority vote {values}'], gradients_of(world_size, 3))[0]:
            corrected = [one.corrected for one in step]
            expected = reference.majority_vote(corrected, reference.QUANTIZERS[values])
            assert torch.equal(step[0].result, expected)

    def vote(self, messages, values='sign'):
        shapes = {'weight': (len(messages[0]),)}
        row = EXCHANGES[f'majority vote {values}']
        [step], _ = train(row, [[torch.tensor(each) for each in messages]], shapes)
        assert all(torch.equal(one.result, step[0].result) for one in step)
        return step[0].result.tolist()

    def test_magnitudes_do_not_count(self):
        assert self.vote([[100.0, 1.0], [-1.0, -1.0], [-1.0, 5.0]]) == [-1, 1]

    def test_a_tie_gives_zero(self):
        assert self.vote([[1.0, -2.0], [-3.0, -1.0]]) == [0, -1]

    def test_a_message_of_zeros_does_not_vote(self):
        assert self.vote([[0.0, 0.0], [1.0, -1.0]]) == [1, -1]
        assert self.vote([[0.0, 0.0], [0.0, 0.0]]) == [0, 0]

    def test_a_zero_votes_as_its_coding_rounds_it(self):
        assert self.vote([[0.0, 4.0]], 'fp32') == [0, 1]
        assert self.vote([[0.0, 4.0]], 'sign') == [1, 1]

    def test_it_is_no_estimate_of_the_mean(self):
        assert not MajorityVote().is_estimate
        assert MajorityVote().scale is Scale.NONE

    def test_small_buckets_vote_too(self):
        """Their header alone exceeds an all-reduce, whose mean would be a step of another size."""
        vote, codec, spec = MajorityVote(), dense('sign'), BucketSpec.of_shape(3)
        assert vote.bytes_sent(spec, 3, codec, 2) > 2 * 4 * 3
        assert vote.is_smaller_than_dense(spec, 3, codec, 2)


class TestPowerSGD:
    @every_world_size
    @pytest.mark.parametrize('rank', [1, 2, 3])
    def test_equals_the_plain_twin_over_steps(self, rank, world_size):
        """Result, each rank's own error, and Q up to the signs of its columns."""
        gradients = gradients_of(world_size, 6)
        row = Row(lambda: PowerSGD(rank))
        steps, buckets = train(row, gradients)
        initial = bucket_of_shapes(row.make()).state['exchange']['Q']
        factors = {name: factor.clone() for name, factor in initial.items()}
        low_rank = [name for name, shape in SHAPES.items() if reference.is_low_rank(shape, rank)]
        assert list(factors) == low_rank != []
        residuals = [torch.zeros(NUMEL)] * world_size
        for step, of_ranks in zip(steps, gradients, strict=True):
            corrected = [g + e for g, e in zip(of_ranks, residuals, strict=True)]
            mean, residuals = reference.power_sgd(corrected, SHAPES, factors, rank)
            close(step[0].result, mean)
            for one, residual in zip(step, residuals, strict=True):
                close(one.residual, residual)
        for bucket in buckets:
            for name, factor in bucket.state['exchange']['Q'].items():
                close(factor.abs(), factors[name].abs())
                assert torch.equal(factor, buckets[0].state['exchange']['Q'][name])

    def test_vectors_and_matrices_that_do_not_shrink_are_summed_exactly(self):
        shapes = {'bias': (7,), 'weight': (6, 5), 'scale': (), 'small': (2, 2), 'row': (1, 9)}
        numel = sum(map(prod, shapes.values()))
        gradients = gradients_of(3, 2, numel)
        steps, buckets = train(Row(lambda: PowerSGD(1)), gradients, shapes)
        assert list(buckets[0].state['exchange']['Q']) == ['weight']
        low_rank = torch.zeros(numel, dtype=torch.bool)
        low_rank[7:37] = True
        for step, of_ranks in zip(steps, gradients, strict=True):
            mean = sum(of_ranks) / 3
            close(step[0].result[~low_rank], mean[~low_rank])
            for one in step:
                assert not one.residual[~low_rank].any()
                assert one.residual[low_rank].any()

    def test_a_bucket_of_vectors_alone_is_a_dense_sum(self):
        shapes = {'bias': (7,), 'scale': ()}
        gradients = gradients_of(3, 1, 8)
        [step], buckets = train(Row(PowerSGD), gradients, shapes)
        assert not buckets[0].state['exchange']['Q']
        close(step[0].result, sum(gradients[0]) / 3)
        assert not any(one.residual.any() for one in step)

    @every_world_size
    def test_a_mean_of_low_rank_is_exact_and_the_errors_cancel(self, world_size):
        """Q has more columns than the rank of the mean: P is completed by any orthonormal ones."""
        generator = torch.Generator().manual_seed(7)
        column, row = torch.randn(8, 1, generator=generator), torch.randn(1, 9, generator=generator)
        noise = [torch.randn(8, 9, generator=generator) for _ in range(world_size)]
        mean_noise = sum(noise) / world_size
        matrices = [column @ row + each - mean_noise for each in noise]
        steps, _ = train(
            Row(lambda: PowerSGD(3)), [[each.view(-1) for each in matrices]], {'weight': (8, 9)}
        )
        close(steps[0][0].result, (column @ row).view(-1))
        close(sum(one.residual for one in steps[0]), torch.zeros(72))
        if world_size > 1:
            assert all(one.residual.abs().max() > 0.1 for one in steps[0])

    @pytest.mark.parametrize('first', ['zeros', 'rank 1'])
    def test_it_recovers_from_a_step_that_leaves_columns_of_q_empty(self, first):
        generator = torch.Generator().manual_seed(3)
        column, row = torch.randn(8, 1, generator=generator), torch.randn(1, 9, generator=generator)
        empty = torch.zeros(72) if first == 'zeros' else (column @ row).view(-1)
        factors = torch.randn(8, 2, generator=generator), torch.randn(2, 9, generator=generator)
        later = (factors[0] @ factors[1]).view(-1)
        gradients = [[empty] * 2, *[[later] * 2] * 4]
        row = Row(lambda: PowerSGD(2))
        steps, _ = train(row, gradients, {'weight': (8, 9)}, feeds_back=False)
        close(steps[0][0].result, empty)
        close(steps[-1][0].result, later)

    def test_q_of_a_step_starts_the_next(self):
        """Subspace iteration on the same matrix approaches the best approximation of this rank."""
        matrix = torch.randn(12, 10, generator=torch.Generator().manual_seed(5))
        row, shapes = Row(lambda: PowerSGD(2)), {'weight': (12, 10)}
        gradients = [[matrix.view(-1)]] * 40
        steps, _ = train(row, gradients, shapes, feeds_back=False)
        errors = [float(of_ranks[0].residual.norm()) for of_ranks in steps]
        best = float(torch.linalg.svdvals(matrix)[2:].norm())
        assert errors[0] > 1.05 * best
        assert errors[-1] == pytest.approx(best, rel=1e-3)
        assert all(later <= before + 1e-4 for before, later in pairwise(errors))

    def test_q_is_the_mean_of_the_ranks_own(self):
        gradients = gradients_of(4, 1, 30)
        steps, buckets = train(Row(lambda: PowerSGD(1)), gradients, {'weight': (6, 5)})
        mean = (sum(gradients[0]) / 4).view(6, 5)
        factor = buckets[0].state['exchange']['Q']['weight']
        approximation = steps[0][0].result.view(6, 5)
        # P has unit columns: the norm of Q is that of P·Qᵀ, and M ᵀP = Q.
        assert float(factor.norm()) == pytest.approx(float(approximation.norm()), rel=1e-4)
        close(approximation.T @ approximation, mean.T @ approximation)

    def test_a_non_finite_step_leaves_q_alone_and_so_does_a_sum_that_overflows(self):
        def worker(engine):
            exchange = PowerSGD(2)
            bucket = bucket_of_shapes(exchange, engine)
            before, seen = copy.deepcopy(bucket.state['exchange']), []
            for value in (torch.nan, 3e38):
                bad = torch.full((NUMEL,), value if engine.rank else 3e38)
                selected = Sparse(bad, None, NUMEL)
                exchanged = reduce(exchange, bucket, selected, Codec(), engine)
                seen.append(exchanged.non_finite)
                for name, factor in bucket.state['exchange']['Q'].items():
                    assert torch.equal(factor, before['Q'][name])
            return seen

        assert dgc.simulate(2, worker) == [[True, True]] * 2

    def test_it_sends_the_factors(self):
        """Of (6, 5) at rank 2: 2·(6 + 5) numbers; of 7: 7."""
        spec = bucket_of_shapes(PowerSGD(2), shapes={'weight': (6, 5), 'bias': (7,)}).spec
        numbers = PowerSGD(2).bytes_sent(spec, 0, Codec(), world_size=2) / 4
        assert numbers == 2 * (6 + 5) + 7


class TestRandomK:
    @every_world_size
    @pytest.mark.parametrize('unbiased', [False, True])
    def test_equals_the_plain_twin_over_steps(self, unbiased, world_size):
        gradients = gradients_of(world_size, 4)
        row = Row(lambda: RandomK(seed=3, unbiased=unbiased))
        for step in train(row, gradients, feeds_back=not unbiased)[0]:
            positions = step[0].contributions[0].indices.tolist()
            corrected = [one.corrected for one in step]
            scale = NUMEL / K if unbiased else 1.0
            expected = reference.random_k(corrected, positions, scale)
            close(step[0].result, expected.mean)
            for one, residual in zip(step, expected.residuals, strict=True):
                assert torch.equal(one.residual, residual)

    def positions(self, make, steps, world_size=1):
        gradients = gradients_of(world_size, steps)
        results, _ = train(Row(make), gradients)
        return [[one.contributions[0].indices.tolist() for one in step] for step in results]

    def test_all_ranks_draw_the_same_k_positions_and_others_at_each_step(self):
        drawn = self.positions(RandomK, 5, world_size=4)
        for of_ranks in drawn:
            assert all(positions == of_ranks[0] for positions in of_ranks)
            assert sorted(set(of_ranks[0])) == of_ranks[0]
            assert len(of_ranks[0]) == K
        assert len({tuple(of_ranks[0]) for of_ranks in drawn}) == 5

    def test_positions_depend_on_the_seed_only(self):
        one, again, other = (self.positions(lambda s=s: RandomK(s), 3) for s in (1, 1, 2))
        assert one == again != other

    def test_every_position_is_drawn_about_equally_often(self):
        steps = 2000
        drawn = torch.tensor(self.positions(RandomK, steps)).view(-1)
        counts = torch.bincount(drawn, minlength=NUMEL).double()
        expected = steps * K / NUMEL
        deviation = (expected * (1 - K / NUMEL)) ** 0.5
        assert float((counts - expected).abs().max()) < 5 * deviation

    def test_the_scaled_result_is_the_mean_gradient_in_expectation(self):
        [gradients] = gradients_of(2, 1)
        mean, steps = sum(gradients).double() / 2, 1000
        row = Row(lambda: RandomK(unbiased=True))
        results, _ = train(row, [gradients] * steps, feeds_back=False)
        average = sum(step[0].result.double() for step in results) / steps
        # Each element is n/k of its value with probability k/n, else 0.
        deviation = mean.abs() * ((NUMEL / K - 1) / steps) ** 0.5
        assert bool(((average - mean).abs() < 5 * deviation + 1e-6).all())

    @pytest.mark.parametrize('victim', [0, 2])
    def test_a_non_finite_rank_is_reported_wherever_the_positions_lie(self, victim):
        """One of 79 positions: element 0, which holds the NaN, is nearly never among them."""

        def worker(engine):
            exchange, missed, seen = RandomK(), 0, []
            bucket = bucket_of_shapes(exchange, engine, {'weight': (79,)})
            for _ in range(20):
                is_finite = engine.rank != victim
                selected = Sparse(torch.ones(79), None, 79)
                if not is_finite:
                    selected = non_finite_message(bucket, Payload.DENSE)
                context = Context(bucket, 1, Codec(), engine, is_finite)
                exchanged = exchange.reduce(selected, context)
                missed += int(exchanged.contributions[0].indices[0]) != 0
                seen.append(exchanged.non_finite)
            return missed, all(seen)

        for missed, seen in dgc.simulate(3, worker):
            assert missed > 10
            assert seen

    def test_all_elements_may_be_drawn(self):
        gradients = gradients_of(3, 1, 5)
        [step], _ = train(Row(lambda: RandomK(unbiased=True)), gradients, {'bias': (5,)})
        close(step[0].result, sum(gradients[0]) / 3)


class TestCompressedAllReduce:
    @every_world_size
    @pytest.mark.parametrize('numel', [1, 3, 12, 79])
    @pytest.mark.parametrize('values', ['fp32', 'int8', 'sign'])
    def test_equals_the_plain_twin_over_steps(self, values, numel, world_size):
        """Both error feedbacks; also with fewer elements than ranks, and uneven slices."""
        gradients = gradients_of(world_size, 5, numel)
        row = EXCHANGES[f'compressed all-reduce {values}']
        steps, buckets = train(row, gradients, {'weight': (numel,)})
        owner_errors = [torch.zeros(len(b.state['exchange']['owner_error'])) for b in buckets]
        residuals = [torch.zeros(numel)] * world_size
        for step, of_ranks in zip(steps, gradients, strict=True):
            corrected = [g + e for g, e in zip(of_ranks, residuals, strict=True)]
            mean, residuals = reference.compressed_all_reduce(
                corrected, owner_errors, reference.QUANTIZERS[values]
            )
            close(step[0].result, mean)
            for one, residual in zip(step, residuals, strict=True):
                close(one.residual, residual)
        for bucket, error in zip(buckets, owner_errors, strict=True):
            close(bucket.state['exchange']['owner_error'], error)
            # A message that was decoded once loses nothing when it is encoded again.
            is_lossy = values != 'fp32' and len(error) > 1 and world_size > 1
            assert error.any() == is_lossy

    def test_the_slices_cover_the_bucket(self):
        def worker(engine):
            return bucket_of_shapes(CompressedAllReduce(), engine, {'weight': (11,)}).state.owned

        assert dgc.simulate(4, worker) == [(0, 2), (2, 5), (5, 8), (8, 11)]

    @every_world_size
    @pytest.mark.parametrize('numel', [1, 3, 12, 79])
    def test_bytes_are_two_messages_of_a_slice_for_each_other_rank(self, numel, world_size):
        codec, longest = dense('sign'), -(-numel // world_size)
        shapes, gradients = {'weight': (numel,)}, gradients_of(world_size, 1, numel)
        [step], buckets = train(Row(CompressedAllReduce, codec), gradients, shapes)
        expected = 2 * (world_size - 1) * codec.capacity(longest, longest)
        assert [one.sent for one in step] == [expected] * world_size
        spec = buckets[0].spec
        assert expected == CompressedAllReduce().bytes_sent(spec, numel, codec, world_size)

    @pytest.mark.parametrize('numel', [3, 79])
    @pytest.mark.parametrize('victim', range(4))
    def test_a_non_finite_step_leaves_the_owners_errors_alone(self, victim, numel):
        codec = dense('int8')
        gradients = gradients_of(4, 2, numel)

        def worker(engine):
            exchange = CompressedAllReduce()
            bucket = bucket_of_shapes(exchange, engine, {'weight': (numel,)})
            first, second = (of_ranks[engine.rank].clone() for of_ranks in gradients)
            take_step(exchange, bucket, first, codec, engine)
            before = bucket.state['exchange']['owner_error'].clone()
            selected = Sparse(second, None, numel)
            if engine.rank == victim:
                selected = non_finite_message(bucket, Payload.DENSE)
            context = Context(bucket, numel, codec, engine, engine.rank != victim)
            exchanged = exchange.reduce(selected, context)
            assert exchanged.non_finite
            return torch.equal(bucket.state['exchange']['owner_error'], before)

        assert all(dgc.simulate(4, worker))

    def test_both_errors_are_bounded_over_many_steps(self):
        """Without feedback of the owner's error, the mean of the results would keep its bias."""
        [gradients] = gradients_of(4, 1)
        steps, _ = train(EXCHANGES['compressed all-reduce sign'], [gradients] * 100)
        average = sum(step[0].result.double() for step in steps) / 100
        mean = sum(gradients).double() / 4
        assert float((average - mean).norm() / mean.norm()) < 0.15
