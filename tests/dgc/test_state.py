"""State of parts: saved by parameter name, restored under another division into buckets and at
another world size."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from dgc_helpers import exact, parameters, plan_buckets, train, values, wrap
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

import dgc
import dgc.memory
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.compressors import TopK
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import PerTensor, Whole
from dgc.reducer import Reducer
from dgc.saved_state import merge_states
from dgc.schedule import DensitySchedule
from dgc.state import (
    ROLES,
    Elements,
    OwnedSlice,
    PerParameter,
    Resize,
    Values,
    copied,
    owned_range,
)
from dgc.transforms import BlockDCT, BlockLayout, Identity, Tiles
from dgc.wiring import spec_of

SHAPES = {'a': (3, 4), 'b': (5,), 'c': (), 'd': (2, 3, 2)}
NAMES = list(SHAPES)
TOGETHER = [NAMES]
APART = [[name] for name in NAMES]
MIXED = [['d', 'a'], ['c', 'b']]
DIVISIONS = {'together': TOGETHER, 'apart': APART, 'mixed': MIXED}
RESIZES = [(4, 2), (2, 4), (3, 5), (5, 3), (1, 3), (3, 1)]
every_resize = pytest.mark.parametrize(('old', 'new'), RESIZES)


def factor(member):
    """For matrices only, of another shape than the parameter."""
    if len(member.shape) < 2:
        return None
    draw = torch.Generator().manual_seed(len(member.name) + member.numel)
    return torch.randn(member.shape[0], 2, generator=draw)


PARTS = {
    'memory': {'residual': Elements(), 'momentum': Elements(Resize.REPLICATED)},
    'compressor': {'search': Values(Resize.PER_RANK)},
    'exchange': {
        'owner_error': OwnedSlice(),
        'Q': PerParameter(factor),
        'own': PerParameter(factor, Resize.PER_RANK),
        'draws': Values(Resize.REPLICATED),
        'scratch': Elements(Resize.PER_RANK),
    },
    'codec': {'draws': Values()},
}


def buckets_of(division, rank=0, size=1, shapes=SHAPES, parts=PARTS):
    """Buckets with state of every kind."""
    buckets = []
    for names in division:
        live = [(name, Parameter(torch.zeros(shapes[name])), {}) for name in names]
        spec = BucketSpec.of(map(spec_of, live), DensitySchedule(0.1))
        buckets.append(Bucket(spec, [(p, {}) for _, p, _ in live], parts, rank, size))
    return buckets


def reducer_of(division, rank=0, size=1, **settings):
    """A reducer of such buckets; its engine is not used."""
    buckets = buckets_of(division, rank, size, **settings)
    engine = dgc.engines.LocalEngine()
    engine.rank, engine.size = rank, size
    return Reducer(buckets, exact(memory=Residual()), engine)


def number(name, entry, rank=0):
    """A value that tells parameter, entry and rank apart."""
    return 100.0 * (NAMES.index(name) + 1) + 10 * (sum(map(ord, entry)) % 7) + rank


def filled(reducer, rank=0, replicated=('momentum', 'Q')):
    """The same reducer; every element of state is a number of its own."""
    for bucket in reducer.buckets:
        for entries in bucket.state.values():
            for entry, held in entries.items():
                whose = 0 if entry in replicated else rank
                if entry == 'owner_error':
                    flat = torch.cat([
                        torch.arange(m.parameter.numel()) + number(m.name, entry)
                        for m in bucket.members
                    ])  # fmt: skip
                    held.copy_(flat[slice(*bucket.state.owned)])
                elif isinstance(held, torch.Tensor):
                    for name, view in bucket.views(held):
                        view.view(-1).copy_(torch.arange(view.numel()) + number(name, entry, whose))
                elif entry in ('Q', 'own'):
                    for name, tensor in held.items():
                        tensor.fill_(number(name, entry, whose))
                else:
                    whose = 0 if entry == 'draws' and 'Q' in entries else rank
                    held.update(count=len(bucket.members) + 10 * whose, named=bucket.name)
    return reducer


def by_name(reducer, role, entry):
    """Entry of every parameter that has it, as one tensor each."""
    saved = reducer.state_dict()[role]
    return {name: entries[entry] for name, entries in saved.items() if entry in entries}


class TestByParameterName:
    @pytest.mark.parametrize(
        'entry', ['residual', 'momentum', 'owner_error', 'Q', 'own', 'scratch']
    )
    @pytest.mark.parametrize('later', DIVISIONS.values(), ids=DIVISIONS)
    @pytest.mark.parametrize('earlier', DIVISIONS.values(), ids=DIVISIONS)
    def test_tensors_are_restored_under_any_division_into_buckets(self, earlier, later, entry):
        role = 'memory' if entry in PARTS['memory'] else 'exchange'
        saved = filled(reducer_of(earlier))
        restored = reducer_of(later)
        restored.load_state_dict(saved.state_dict())
        expected, found = by_name(saved, role, entry), by_name(restored, role, entry)
        assert (
            expected.keys() == found.keys() == ({'a', 'd'} if entry in ('Q', 'own') else set(NAMES))
        )
        for name in expected:
            assert torch.equal(found[name], expected[name])
            begins = number(name, entry)
            assert found[name].reshape(-1)[0] == begins

    def test_the_state_is_a_copy_both_ways(self):
        reducer = filled(reducer_of(MIXED))
        saved = reducer.state_dict()
        kept = copied(saved)
        for bucket in reducer.buckets:
            bucket.buffers['residual'].zero_()
            for tensor in bucket.state['exchange']['Q'].values():
                tensor.zero_()
            bucket.state['codec']['draws'].clear()
        assert same(saved, kept)
        reducer.load_state_dict(saved)
        reducer.buckets[0].buffers['residual'].fill_(7)
        reducer.buckets[0].state['compressor']['search']['count'] = -1
        assert same(saved, kept)

    def test_what_was_not_saved_is_initial(self):
        reducer = filled(reducer_of(TOGETHER))
        reducer.load_state_dict({'memory': {}})
        fresh = reducer_of(TOGETHER)
        assert same(reducer.state_dict(), fresh.state_dict())
        assert by_name(fresh, 'exchange', 'Q')['a'].any()  # a random start
        assert torch.equal(
            by_name(fresh, 'exchange', 'Q')['a'], factor(fresh.buckets[0].spec.members[0])
        )

    def test_a_factor_of_another_shape_is_initial(self):
        """As after a change of the rank of a low-rank factor."""
        reducer = reducer_of(TOGETHER)
        reducer.load_state_dict({'memory': {}, 'exchange': {'a': {'Q': torch.ones(3, 9)}}})
        assert same(reducer.state_dict(), reducer_of(TOGETHER).state_dict())

    def test_a_memory_of_another_shape_or_of_another_model_is_refused_by_name(self):
        reducer = reducer_of(TOGETHER)
        with pytest.raises(ValueError, match=r'residual of b .* \(6,\), the parameter has \(5,\)'):
            reducer.load_state_dict({'memory': {'b': {'residual': torch.zeros(6)}}})
        with pytest.raises(ValueError, match='the saved residual of stranger would be lost'):
            reducer.load_state_dict({'memory': {'stranger': {'residual': torch.zeros(6)}}})
        with pytest.raises(ValueError, match='the saved velocity of b would be lost'):
            reducer.load_state_dict({'memory': {'b': {'velocity': torch.zeros(5)}}})

    def test_tensors_are_restored_in_place(self):
        reducer = reducer_of(TOGETHER)
        (bucket,) = reducer.buckets
        before = bucket.buffers['residual'], bucket.state['exchange']['Q']['a']
        reducer.load_state_dict(filled(reducer_of(APART)).state_dict())
        assert bucket.buffers['residual'] is before[0]
        assert bucket.state['exchange']['Q']['a'] is before[1]
        assert before[0].any()

    def test_it_survives_a_file(self, tmp_path):
        saved = filled(reducer_of(MIXED)).state_dict()
        torch.save(saved, tmp_path / 'state.pt')
        loaded = torch.load(tmp_path / 'state.pt', weights_only=True)
        assert same(loaded, saved)
        restored = reducer_of(MIXED)
        restored.load_state_dict(loaded)
        assert same(restored.state_dict(), saved)


class TestValues:
    def test_they_are_restored_for_a_bucket_of_the_same_parameters_only(self):
        saved = filled(reducer_of(MIXED)).state_dict()
        restored = filled(reducer_of([['d', 'a'], ['b', 'c']]), rank=3)
        restored.load_state_dict(saved)
        first, second = (bucket.state for bucket in restored.buckets)
        assert first['compressor']['search'] == {'count': 2, 'named': 'd and 1 more'}
        assert (
            first['codec']['draws']
            == first['exchange']['draws']
            == {
                'count': 2,
                'named': 'd and 1 more',
            }
        )
        assert second['compressor']['search'] == second['codec']['draws'] == {}

    def test_in_any_order_of_the_buckets(self):
        saved = filled(reducer_of(MIXED)).state_dict()
        restored = reducer_of(MIXED[::-1])
        restored.load_state_dict(saved)
        assert restored.buckets[0].state['compressor']['search']['named'] == 'c and 1 more'

    def test_they_are_plain(self):
        saved = filled(reducer_of(MIXED)).state_dict()
        content = [saved['buckets'], saved['resize']]
        assert json.loads(json.dumps(content)) == content
        assert [bucket['parameters'] for bucket in saved['buckets']] == MIXED

    def test_buckets_that_keep_none_are_listed_by_their_parameters(self):
        saved = reducer_of(MIXED, parts={'memory': {'residual': Elements()}}).state_dict()
        meaning = {'memory': 'Residual', 'transform': 'Identity'}
        expected = {'values': {}, 'meaning': meaning}
        assert saved['buckets'] == [{'parameters': names, **expected} for names in MIXED]

    def test_they_are_emptied_in_place(self):
        """A part may hold on to its dictionary for the whole run."""
        reducer = filled(reducer_of(TOGETHER))
        held = reducer.buckets[0].state['compressor']['search']
        reducer.load_state_dict({'memory': {}})
        assert held is reducer.buckets[0].state['compressor']['search'] and held == {}


class TestOwnedSlice:
    @pytest.mark.parametrize('size', [1, 2, 3, 7, 40])
    @pytest.mark.parametrize('numel', [0, 1, 6, 30])
    def test_the_ranks_own_everything_once(self, numel, size):
        ranges = [owned_range(numel, rank, size) for rank in range(size)]
        assert [index for begin, end in ranges for index in range(begin, end)] == list(range(numel))
        assert max(e - b for b, e in ranges) - min(e - b for b, e in ranges) <= 1

    def test_only_the_rank_s_slice_is_stored(self):
        for rank in range(4):
            (bucket,) = buckets_of(TOGETHER, rank, 4)
            begin, end = owned_range(30, rank, 4)
            assert len(bucket.state['exchange']['owner_error']) == end - begin

    def test_it_is_saved_at_its_place_with_zeros_elsewhere(self):
        total = sum(
            torch.cat([flat.view(-1) for flat in by_name(
                filled(reducer_of(TOGETHER, rank, 3)), 'exchange', 'owner_error').values()])
            for rank in range(3)
        )  # fmt: skip
        expected = [n + number(name, 'owner_error') for name in NAMES
                    for n in range(torch.zeros(SHAPES[name]).numel())]  # fmt: skip
        assert total.tolist() == expected


class TestResize:
    """merge_states: what P old ranks saved, for each of Q new ones."""

    @staticmethod
    def saved(old, division=MIXED):
        return [filled(reducer_of(division, rank, old), rank).state_dict() for rank in range(old)]

    @classmethod
    def resumed(cls, old, new, earlier=MIXED, later=APART):
        states, reducers = cls.saved(old, earlier), []
        for rank in range(new):
            reducer = filled(reducer_of(later, rank, new), rank=50)  # to be overwritten
            reducer.load_state_dict(merge_states(states, rank, new))
            reducers.append(reducer)
        return states, reducers

    @every_resize
    @pytest.mark.parametrize('later', DIVISIONS.values(), ids=DIVISIONS)
    def test_the_residuals_weight_in_the_mean_is_conserved(self, old, new, later):
        """Σ residual / P."""
        states, reducers = self.resumed(old, new, later=later)
        for name in NAMES:
            before = sum(state['memory'][name]['residual'].double() for state in states) / old
            now = [by_name(reducer, 'memory', 'residual')[name].double() for reducer in reducers]
            torch.testing.assert_close(sum(now) / new, before, rtol=1e-6, atol=0)

    def test_4_ranks_residuals_are_added_in_pairs_for_2(self):
        states, reducers = self.resumed(4, 2)
        for rank, reducer in enumerate(reducers):
            for name in NAMES:
                pair = [states[each]['memory'][name]['residual'] for each in (rank, rank + 2)]
                found = by_name(reducer, 'memory', 'residual')[name]
                assert torch.equal(found, (pair[0] + pair[1]) * 0.5)

    def test_2_ranks_residuals_are_doubled_for_4_and_the_new_ranks_have_none(self):
        states, reducers = self.resumed(2, 4)
        for name in NAMES:
            found = [by_name(reducer, 'memory', 'residual')[name] for reducer in reducers]
            for rank in (0, 1):
                assert torch.equal(found[rank], 2 * states[rank]['memory'][name]['residual'])
            assert not found[2].any() and not found[3].any()

    @every_resize
    def test_what_is_replicated_is_rank_0s_everywhere(self, old, new):
        states, reducers = self.resumed(old, new)
        for reducer in reducers:
            for role, entry in (('memory', 'momentum'), ('exchange', 'Q')):
                for name, tensor in by_name(reducer, role, entry).items():
                    assert torch.equal(tensor, states[0][role][name][entry])

    @every_resize
    def test_replicated_values_follow_the_bucket(self, old, new):
        _, reducers = self.resumed(old, new, later=[MIXED[1], ['a', 'd']])
        for reducer in reducers:
            same_bucket, other_bucket = (bucket.state['exchange'] for bucket in reducer.buckets)
            assert same_bucket['draws'] == {'count': 2, 'named': 'c and 1 more'}
            assert other_bucket['draws'] == {}

    @every_resize
    def test_what_is_one_ranks_own_starts_anew(self, old, new):
        _, reducers = self.resumed(old, new, later=MIXED)
        for rank, reducer in enumerate(reducers):
            fresh = reducer_of(MIXED, rank, new)
            for entry in ('own', 'scratch'):
                expected = by_name(fresh, 'exchange', entry)
                for name, tensor in by_name(reducer, 'exchange', entry).items():
                    assert torch.equal(tensor, expected[name])
            for bucket in reducer.buckets:
                assert bucket.state['compressor']['search'] == bucket.state['codec']['draws'] == {}

    @pytest.mark.parametrize(('old', 'new'), [*RESIZES, (3, 3), (4, 4)])
    @pytest.mark.parametrize('later', DIVISIONS.values(), ids=DIVISIONS)
    def test_owners_slices_are_cut_anew(self, old, new, later):
        _, reducers = self.resumed(old, new, later=later)
        for rank, reducer in enumerate(reducers):
            expected = filled(reducer_of(later, rank, new))
            for ours, theirs in zip(reducer.buckets, expected.buckets, strict=True):
                one, other = (each.state['exchange']['owner_error'] for each in (ours, theirs))
                assert torch.equal(one, other)

    @pytest.mark.parametrize('size', [1, 3])
    def test_the_same_world_size_changes_nothing(self, size):
        """But slices, which are completed, since buckets may be divided otherwise."""
        states = self.saved(size)
        for rank in range(size):
            merged = merge_states(states, rank, size)
            assert merged.pop('has_all_slices')
            exchange = merged.pop('exchange')
            assert same(merged, {k: v for k, v in states[rank].items() if k != 'exchange'})
            for name, entries in states[rank]['exchange'].items():
                for entry in entries.keys() - {'owner_error'}:
                    assert same(exchange[name][entry], entries[entry])

    def test_one_ranks_slices_are_refused_in_other_buckets(self):
        state, reducer = self.saved(3)[1], reducer_of(MIXED[::-1], 1, 3)
        with pytest.raises(ValueError, match='slices that this rank owned'):
            reducer.load_state_dict(state)

    def test_there_and_back_the_weight_stays(self):
        states = self.saved(3)
        there = [merge_states(states, rank, 5) for rank in range(5)]
        back = [merge_states(there, rank, 3) for rank in range(3)]
        for name in NAMES:
            before = sum(state['memory'][name]['residual'].double() for state in states)
            now = sum(state['memory'][name]['residual'].double() for state in back)
            torch.testing.assert_close(now, before, rtol=1e-6, atol=0)
            for state in back:
                momenta = [each['memory'][name]['momentum'] for each in (state, states[0])]
                assert torch.equal(*momenta)

    def test_the_saved_states_stay_as_they_are(self):
        states = self.saved(4)
        kept = copied(states)
        merged = [merge_states(states, rank, 2) for rank in range(2)]
        for state in merged:
            for name in NAMES:
                state['memory'][name]['residual'].fill_(9)
        assert same(states, kept)

    def test_every_role_and_every_rule_is_there_again(self):
        states = self.saved(4)
        merged = merge_states(states, 1, 2)
        assert states[0].keys() == {*ROLES, 'buckets', 'resize', 'world_size'}
        assert merged.keys() == {*states[0], 'has_all_slices'}
        assert merged['resize'] == states[0]['resize']
        assert merged['resize']['exchange'] == {
            'owner_error': "owner's slice",
            'Q': 'replicated',
            'own': 'per rank',
            'draws': 'replicated',
            'scratch': 'per rank',
        }

    @given(st.integers(1, 9), st.integers(1, 9))
    def test_each_old_residual_goes_to_exactly_one_new_rank(self, old, new):
        states = []
        for rank in range(old):
            state = {role: {} for role in ROLES} | {'buckets': []}
            state['memory'] = {'w': {'residual': torch.eye(old)[rank]}}
            state['resize'] = {'memory': {'residual': 'sum'}}
            states.append(state)
        merged = [merge_states(states, rank, new)['memory'].get('w', {}) for rank in range(new)]
        holders = torch.stack([each.get('residual', torch.zeros(old)) for each in merged])
        torch.testing.assert_close(holders.sum(0), torch.full((old,), new / old))
        assert ((holders != 0).sum(0) == 1).all()


def same(one, other):
    """Whether two states are alike to the last bit, types included."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


