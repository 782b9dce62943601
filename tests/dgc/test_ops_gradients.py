"""Calls for all gradients of a bucket: each equals its twin in plain Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from dgc import ops
from dgc.mean import LazyGradient, SparseMean
from dgc.ops import gradients
from dgc.sparse import Sparse

NATIVE = pytest.mark.skipif(
    not ops.is_native(torch.device('cpu')), reason='the C++ library cannot be compiled here'
)
pytestmark = NATIVE
SHAPES = ((4, 3), (5,), (), (0, 2), (2, 3, 4, 5))


def misaligned() -> torch.Tensor:
    """A tensor whose elements do not lie at multiples of their size."""
    return torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1)


def kinds() -> list[torch.Tensor]:
    """One gradient of each kind that may or may not be lent."""
    shared = torch.randn(6)
    embedding = nn.Embedding(7, 2, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    graph = torch.ones(3, requires_grad=True) * 2
    kept.extend([shared.view(2, 3), graph.detach()])  # which share their storage
    return [
        torch.randn(4, 3),
        torch.randn(()),
        torch.zeros(0, 2),
        torch.randn(5).double(),
        torch.randn(5).bfloat16(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        misaligned(),
        shared,
        embedding.weight.grad,
        graph,
        torch.ones(3, requires_grad=True) * 3,
    ]


kept: list[torch.Tensor] = []


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_what_nothing_else_refers_to_is_lent(dtype):
    given = kinds()
    plain, expected = gradients.lend_plainly(given, dtype)
    addresses = [each.data_ptr() for each in plain]
    del plain  # it refers to their storage
    lent, others = gradients.lend(given, dtype)
    assert others == expected
    assert [each.data_ptr() for each in lent] == addresses
    names = [place for place in range(len(given)) if place not in others]
    assert names == ([0, 1, 2, 11] if dtype == torch.float32 else [4])
    for place, each in zip(names, lent, strict=True):
        assert each.dim() == 1 and not each.requires_grad
        version = given[place]._version
        each.add_(1)
        assert given[place]._version == version  # counted apart
    assert gradients.lend(given, dtype)[0] == []  # since they are referred to now


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_gathered_gradients_lie_in_the_order_of_their_shapes(dtype):
    given = kinds()
    offsets = [sum(each.numel() for each in given[:place]) for place in range(len(given))]
    total = sum(each.numel() for each in given)
    ours, theirs = (torch.full((total + 1,), 5.0, dtype=dtype) for _ in range(2))
    gradients.gather(ours, given, offsets)
    gradients.gather_plainly(theirs, given, offsets)
    assert torch.equal(ours, theirs) and ours[-1] == 5
    assert not ours.requires_grad


class TestTouched:
    @staticmethod
    def noted():
        """Parameters with gradients, and how these were."""
        parameters = [Parameter(torch.randn(shape)) for shape in SHAPES]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        grads = [parameter.grad for parameter in parameters]
        places = [gradients.address(grad) for grad in grads]
        return parameters, grads, [grad._version for grad in grads], places

    @pytest.mark.parametrize(
        ('change', 'expected'),
        [
            (lambda _: None, []),
            (lambda p: p[1].grad.add_(1), [1]),
            (lambda p: p[1].grad.data.add_(1), []),  # which does not show
            (lambda p: setattr(p[0], 'grad', p[0].grad.clone()), [0]),
            (lambda p: setattr(p[4], 'grad', None), [4]),
            (lambda p: setattr(p[0].grad, 'data', torch.zeros(4, 3)), [0]),
            (lambda p: [p[2].grad.zero_(), p[0].grad.zero_()], [0, 2]),
            (lambda p: setattr(p[1], 'grad', torch.zeros(5).to_sparse()), [1]),
        ],
    )
    def test_what_was_replaced_or_written_to(self, change, expected):
        parameters, *were = self.noted()
        change(parameters)
        assert gradients.touched(parameters, *were) == expected
        assert gradients.touched_plainly(parameters, *were) == expected

    def test_a_lazy_gradient_is_another_one(self):
        parameters, *were = self.noted()
        mean = SparseMean([Sparse(torch.ones(1), torch.tensor([2]), 5)], 1.0)
        parameters[1].grad = LazyGradient.of(mean, 0, parameters[1])
        assert gradients.touched(parameters, *were) == [1]
        assert gradients.touched_plainly(parameters, *were) == [1]


def test_gradients_are_views_with_versions_of_their_own():
    flat = torch.randn(200)
    offsets = [0, 12, 17, 18, 18]
    shown = []
    for show in (gradients.show, gradients.show_plainly):
        parameters = [Parameter(torch.randn(shape)) for shape in SHAPES]
        show(parameters, flat, offsets)
        shown.append([parameter.grad for parameter in parameters])
    for ours, theirs in zip(*shown, strict=True):
        assert torch.equal(ours, theirs) and ours.shape == theirs.shape
        assert ours.data_ptr() == theirs.data_ptr()
    version = shown[0][1]._version
    shown[0][0].add_(1)
    assert shown[0][1]._version == version
    assert torch.equal(flat[:12].view(4, 3), shown[0][0])


@pytest.mark.parametrize(
    ('tensor', 'expected'),
    [
        (torch.zeros(3), True),
        (Parameter(torch.zeros(3)), True),
        (torch.zeros(0), True),
        (torch.zeros(3).double(), False),
        (torch.zeros(6)[::2], False),
        (torch.zeros(3).to_sparse(), False),
        (torch.zeros(3, device='meta'), False),
        (misaligned(), False),
    ],
)
def test_what_the_kernels_can_read(tensor, expected):
    for fit in (gradients.fit, gradients.fit_plainly):
        assert fit([torch.zeros(2), tensor]) is expected
        assert fit([]) is True


def test_what_overlaps():
    whole = torch.zeros(10)
    for are_apart in (gradients.are_apart, gradients.are_apart_plainly):
        assert are_apart([])
        assert are_apart([whole[5:], whole[:5], torch.zeros(3), whole[5:5]])
        assert not are_apart([whole[5:], torch.zeros(3), whole[:6]])
        assert not are_apart([whole, whole])
