import weakref

import pytest
import torch
from dgc_helpers import exact, parameters, plan_buckets
from torch.nn import Parameter

from dgc import ops
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.memory import Residual
from dgc.schedule import DensitySchedule
from dgc.sparse import Sparse
from dgc.state import Elements, Values
from dgc.wiring import spec_of

SPARSE = DensitySchedule(0.01)


def bucket_of(named, schedule=None, buffers=(), groups=None) -> Bucket:
    """These parameters in one bucket, with these tensors of a memory."""
    named = list(named)
    groups = groups or [{}] * len(named)
    live = [(name, p, group) for (name, p), group in zip(named, groups, strict=True)]
    spec = BucketSpec.of(map(spec_of, live), schedule)
    parts = {'memory': {name: Elements() for name in buffers}}
    return Bucket(spec, [(p, group) for _, p, group in live], parts)


def two() -> Bucket:
    """A matrix and a vector in one bucket, with two buffers."""
    named = [('w', Parameter(torch.zeros(2, 3))), ('b', Parameter(torch.zeros(4)))]
    return bucket_of(named, buffers=('momentum', 'velocity'))


def dense(values):
    return Sparse(values, None, len(values))


def collect_all(bucket):
    for member in bucket.members:
        bucket.collect(member)


class TestStorage:
    def test_gradients_that_share_a_bucket_become_views_of_it(self):
        bucket = two()
        collect_all(bucket)
        weight, bias = (member.parameter for member in bucket.members)
        assert weight.grad is None and bias.grad is None
        bucket.assign([dense(torch.arange(10.0))], divisor=1)
        bucket.publish()
        assert weight.grad.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert bias.grad.tolist() == [6, 7, 8, 9]
        weight.grad[1, 2] = 50
        assert bucket.gradient[5] == 50

    def test_a_view_that_the_loop_has_kept_is_not_overwritten_before_it_is_collected(self):
        bucket = two()
        collect_all(bucket)
        bucket.assign([dense(torch.arange(10.0))], divisor=1)
        bucket.publish()
        first, second = bucket.members
        first.parameter.grad = torch.ones(2, 3)
        for member in (first, second):
            bucket.collect(member)
        bucket.total.fill_(5)
        assert second.parameter.grad.tolist() == [6, 7, 8, 9]

    def test_a_gradient_that_is_alone_is_read_and_gets_sparse_results_without_a_copy(self):
        parameter = Parameter(torch.zeros(2, 3))
        bucket = bucket_of([('w', parameter)])
        for _ in range(3):
            (2 * parameter).sum().backward()
            storage = parameter.grad.data_ptr()
            collect_all(bucket)
            assert parameter.grad.data_ptr() == bucket.contribution.data_ptr() == storage
            assert bucket.contribution.tolist() == [2.0] * 6
            bucket.assign([Sparse(torch.ones(1), torch.tensor([4]), 6)], divisor=1)
            assert parameter.grad.tolist() == [[2.0] * 3] * 2
            bucket.publish()
            assert parameter.grad.data_ptr() == storage
            assert parameter.grad.tolist() == [[0, 0, 0], [0, 1, 0]]
            bucket.zero()

    @pytest.mark.parametrize('in_place', [True, False])
    def test_several_backward_passes_add_up(self, in_place):
        bucket = two()
        bucket.zero(set_to_none=not in_place)
        for _ in range(2):
            sum(member.parameter.sum() for member in bucket.members).backward()
            collect_all(bucket)
        assert bucket.gradient.tolist() == [2.0] * 10

    @pytest.mark.filterwarnings('ignore:Using backward')  # of torch's own leak, without zero_grad
    def test_a_backward_pass_that_can_be_differentiated_keeps_no_graph(self):
        bucket = two()
        for _ in range(3):
            bucket.zero()
            sum(m.parameter.pow(2).sum() for m in bucket.members).backward(create_graph=True)
            collect_all(bucket)
            assert not bucket.gradient.requires_grad
            assert not any(piece.requires_grad for piece in bucket.pieces)

    def test_a_gradient_that_did_not_come_is_zero(self):
        for bucket in (two(), bucket_of([('w', Parameter(torch.zeros(2)))])):
            bucket.gradient.fill_(7)
            collect_all(bucket)
            assert not bucket.gradient.any()
            assert bucket.unused == set(bucket.spec.names)
            assert all(member.parameter.grad is None for member in bucket.members)

    @pytest.mark.parametrize('elsewhere', [torch.ones(2, 3), torch.ones(3, 2).t()])
    def test_a_gradient_from_elsewhere_is_brought_back(self, elsewhere):
        bucket = two()
        member = bucket.members[0]
        member.parameter.grad = elsewhere
        bucket.collect(member)
        assert bucket.gradient.tolist() == [1.0] * 6 + [0.0] * 4
        assert member.parameter.grad is elsewhere
        bucket.publish()
        assert member.parameter.grad.data_ptr() == bucket.gradient.data_ptr()

    def test_a_sparse_gradient_of_an_embedding_is_brought_back(self):
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        bucket = bucket_of(embedding.named_parameters())
        embedding(torch.tensor([3, 1, 3])).sum().backward()
        bucket.collect(bucket.members[0])
        assert bucket.gradient.tolist() == [0, 0, 1, 1, 0, 0, 2, 2]

    def test_views_follow_the_logical_order_of_a_channels_last_parameter(self):
        values = torch.arange(24.0).view(2, 3, 2, 2)
        parameter = Parameter(values.to(memory_format=torch.channels_last))
        bucket = bucket_of([('w', parameter)])
        parameter.grad = (parameter.detach() * 2).to(memory_format=torch.channels_last)
        bucket.collect(bucket.members[0])
        assert bucket.gradient.tolist() == (2 * values).flatten().tolist()

    def test_zero_releases_gradients_or_zeroes_them_wherever_they_lie(self):
        bucket = two()
        elsewhere = bucket.members[0].parameter.grad = torch.ones(2, 3)
        bucket.zero(set_to_none=False)
        assert not elsewhere.any()
        bucket.zero()
        assert all(member.parameter.grad is None for member in bucket.members)

    @pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
    def test_sums_and_buffers_are_float32_whatever_the_gradient_is(self, dtype):
        parameter = Parameter(torch.zeros(2, 2, dtype=dtype))
        bucket = bucket_of([('w', parameter)], buffers=('residual',))
        assert bucket.gradient.dtype == dtype
        assert bucket.total.dtype == bucket.buffers['residual'].dtype == torch.float32
        total = bucket.copy_to_total(torch.tensor([3.0, 6.0, 9.0, 12.0]))
        bucket.assign([Sparse(total, None, 4)], divisor=3)
        assert bucket.gradient.tolist() == [1, 2, 3, 4]
        parts = [Sparse(torch.tensor([v]), torch.tensor([2]), 4) for v in (4.0, 2.0)]
        bucket.assign(parts, divisor=2)
        assert bucket.gradient.tolist() == [0, 0, 3, 0]

    def test_a_bucket_is_named_by_its_first_parameter(self):
        assert two().name == 'w and 1 more'
        assert bucket_of([('w', Parameter(torch.zeros(1)))]).name == 'w'


