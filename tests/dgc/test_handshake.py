import pytest
import torch
from dgc_helpers import exact, parameters, wrap
from torch.nn import Parameter

import dgc
from dgc.codec import Codec
from dgc.composition import describe
from dgc.engines import LocalEngine
from dgc.exchanges import AllGather, GTopK, Hierarchical
from dgc.handshake import (
    AgreementError,
    HandshakeError,
    average_tensors,
    broadcast_tensors,
    check_agreement,
    describe_parameters,
    gather_text,
    shake_hands,
)
from dgc.memory import Residual
from dgc.rules import LayerRules

TENSORS = {
    'float32': torch.tensor([[1.5, -2.0]]),
    'float16': torch.tensor([1.5, -2.0], dtype=torch.float16),
    'bfloat16': torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    'float64': torch.tensor([1e-300], dtype=torch.float64),
    'int64': torch.tensor([2**62, -1]),
    'int8': torch.tensor([-128, 127], dtype=torch.int8),
    'uint8': torch.tensor([255], dtype=torch.uint8),
    'bool': torch.tensor([True, False, True]),
    '0-d float': torch.tensor(3.25),
    '0-d int': torch.tensor(7),
    '0-d bool': torch.tensor(True),
    'empty': torch.zeros(0, 3),
    'channels_last': torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    'transposed': torch.arange(6.0).view(2, 3).t(),
}


def differing(rank: int, changed: int, **changes):
    """Aspects of a rank, of which one differs on rank ``changed``."""
    settings = {'shape': (2, 3), 'dtype': torch.float32, 'name': 'w', 'configuration': 'lr = 0.1'}
    if rank == changed:
        settings |= changes
    parameter = Parameter(torch.zeros(settings['shape'], dtype=settings['dtype']))
    return [(settings['name'], parameter)], settings['configuration']


class TestShakeHands:
    @pytest.mark.parametrize(
        ('change', 'aspect'),
        [
            ({'name': 'v'}, 'parameter names'),
            ({'shape': (3, 2)}, 'parameter shapes'),
            ({'dtype': torch.bfloat16}, 'parameter types'),
            ({'configuration': 'lr = 0.2'}, 'the configuration'),
        ],
    )
    @pytest.mark.parametrize('changed', [1, 2])
    def test_a_rank_that_differs_is_named_on_every_rank(self, change, aspect, changed):
        def worker(engine):
            named, configuration = differing(engine.rank, changed, **change)
            with pytest.raises(HandshakeError) as caught:
                wrap(named, dgc.dense(), engine, configuration=configuration)
            return str(caught.value)

        messages = dgc.simulate(3, worker)
        assert len(set(messages)) == 1
        assert f'rank {changed} and rank 0 differ in {aspect}' in messages[0]

    def test_another_codec_version_is_refused(self):
        def worker(engine):
            aspects = describe_parameters(parameters())
            if engine.rank == 1:
                aspects['the codec version'] = '0'
            shake_hands(engine, aspects, 'cpu')

        with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in the codec version'):
            dgc.simulate(2, worker)

    def test_a_parameter_more_is_refused(self):
        def worker(engine):
            named = parameters()
            wrap(named[: 4 - engine.rank], dgc.dense(), engine)

        with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in parameter names'):
            dgc.simulate(2, worker)

    def test_ranks_that_agree_start(self):
        def worker(engine):
            named, configuration = differing(engine.rank, changed=-1)
            return wrap(named, dgc.dense(), engine, configuration=configuration).steps

        assert dgc.simulate(3, worker) == [0, 0, 0]


@pytest.mark.parametrize('name', TENSORS)
def test_any_type_and_shape_is_broadcast(name):
    """grace#2, horovod#4047: 0-dimensional, bool, small integers, bfloat16."""

    def worker(engine):
        ours = TENSORS[name].clone()
        if engine.rank != 1:
            ours.zero_()
        strides = ours.stride()
        broadcast_tensors(engine, [ours], root=1)
        assert ours.stride() == strides
        return ours

    for received in dgc.simulate(3, worker):
        assert torch.equal(received, TENSORS[name])


def test_everybody_starts_from_rank_0():
    """Frozen parameters and those of integers too (horovod#1608)."""

    def worker(engine):
        named = [
            ('weight', Parameter(torch.full((2, 2), float(engine.rank)))),
            ('count', Parameter(torch.tensor(engine.rank), requires_grad=False)),
            ('frozen', Parameter(torch.full((3,), float(engine.rank)), requires_grad=False)),
        ]
        wrap(named, dgc.dense(), engine)
        return [parameter.tolist() for _, parameter in named]

    assert dgc.simulate(3, worker) == [[[[0, 0], [0, 0]], 0, [0, 0, 0]]] * 3


def test_running_statistics_are_averaged_and_counts_are_not():
    def worker(engine):
        tensors = [
            torch.tensor([1.0, 2.0]) * engine.rank,
            torch.tensor(5 + engine.rank),
            torch.tensor([[3.0]], dtype=torch.bfloat16) * engine.rank,
        ]
        before = engine.traffic.messages
        average_tensors(engine, tensors)
        assert engine.traffic.messages - before == 4  # one all-reduce among three
        return [tensor.tolist() for tensor in tensors]

    results = dgc.simulate(3, worker)
    assert results == [[[1.0, 2.0], 5 + rank, [[3.0]]] for rank in range(3)]