MEMORIES = [name for name in dgc.memory.__all__ if name != 'Memory']
ALIKE = {'MomentumCorrection', 'MeanMomentum'}
TRANSFORMS = {
    'identity': Identity(),
    'cosine': BlockDCT(),
    'cosine 2': BlockDCT(BlockLayout(2)),
    'tiles': Tiles(),
    'tiles 2': Tiles(2),
}


class TestMeaning:
    """Entries of the same name are those of another memory, or of another basis."""

    def reducer(self, division=TOGETHER, parts=None, rank=0, size=1, **composition):
        chosen = replace(exact(), **composition)
        parts = chosen.state_for(BucketSpec.of_shape(4)) if parts is None else parts
        engine = dgc.engines.LocalEngine()
        engine.rank, engine.size = rank, size
        return Reducer(buckets_of(division, rank, size, parts=parts), chosen, engine)

    @pytest.mark.parametrize(('earlier', 'later'), [*product(MEMORIES, MEMORIES)])
    def test_a_memory_takes_what_it_or_one_of_the_same_meaning_has_kept(self, earlier, later):
        saved = filled(self.reducer(memory=getattr(dgc.memory, earlier)())).state_dict()
        restored = self.reducer(division=APART, memory=getattr(dgc.memory, later)())
        if earlier in (later, 'NoMemory') or {earlier, later} <= ALIKE:
            restored.load_state_dict(saved)
            assert earlier == 'NoMemory' or same(restored.state_dict()['memory'], saved['memory'])
            return
        with pytest.raises(ValueError, match=r'would be (lost|taken for that of memory)'):
            restored.load_state_dict(saved)

    @pytest.mark.parametrize(('earlier', 'later'), [*product(TRANSFORMS, TRANSFORMS)])
    @pytest.mark.parametrize('parts', [None, {'exchange': {'owner_error': OwnedSlice()}}])
    def test_coefficients_are_taken_in_the_same_basis_only(self, earlier, later, parts):
        make = {'memory': Residual(), 'parts': parts}
        saved = filled(self.reducer(transform=TRANSFORMS[earlier], **make)).state_dict()
        restored = self.reducer(transform=TRANSFORMS[later], **make)
        if earlier == later:
            restored.load_state_dict(saved)
            return
        with pytest.raises(ValueError, match=r'(residual|owner_error) .* would be taken for'):
            restored.load_state_dict(saved)

    @pytest.mark.parametrize(
        ('earlier', 'later'),
        [
            ({'memory': Residual(0.5)}, {'memory': Residual(dtype='bfloat16')}),
            ({'memory': MomentumCorrection()}, {'memory': MomentumCorrection(False, 'bfloat16')}),
            ({'transform': BlockDCT(sign=True)}, {'transform': BlockDCT()}),
        ],
    )
    def test_other_settings_may_change(self, earlier, later):
        saved = filled(self.reducer(**earlier)).state_dict()
        for composition in (later, earlier):
            restored = self.reducer(**composition)
            restored.load_state_dict(saved)
            saved = restored.state_dict()
            assert all(entry.any() for held in saved['memory'].values() for entry in held.values())

    def test_the_remedy_is_named_and_accepted(self):
        saved = filled(self.reducer(memory=Residual(), transform=Tiles(2))).state_dict()
        complaint = (
            'the saved residual of a is that of memory Residual, transform Tiles(side=2), and '
            'would be taken for that of memory Residual, transform Identity: resume with the '
            'memory and the transform that the state was saved with'
        )
        with pytest.raises(ValueError) as caught:
            self.reducer(memory=Residual()).load_state_dict(saved)
        assert str(caught.value) == complaint
        self.reducer(memory=Residual(), transform=Tiles(2)).load_state_dict(saved)

    def test_zeros_mean_the_same_everywhere(self):
        saved = self.reducer(memory=Residual(), transform=Tiles()).state_dict()
        self.reducer(memory=Residual()).load_state_dict(saved)

    def test_a_state_of_an_earlier_version_is_taken_as_it_is(self):
        saved = filled(self.reducer(memory=Residual())).state_dict()
        for bucket in saved['buckets']:
            del bucket['meaning']
        restored = self.reducer(memory=Residual(), transform=Tiles())
        restored.load_state_dict(saved)
        assert same(restored.state_dict()['memory'], saved['memory'])

    @pytest.mark.parametrize('size', [2, 3])
    def test_it_stays_known_at_another_world_size(self, size):
        make = {'memory': Residual(), 'transform': Tiles()}
        states = [filled(self.reducer(rank=r, size=2, **make), r).state_dict() for r in range(2)]
        merged = merge_states(states, 0, size)
        self.reducer(division=MIXED, size=size, **make).load_state_dict(merged)
        with pytest.raises(ValueError, match='would be taken for'):
            self.reducer(division=MIXED, size=size, memory=Residual()).load_state_dict(merged)