def lending(dtype=torch.float32) -> Bucket:
    """The same two parameters where a step may be sparse, with gradients that autograd made."""
    named = [('w', Parameter(torch.zeros(2, 3, dtype=dtype))),
             ('b', Parameter(torch.zeros(4, dtype=dtype)))]  # fmt: skip
    bucket = bucket_of(named, SPARSE)
    (2 * named[0][1].sum() + 3 * named[1][1].sum()).backward()
    return bucket


def addresses(bucket):
    return [member.parameter.grad.data_ptr() for member in bucket.members]


@pytest.mark.skipif(
    not ops.is_native(torch.device('cpu')), reason='only compiled kernels read pieces'
)
class TestLending:
    """Gradients that share a bucket which may be compressed."""

    def test_they_stay_where_they_are(self):
        bucket = lending()
        before = addresses(bucket)
        collect_all(bucket)
        assert [piece.data_ptr() for piece in bucket.pieces] == addresses(bucket) == before
        assert torch.cat(bucket.pieces).tolist() == [2.0] * 6 + [3.0] * 4
        assert {name: g.shape for name, g in bucket.gradients()} == {'w': (2, 3), 'b': (4,)}

    @pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
    def test_the_mean_of_sparse_messages_is_written_there(self, dtype):
        bucket = lending(dtype)
        before = addresses(bucket)
        collect_all(bucket)
        parts = [Sparse(torch.tensor([v, v]), torch.tensor([5, 6]), 10) for v in (4.0, 2.0)]
        bucket.assign(parts, divisor=2)
        weight, bias = (member.parameter.grad for member in bucket.members)
        assert weight.tolist() == [[2.0] * 3] * 2 and bias.tolist() == [3.0] * 4
        bucket.publish()
        assert weight.tolist() == [[0, 0, 0], [0, 0, 3]]
        assert bias.tolist() == [3, 0, 0, 0]
        assert addresses(bucket) == before

    @pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
    def test_a_dense_sum_has_them_brought_together(self, dtype):
        bucket = lending(dtype)
        collect_all(bucket)
        assert bucket.gradient.tolist() == [2.0] * 6 + [3.0] * 4
        size = bucket.gradient.element_size()
        assert [piece.data_ptr() for piece in bucket.pieces] == [bucket.gradient.data_ptr()]
        bucket.assign([Sparse(bucket.copy_to_total(torch.arange(10.0)), None, 10)], divisor=2)
        assert bucket.members[1].parameter.grad.tolist() == [3.0] * 4
        bucket.publish()
        assert addresses(bucket) == [bucket.gradient.data_ptr() + at * size for at in (0, 6)]
        assert bucket.members[1].parameter.grad.tolist() == [3, 3.5, 4, 4.5]

    def test_where_they_were_brought_together_is_given_up_when_all_lend_again(self):
        bucket = lending()
        collect_all(bucket)
        own = weakref.ref(bucket.gradient)
        parts = [Sparse(torch.ones(1), torch.tensor([1]), 10)]
        bucket.assign(parts, divisor=1)
        bucket.publish()
        bucket.zero()
        assert own() is bucket.gradient
        (bucket.members[0].parameter.sum() + bucket.members[1].parameter.sum()).backward()
        collect_all(bucket)
        bucket.assign(parts, divisor=1)
        bucket.publish()
        assert own() is None
        assert [m.parameter.grad.sum() for m in bucket.members] == [1, 0]

    @pytest.mark.parametrize('other', [None, torch.ones(3, 2).t(), torch.eye(2, 3).to_sparse()])
    def test_beside_one_that_cannot_be_lent(self, other):
        bucket = lending()
        first, second = bucket.members
        first.parameter.grad = other
        lent = second.parameter.grad.data_ptr()
        collect_all(bucket)
        expected = torch.zeros(2, 3) if other is None else other.to_dense()
        assert torch.cat(bucket.pieces).tolist() == [*expected.flatten().tolist(), 3, 3, 3, 3]
        assert bucket.pieces[1].data_ptr() == lent
        bucket.assign([Sparse(torch.ones(2), torch.tensor([2, 9]), 10)], divisor=1)
        bucket.publish()
        result = first.parameter.grad
        assert result.is_sparse == (other is not None and other.is_sparse)
        assert result.to_dense().tolist() == [[0, 0, 1], [0, 0, 0]]
        assert second.parameter.grad.tolist() == [0, 0, 0, 1]

    @pytest.mark.parametrize('in_place', [True, False])
    def test_several_backward_passes_add_up(self, in_place):
        bucket = lending()
        collect_all(bucket)
        bucket.zero(set_to_none=not in_place)
        for _ in range(2):
            sum(member.parameter.sum() for member in bucket.members).backward()
            collect_all(bucket)
        assert torch.cat(bucket.pieces).tolist() == [2.0] * 10

    def test_one_that_was_lent_and_cannot_be_any_more_is_copied(self):
        weight = Parameter(torch.zeros(2, 3))
        bucket = bucket_of([('w', weight)], SPARSE)
        weight.grad = torch.ones(2, 3)
        collect_all(bucket)
        weight.grad = torch.full((2, 3), 2.0)
        other = weight.grad.detach()
        collect_all(bucket)
        assert torch.cat(bucket.pieces).tolist() == [2.0] * 6
        bucket.pieces[0].zero_()
        assert other.tolist() == [[2.0] * 3] * 2

    def test_nothing_is_held_once_they_are_released(self):
        bucket = lending()
        collect_all(bucket)
        ours = [member.parameter.grad.detach() for member in bucket.members]
        bucket.zero()
        assert all(ops.is_sole(each) for each in ours)

    def test_one_that_another_tensor_shares_is_copied(self):
        bucket = lending()
        first, second = (member.parameter.grad for member in bucket.members)
        theirs = first[1]
        collect_all(bucket)
        bucket.assign([Sparse(torch.ones(1), torch.tensor([3]), 10)], divisor=1)
        bucket.publish()
        assert theirs.tolist() == [2.0] * 3
        assert bucket.members[0].parameter.grad.tolist() == [[0, 0, 0], [1, 0, 0]]
        assert bucket.pieces[1].data_ptr() == second.data_ptr()

    def test_where_no_kernel_reads_pieces_they_are_copied(self):
        with ops.unfused():
            bucket = lending()
            collect_all(bucket)
            assert len(bucket.pieces) == 1
        assert bucket.pieces[0].data_ptr() == bucket.gradient.data_ptr()


