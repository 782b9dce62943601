from collections.abc import Sequence

import pytest
import torch
from dgc_helpers import bucket_of, keep_count
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.codec import Codec
from dgc.engines import LocalEngine
from dgc.exchanges import AllGather, AllReduce
from dgc.sparse import Sparse, empty_message

NUMEL = 40


def messages_of(workers: int, counts: list[int], seed: int = 0) -> list[Sparse]:
    """One message a worker, of so many elements at random places."""
    draw = torch.Generator().manual_seed(seed)
    return [
        Sparse(
            torch.randn(count, generator=draw),
            torch.randperm(NUMEL, generator=draw)[:count].sort().values,
            NUMEL,
        )
        for count in counts[:workers]
    ]


def total_of(parts: Sequence[Sparse]) -> torch.Tensor:
    """Their sum, added in their order."""
    total = parts[0].to_dense()
    for part in parts[1:]:
        part.add_to(total)
    return total


def exchange(exchange, messages, codec=None, ratio=0.25):
    """What every worker gets: its total, what it was left with, and its bytes."""

    def worker(engine):
        bucket = bucket_of(torch.zeros(NUMEL), ratio=ratio)
        message = messages[engine.rank]
        if message.is_dense:
            message = message._replace(values=bucket.hold(message.values))
        parts, left_out, _ = exchange.sum(bucket, message, codec or Codec(), engine)
        return total_of(parts), left_out, engine.traffic.sent

    return dgc.simulate(len(messages), worker)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 10), min_size=1, max_size=5), st.integers(0, 99))
@pytest.mark.parametrize('values', ['fp32', 'fp16', 'bf16'])
def test_all_gather_sums_what_it_does_not_leave_out_bit_for_bit_alike(values, counts, seed):
    messages = messages_of(5, counts, seed)
    results = exchange(AllGather(), messages, Codec(values, 'int32'))
    everything = sum(message.to_dense() for message in messages)
    left_out = sum(result[1].to_dense() for result in results)
    for total, _, _ in results:
        assert torch.equal(total, results[0][0])
        torch.testing.assert_close(total + left_out, everything, rtol=1e-6, atol=1e-6)
    if values == 'fp32':
        assert not left_out.any()


def test_all_gather_sums_in_the_order_of_the_ranks():
    """In any other order, these do not come to zero."""
    numbers = [1e8, 1.0, -1e8]
    messages = [Sparse(torch.tensor([v]), torch.tensor([3]), NUMEL) for v in numbers]
    for total, _, _ in exchange(AllGather(), messages):
        assert total[3] == 0


def test_lengths_may_differ_between_workers():
    """pytorch#156627: rank 0 keeps 3, rank 1 keeps 5."""
    messages = messages_of(2, [3, 5])
    for total, _, _ in exchange(AllGather(), messages):
        assert torch.equal(total, messages[0].to_dense() + messages[1].to_dense())


def test_workers_may_have_nothing_to_send():
    """grace#16, pytorch#85234: an empty message is legal, and no collective sees 0 elements."""
    messages = [empty_message(NUMEL), *messages_of(1, [4]), empty_message(NUMEL)]
    for total, _, _ in exchange(AllGather(), messages):
        assert torch.equal(total, messages[1].to_dense())
    for total, _, _ in exchange(AllGather(), [empty_message(NUMEL), empty_message(NUMEL)]):
        assert not total.any()


def test_what_two_workers_send_to_one_index_is_added():
    """pytorch#33798."""
    messages = [Sparse(torch.tensor([v]), torch.tensor([7]), NUMEL) for v in (1.5, 2.0)]
    for total, _, _ in exchange(AllGather(), messages):
        assert total[7] == 3.5
        assert total.count_nonzero() == 1


def test_a_bucket_in_bfloat16_is_summed_in_float32():
    bucket = bucket_of(torch.zeros(NUMEL, dtype=torch.bfloat16), ratio=0.25)
    message = messages_of(1, [5])[0]
    total = total_of(AllGather().sum(bucket, message, Codec(), LocalEngine()).parts)
    assert total.dtype == torch.float32
    assert torch.equal(total, message.to_dense())


@pytest.mark.parametrize('workers', [1, 2, 3, 5, 8])
@pytest.mark.parametrize('types', [('fp32', 'int64'), ('fp16', 'int32')])
def test_bytes_are_the_closed_form(workers, types):
    codec, k = Codec(*types), keep_count(NUMEL, 0.25)
    for counts in ([k] * workers, [0] * workers):
        for _, _, sent in exchange(AllGather(), messages_of(workers, counts), codec):
            assert sent == (workers - 1) * codec.capacity(NUMEL, k)
            assert sent == AllGather().bytes_sent(NUMEL, k, codec, workers)
    dense = [Sparse(torch.ones(NUMEL), None, NUMEL)] * workers
    for _, _, sent in exchange(AllReduce(), [m._replace(values=m.values.clone()) for m in dense]):
        assert sent == round(2 * (workers - 1) / workers * 4 * NUMEL)
        assert sent == round(AllReduce().bytes_sent(NUMEL, NUMEL, codec, workers))


def test_all_reduce_leaves_nothing_out():
    dense = [Sparse(torch.full((NUMEL,), float(rank)), None, NUMEL) for rank in range(4)]
    for total, left_out, _ in exchange(AllReduce(), dense):
        assert torch.equal(total, torch.full((NUMEL,), 6.0))
        assert left_out is None


def test_all_reduce_refuses_sparse_messages_and_all_gather_dense_ones():
    with pytest.raises(ValueError, match='all-reduce sums dense messages'):
        exchange(AllReduce(), messages_of(1, [3]))
    with pytest.raises(ValueError, match='all-reduce it instead'):
        exchange(AllGather(), [Sparse(torch.ones(NUMEL), None, NUMEL)])