@pytest.mark.parametrize('ranks', [2, 3])
@pytest.mark.parametrize(
    ('dtype', 'value'),
    [
        (torch.float64, 16_777_217.0),  # 2^24 + 1, which float32 does not hold
        (torch.float64, 1e300),
        (torch.float64, torch.finfo(torch.float64).max),
        (torch.float32, torch.finfo(torch.float32).max),
        (torch.float16, torch.finfo(torch.float16).max),
        (torch.bfloat16, -torch.finfo(torch.bfloat16).max),
    ],
)
def test_a_mean_of_equal_numbers_is_that_number(dtype, value, ranks):
    """docs/failures.md, row 8: in float64, and without an overflow of the sum."""

    def worker(engine):
        tensors = [torch.tensor([value], dtype=dtype), torch.tensor([1.0])]
        average_tensors(engine, tensors)
        assert tensors[0].dtype == dtype
        return tensors[0].item(), tensors[1].item()

    assert dgc.simulate(ranks, worker) == [(value, 1.0)] * ranks


def test_what_is_not_finite_stays_so():
    def worker(engine):
        tensor = torch.tensor([torch.inf if engine.rank else 1.0, torch.nan], dtype=torch.float64)
        average_tensors(engine, [tensor])
        return tensor

    for found in dgc.simulate(2, worker):
        assert found[0] == torch.inf and found[1].isnan()


def test_averaging_nothing_and_alone_is_quiet():
    engine, statistic = LocalEngine(), torch.tensor([2.0])
    average_tensors(engine, [])
    average_tensors(engine, [torch.tensor(3)])
    average_tensors(engine, [statistic])
    assert engine.traffic.seconds == 0
    assert statistic.item() == 2


@pytest.mark.parametrize('odd', [0, 2])
@pytest.mark.parametrize('name', [name for name in TENSORS if name != 'empty'])
def test_parameters_that_have_parted_are_named_on_every_rank(name, odd):
    def worker(engine):
        tensors = {'first': torch.ones(3), name: TENSORS[name].clone(), 'last': torch.ones(2)}
        check_agreement(engine, tensors.items())
        if engine.rank == odd:
            tensors[name].zero_()
            tensors['last'].zero_()
        who = f'rank {odd} and rank {int(odd == 0)} hold different values of {name} at last$'
        with pytest.raises(AgreementError, match=who):
            check_agreement(engine, tensors.items(), ' at last')
        return True

    assert all(dgc.simulate(3, worker))


def test_texts_are_gathered_by_rank_and_cut():
    worker = lambda e: gather_text(e, 'ä' * 3 + str(e.rank), 'cpu', limit=7)  # noqa: E731
    assert dgc.simulate(2, worker) == [['äää0', 'äää1']] * 2
    worker = lambda e: gather_text(e, 'ä' * 9, 'cpu', limit=7)  # noqa: E731
    assert dgc.simulate(2, worker) == [['äää', 'äää']] * 2


DIFFERENT = {
    'codec': (lambda rank: exact(codec=Codec('fp16' if rank else 'fp32')), 'the composition'),
    'exchange': (lambda rank: exact(exchange=GTopK() if rank else AllGather()), 'the composition'),
    'a setting': (lambda rank: exact(memory=Residual() if rank else None), 'the composition'),
    'rules': (lambda rank: exact(rules=LayerRules(dense=['w*'] * rank)), 'the composition'),
    'density': (lambda rank: exact(0.05 + rank / 100), 'the schedule of the density'),
}


@pytest.mark.parametrize(('make', 'aspect'), DIFFERENT.values(), ids=DIFFERENT)
def test_ranks_of_different_compositions_do_not_begin(make, aspect):
    def worker(engine):
        with pytest.raises(HandshakeError, match=f'rank 1 and rank 0 differ in {aspect}'):
            wrap(parameters(), make(engine.rank), engine)

    dgc.simulate(2, worker)


@pytest.mark.parametrize('frozen', [1, 4])
def test_ranks_that_train_different_parameters_do_not_begin(frozen):
    """Also where one trains nothing, which would leave the others waiting for it."""

    def worker(engine):
        named = parameters()
        for _, parameter in named[: frozen * engine.rank]:
            parameter.requires_grad_(False)
        with pytest.raises(HandshakeError, match='differ in which parameters are trained'):
            wrap(named, dgc.dense(), engine)

    dgc.simulate(2, worker)


def test_epochs_of_different_length_do_not_begin_where_the_density_goes_by_them():
    def worker(engine):
        wrap(parameters(), exact(), engine, steps_per_epoch=3 + engine.rank)
        with pytest.raises(HandshakeError, match='rank 1 and rank 0 differ in steps_per_epoch'):
            wrap(parameters(), exact(warmup_epochs=2), engine, steps_per_epoch=3 + engine.rank)

    dgc.simulate(2, worker)


def test_settings_are_told_and_other_objects_are_not():
    part = Hierarchical(AllGather(), 2)
    part.draw = torch.Generator().manual_seed(3)
    assert describe(part) == describe(Hierarchical(AllGather(), 2))[:-1] + ', draw=Generator())'
    assert describe(part) != describe(Hierarchical(AllGather(), 4))
    assert describe([None, {'a': (1, 2.5)}]) == "[None, [['a', [1, 2.5]]]]"