def released(bucket):
    bucket.zero()
    return [None] * len(bucket.members)


def zeroed(bucket):
    bucket.zero(set_to_none=False)
    return [member.parameter.grad for member in bucket.members]


class TestPublishing:
    """docs/failures.md, row 11: ``publish`` alone writes results to ``.grad``."""

    @pytest.mark.parametrize('make', [two, lambda: lending()], ids=['copied', 'lent'])
    @pytest.mark.parametrize('is_dense', [True, False])
    @pytest.mark.parametrize('prepare', [released, zeroed])
    def test_what_is_written_to_the_gradients_before_does_not_reach_the_result(
        self, make, is_dense, prepare
    ):
        bucket, result = make(), torch.arange(10.0)
        for step in range(3):
            prepare(bucket)
            sum(member.parameter.sum() for member in bucket.members).backward()
            collect_all(bucket)
            total = bucket.copy_to_total(result) if is_dense else result
            indices = None if is_dense else torch.arange(10)
            bucket.assign([Sparse(total, indices, 10)], divisor=1)
            for member in bucket.members:
                member.parameter.grad.data.fill_(step + 100)
            assert bucket.touched() == []
            bucket.publish()
            found = torch.cat([member.parameter.grad.flatten() for member in bucket.members])
            assert torch.equal(found, result)

    @pytest.mark.parametrize('make', [two, lambda: lending()], ids=['copied', 'lent'])
    def test_changes_that_show_are_noted(self, make):
        bucket = make()
        bucket.zero()
        sum(member.parameter.sum() for member in bucket.members).backward()
        collect_all(bucket)
        bucket.assign([Sparse(torch.ones(1), torch.tensor([1]), 10)], divisor=1)
        bucket.members[1].parameter.grad.mul_(2)
        bucket.publish()
        bucket.members[0].parameter.grad.mul_(2)
        assert bucket.touched() == ['b']