class TestInTraining:
    def test_a_run_goes_on_under_another_division_where_selection_is_by_parameter(self):
        """Uncompressed at density 1, no matter how parameters are grouped."""

        def run(planners):
            named = parameters()
            state, step = None, 0
            for planner in planners:
                composition = exact(1.0, memory=Residual(), planner=planner)
                optimizer = wrap(named, composition)
                if state is not None:
                    optimizer.reducer.load_state_dict(state)
                train(optimizer, named, range(step, step + 3))
                state, step = optimizer.reducer.state_dict(), step + 3
                optimizer.detach()
            return values(named)

        straight = run([PerTensor(), PerTensor()])
        assert all(map(torch.equal, run([PerTensor(), Whole()]), straight))

    @pytest.mark.parametrize(('old', 'new'), [(4, 2), (2, 4), (3, 5)])
    def test_residuals_of_a_real_run_keep_their_weight(self, old, new):
        def begin(engine):
            named = parameters()
            optimizer = wrap(named, exact(memory=Residual(), compressor=TopK()), engine)
            train(optimizer, named, 3, engine.rank)
            return optimizer.reducer.state_dict()

        states = dgc.simulate(old, begin)

        def resume(engine):
            named = parameters()
            optimizer = wrap(named, exact(memory=Residual(), planner=Whole()), engine)
            optimizer.reducer.load_state_dict(merge_states(states, engine.rank, engine.size))
            return optimizer.reducer.state_dict()

        resumed = dgc.simulate(new, resume)
        total = 0.0
        for name in ('wide.weight', 'narrow.weight'):
            before = sum(s['memory'][name]['residual'].double() for s in states) / old
            now = sum(s['memory'][name]['residual'].double() for s in resumed) / new
            torch.testing.assert_close(now, before, rtol=1e-5, atol=1e-7)
            total += float(before.abs().sum())
        assert total > 0


def test_a_composition_s_buckets_are_saved_with_all_their_roles():
    buckets = plan_buckets(parameters(), dgc.deep_gradient_compression(0.02))
    for bucket in buckets:
        assert bucket.state.state_dict().keys() <= {*ROLES, 'values'}
