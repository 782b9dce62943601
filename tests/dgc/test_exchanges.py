import pytest
import torch
from dgc_helpers import bucket_of, keep_count
from exchange_helpers import total_of
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.engines import LocalEngine
from dgc.exchanges import AllGather, AllReduce, Context
from dgc.sparse import Sparse, empty_message

NUMEL = 40


def messages_of(world_size: int, counts: list[int], seed: int = 0) -> list[Sparse]:
    """One message per rank, of ``counts[rank]`` elements at random positions."""
    draw = torch.Generator().manual_seed(seed)
    return [
        Sparse(
            torch.randn(count, generator=draw),
            torch.randperm(NUMEL, generator=draw)[:count].sort().values,
            NUMEL,
        )
        for count in counts[:world_size]
    ]


def exchange(exchange, messages, codec=None, density=0.25):
    """By rank: the sum of the contributions, the error, and the bytes sent."""

    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), density=density)
        message = messages[engine.rank]
        if message.is_dense:
            message = message._replace(values=bucket.copy_to_total(message.values))
        context = Context(bucket, keep_count(NUMEL, density), codec or Codec(), engine)
        exchanged = exchange.reduce(message, context)
        return total_of(exchanged.contributions), exchanged.error, engine.traffic.sent

    return dgc.simulate(len(messages), worker)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 10), min_size=1, max_size=5), st.integers(0, 99))
@pytest.mark.parametrize('values', ['fp32', 'fp16', 'bf16'])
def test_all_gather_sums_alike_and_returns_the_quantization_error(values, counts, seed):
    messages = messages_of(5, counts, seed)
    results = exchange(AllGather(), messages, Codec(values, 'int32'))
    expected = sum(message.to_dense() for message in messages)
    error = sum(result[1].to_dense() for result in results)
    for total, _, _ in results:
        assert torch.equal(total, results[0][0])
        torch.testing.assert_close(total + error, expected, rtol=1e-6, atol=1e-6)
    if values == 'fp32':
        assert not error.any()


def test_all_gather_sums_in_the_order_of_the_ranks():
    """In any other order the sum is not zero."""
    numbers = [1e8, 1.0, -1e8]
    messages = [Sparse(torch.tensor([v]), torch.tensor([3]), NUMEL) for v in numbers]
    for total, _, _ in exchange(AllGather(), messages):
        assert total[3] == 0


def test_lengths_may_differ_between_ranks():
    """pytorch#156627: rank 0 selects 3, rank 1 selects 5."""
    messages = messages_of(2, [3, 5])
    for total, _, _ in exchange(AllGather(), messages):
        assert torch.equal(total, messages[0].to_dense() + messages[1].to_dense())


def test_ranks_may_have_nothing_to_send():
    """grace#16, pytorch#85234: an empty message is legal, and no collective sees 0 elements."""
    messages = [empty_message(NUMEL), *messages_of(1, [4]), empty_message(NUMEL)]
    for total, _, _ in exchange(AllGather(), messages):
        assert torch.equal(total, messages[1].to_dense())
    for total, _, _ in exchange(AllGather(), [empty_message(NUMEL), empty_message(NUMEL)]):
        assert not total.any()


def test_elements_of_two_ranks_at_one_index_are_added():
    """pytorch#33798."""
    messages = [Sparse(torch.tensor([v]), torch.tensor([7]), NUMEL) for v in (1.5, 2.0)]
    for total, _, _ in exchange(AllGather(), messages):
        assert total[7] == 3.5
        assert total.count_nonzero() == 1


def test_a_bucket_in_bfloat16_is_summed_in_float32():
    bucket = bucket_of(torch.zeros(NUMEL, dtype=torch.bfloat16), density=0.25)
    message = messages_of(1, [5])[0]
    context = Context(bucket, 10, Codec(), LocalEngine())
    total = total_of(AllGather().reduce(message, context).contributions)
    assert total.dtype == torch.float32
    assert torch.equal(total, message.to_dense())


@pytest.mark.parametrize('world_size', [1, 2, 3, 5, 8])
@pytest.mark.parametrize('types', [('fp32', 'int64'), ('fp16', 'int32')])
def test_bytes_are_the_closed_form(world_size, types):
    codec, k, spec = Codec(*types), keep_count(NUMEL, 0.25), BucketSpec.of_shape(NUMEL)
    for counts in ([k] * world_size, [0] * world_size):
        for _, _, sent in exchange(AllGather(), messages_of(world_size, counts), codec):
            assert sent == (world_size - 1) * codec.capacity(NUMEL, k)
            assert sent == AllGather().bytes_sent(spec, k, codec, world_size)
    dense = [Sparse(torch.ones(NUMEL), None, NUMEL)] * world_size
    for _, _, sent in exchange(AllReduce(), [m._replace(values=m.values.clone()) for m in dense]):
        assert sent == round(2 * (world_size - 1) / world_size * 4 * NUMEL)
        assert sent == round(AllReduce().bytes_sent(spec, NUMEL, codec, world_size))


def test_all_reduce_has_no_error():
    dense = [Sparse(torch.full((NUMEL,), float(rank)), None, NUMEL) for rank in range(4)]
    for total, error, _ in exchange(AllReduce(), dense):
        assert torch.equal(total, torch.full((NUMEL,), 6.0))
        assert error is None


def test_all_reduce_refuses_sparse_messages_and_all_gather_those_that_its_codec_cannot_write():
    with pytest.raises(ValueError, match='all-reduce sums dense messages'):
        exchange(AllReduce(), messages_of(1, [3]))
    with pytest.raises(ValueError, match='all-reduce it instead'):
        exchange(AllGather(), [Sparse(torch.ones(NUMEL), None, NUMEL)])
    with pytest.raises(ValueError, match="cannot be written with indices='none'"):
        exchange(AllGather(), messages_of(1, [3]), Codec('fp32', 'none'))