class TestHyperparameters:
    def test_they_follow_the_optimizers_group(self):
        group = {'momentum': 0.5, 'nesterov': True}
        bucket = bucket_of([('w', Parameter(torch.zeros(1)))], groups=[group])
        assert (bucket.momentum, bucket.nesterov) == (0.5, True)
        group |= {'momentum': 0.25}
        assert bucket.momentum == 0.25

    def test_an_optimizer_without_momentum_has_none(self):
        assert (two().momentum, two().nesterov) == (0.0, False)

    def test_they_may_not_differ_inside_a_bucket(self):
        named = [(name, Parameter(torch.zeros(1))) for name in ('0.1', '0.9')]
        bucket = bucket_of(named, groups=[{'momentum': 0.1}, {'momentum': 0.9}])
        with pytest.raises(
            ValueError, match=r'momentum differs inside the bucket of 0\.1 and 1 more'
        ):
            _ = bucket.momentum


class TestState:
    """Of a memory. For the other kinds of entries see test_state.py."""

    def test_it_is_kept_by_parameter_so_that_plans_may_change(self):
        named = parameters()
        saved = {'memory': {}}
        for bucket in plan_buckets(named, exact(memory=Residual())):
            for name, view in bucket.views(bucket.buffers['residual']):
                view.fill_(len(name))
            saved['memory'].update(bucket.state.state_dict()['memory'])
        together = bucket_of(named, buffers=('residual',))
        together.state.load_state_dict(saved, {})
        for name, view in together.views(together.buffers['residual']):
            assert torch.equal(view, torch.full(view.shape, float(len(name))))

    def test_it_is_a_copy(self):
        bucket = two()
        state = bucket.state.state_dict()
        bucket.buffers['momentum'].fill_(1)
        assert not state['memory']['w']['momentum'].any()

    def test_what_was_not_saved_is_zero(self):
        bucket = two()
        bucket.buffers['momentum'].fill_(1)
        bucket.state.load_state_dict({'memory': {'b': {'momentum': torch.full((4,), 2.0)}}}, {})
        assert bucket.buffers['momentum'].tolist() == [0.0] * 6 + [2.0] * 4

    def test_another_shape_is_refused_by_name(self):
        with pytest.raises(ValueError, match=r'velocity of b .* \(5,\).* \(4,\)'):
            two().state.load_state_dict({'memory': {'b': {'velocity': torch.zeros(5)}}}, {})


class TestSnapshot:
    def test_all_state_is_rolled_back_in_place(self):
        bucket = two()
        velocity = bucket.buffers['velocity'].fill_(2)
        snapshot = bucket.state.snapshot()
        velocity.fill_(torch.nan)
        bucket.state.roll_back(snapshot)
        assert bucket.buffers['velocity'] is velocity and velocity.tolist() == [2.0] * 10

    def test_a_snapshot_survives_being_rolled_back_to(self):
        """Two steps in a row may be skipped."""
        parameter = Parameter(torch.zeros(2))
        spec = BucketSpec.of([spec_of(('w', parameter, {}))], SPARSE)
        bucket = Bucket(spec, [(parameter, {})], {'codec': {'draws': Values()}})
        first = bucket.next_seed()
        snapshot = bucket.state.snapshot()
        for _ in range(2):
            second = bucket.next_seed()
            bucket.next_seed()
            bucket.state.roll_back(snapshot)
        assert bucket.next_seed() == second != first


def test_seeds_differ_between_ranks_and_between_buckets_and_go_on_after_a_resume():
    def made(name='w', rank=0):
        parameter = Parameter(torch.zeros(2))
        spec = BucketSpec.of([spec_of((name, parameter, {}))], SPARSE)
        return Bucket(spec, [(parameter, {})], {'codec': {'draws': Values()}}, rank, 2)

    straight, resumed = made(), made()
    seeds = [straight.next_seed() for _ in range(3)]
    resumed.state.load_state_dict({}, straight.state.state_dict()['values'])
    assert resumed.next_seed() == straight.next_seed() not in seeds
    assert len({*seeds, made(rank=1).next_seed(), made('other').next_seed()}) == 5
