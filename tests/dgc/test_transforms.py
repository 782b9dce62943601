"""Blocks of parameters, and the discrete cosine transform of each."""

from __future__ import annotations

import math

import pytest
import torch

from dgc import ops
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.transforms import BlockDCT, BlockLayout, Identity, Run
from dgc.transforms.blocks import largest_divisor, matrix_shape
from dgc.transforms.dct import cosines, exact_product

SHAPES = [
    (), (1,), (7,), (64,), (100,), (130,), (1, 1), (8, 8), (12, 10), (7, 13), (1, 6), (6, 1),
    (128, 64), (67, 4), (16, 3, 3, 3), (5, 7, 1, 1), (4, 6, 5), (0,), (0, 3), (3, 0),
]  # fmt: skip
every_shape = pytest.mark.parametrize('shape', SHAPES, ids=str)
every_side = pytest.mark.parametrize('side', [1, 4, 8, 64])


def spec_of(*shapes: tuple[int, ...]) -> BucketSpec:
    return BucketSpec.of([ParameterSpec(str(n), shape) for n, shape in enumerate(shapes)], None)


def random(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def plain_dct(block: list[list[float]]) -> list[list[float]]:
    """The orthonormal DCT-II in two dimensions, term by term, as in a textbook:

    X[u, v] = c(u)·c(v) Σ_i Σ_j x[i, j] cos(π(2i + 1)u / 2h) cos(π(2j + 1)v / 2w)
    """
    height, width = len(block), len(block[0])

    def c(frequency, length):
        return math.sqrt((1 if frequency == 0 else 2) / length)

    return [
        [
            c(u, height)
            * c(v, width)
            * sum(
                block[i][j]
                * math.cos(math.pi * (2 * i + 1) * u / (2 * height))
                * math.cos(math.pi * (2 * j + 1) * v / (2 * width))
                for i in range(height)
                for j in range(width)
            )
            for v in range(width)
        ]
        for u in range(height)
    ]


class TestBlockLayout:
    @every_shape
    @every_side
    def test_unpack_is_the_inverse_of_pack(self, shape, side):
        spec, layout = spec_of((3,), shape, (2, 2)), BlockLayout(side)
        values = random(spec.numel)
        for member in spec.members:
            blocks = layout.pack(values, member)
            assert blocks.shape[1:] == layout.tile(member.shape)
            ours = values[member.offset : member.offset + member.numel]
            assert torch.equal(layout.unpack(blocks, member), ours)
            assert torch.equal(blocks.reshape(-1).sort().values, ours.sort().values)

    @every_shape
    @every_side
    def test_a_block_is_a_tile_of_the_matrix(self, shape, side):
        spec, layout = spec_of(shape), BlockLayout(side)
        (member,) = spec.members
        matrix = torch.arange(float(spec.numel)).view(matrix_shape(shape))
        height, width = layout.tile(shape)
        assert height <= side and width <= side
        expected = [
            matrix[row : row + height, column : column + width]
            for row in range(0, matrix.shape[0], height)
            for column in range(0, matrix.shape[1], width)
            if spec.numel
        ]
        blocks = layout.pack(matrix.reshape(-1), member)
        assert len(blocks) == len(expected)
        assert all(map(torch.equal, blocks, expected))

    @every_side
    def test_runs_cover_a_bucket_without_gaps(self, side):
        spec, layout = spec_of(*SHAPES), BlockLayout(side)
        end = 0
        for run, member in zip(layout.runs(spec), spec.members, strict=True):
            assert (run.offset, run.numel) == (end, member.numel)
            assert run.size == math.prod(layout.tile(member.shape))
            end += run.numel
        assert end == spec.numel

    @pytest.mark.parametrize(
        ('shape', 'side', 'tile'),
        [
            ((), 64, (1, 1)),
            ((64,), 64, (1, 64)),
            ((128,), 64, (1, 64)),
            ((100,), 64, (1, 50)),
            ((67,), 64, (1, 1)),  # a prime above the side
            ((61,), 64, (1, 61)),  # and one below
            ((128, 96), 64, (64, 48)),
            ((16, 3, 3, 3), 64, (16, 27)),  # a convolution: 16 by 27
            ((67, 10), 64, (1, 10)),
            ((1, 6), 4, (1, 3)),
            ((6, 1), 4, (3, 1)),
        ],
    )
    def test_sides_are_the_largest_divisors(self, shape, side, tile):
        assert BlockLayout(side).tile(shape) == tile

    def test_runs_by_hand(self):
        spec = spec_of((6, 4), (), (6,))
        assert BlockLayout(3).runs(spec) == [Run(0, 4, 6), Run(24, 1, 1), Run(25, 2, 3)]

    @pytest.mark.parametrize('length', [*range(1, 70), 97, 100, 128])
    def test_the_largest_divisor_up_to_a_limit(self, length):
        for limit in (1, 2, 7, 64):
            found = largest_divisor(length, limit)
            assert length % found == 0 and found <= limit
            assert not any(length % other == 0 for other in range(found + 1, limit + 1))

    @pytest.mark.parametrize('side', [0, -1])
    def test_a_side_below_1_is_refused(self, side):
        with pytest.raises(ValueError, match=f'side must be at least 1, got {side}'):
            BlockLayout(side)


class TestBlockDCT:
    @pytest.mark.parametrize('side', [*range(1, 17), 31, 64])
    def test_the_matrix_is_orthonormal(self, side):
        matrix = cosines(side, torch.device('cpu')).double()
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(side).double(), rtol=0, atol=1e-6)
        assert torch.equal(matrix[0], matrix[0, :1].expand(side))  # the mean comes first

    @every_shape
    @every_side
    def test_each_block_is_the_textbooks(self, shape, side):
        spec, layout = spec_of(shape), BlockLayout(min(side, 8))
        (member,) = spec.members
        values = random(spec.numel)
        coefficients = BlockDCT(layout).forward(values, spec)
        assert coefficients.shape == values.shape and coefficients.dtype == torch.float32
        blocks = layout.pack(values, member)
        found = coefficients.view(blocks.shape)
        for block, transformed in zip(blocks[:6], found[:6], strict=True):
            expected = torch.tensor(plain_dct(block.tolist()))
            torch.testing.assert_close(transformed, expected, rtol=1e-5, atol=1e-5)

    @every_shape
    @every_side
    def test_the_inverse_returns_the_gradient(self, shape, side):
        spec, transform = spec_of((5, 3), shape, (4,)), BlockDCT(BlockLayout(side))
        values = random(spec.numel)
        there = transform.forward(values, spec)
        torch.testing.assert_close(transform.inverse(there, spec), values, rtol=1e-5, atol=1e-5)
        back = transform.forward(transform.inverse(values, spec), spec)
        torch.testing.assert_close(back, values, rtol=1e-5, atol=1e-5)

    @every_side
    def test_lengths_and_angles_are_kept(self, side):
        """So that removing a coefficient equals subtracting its inverse transform."""
        spec, transform = spec_of(*SHAPES), BlockDCT(BlockLayout(side))
        one, other = random(spec.numel), random(spec.numel, seed=1)
        ours, theirs = transform.forward(one, spec), transform.forward(other, spec)
        assert float(ours.norm()) == pytest.approx(float(one.norm()), rel=1e-5)
        assert float(ours @ theirs) == pytest.approx(float(one @ other), abs=1e-2)

    def test_members_do_not_mix(self):
        spec, transform = spec_of((4, 6), (5,), (3, 2)), BlockDCT(BlockLayout(8))
        values = random(spec.numel)
        whole = transform.forward(values, spec)
        for member in spec.members:
            place = slice(member.offset, member.offset + member.numel)
            alone = transform.forward(values[place], spec_of(member.shape))
            assert torch.equal(whole[place], alone)

    def test_a_mean_of_transforms_is_the_transform_of_the_mean(self):
        spec, transform = spec_of((4, 6), (5,)), BlockDCT()
        gradients = [random(spec.numel, seed) for seed in range(4)]
        mean = sum(transform.forward(each, spec) for each in gradients) / 4
        torch.testing.assert_close(
            transform.forward(sum(gradients) / 4, spec), mean, rtol=1e-5, atol=1e-6
        )

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_gradients_are_transformed_in_float32(self, dtype):
        spec, transform = spec_of((4, 6), (5,)), BlockDCT()
        values = random(spec.numel).to(dtype)
        found = transform.forward(values, spec)
        assert found.dtype == torch.float32
        assert torch.equal(found, transform.forward(values.float(), spec))
        assert transform.inverse(values, spec).dtype == torch.float32

    def test_the_gradient_stays_as_it_is(self):
        spec, transform = spec_of((4, 6), (), (5,)), BlockDCT()
        values = random(spec.numel)
        before = values.clone()
        transform.inverse(transform.forward(values, spec), spec)
        assert torch.equal(values, before)

    def test_the_sign_is_that_of_the_result_and_0_of_0(self):
        spec = spec_of((4, 6), (5,))
        values = random(spec.numel)
        values[24:] = 0
        plain, signs = BlockDCT(), BlockDCT(sign=True)
        coefficients = plain.forward(values, spec)
        assert torch.equal(signs.forward(values, spec), coefficients)
        found = signs.inverse(coefficients, spec)
        assert torch.equal(found, plain.inverse(coefficients, spec).sign())
        assert found[24:].tolist() == [0.0] * 5


def test_the_identity_changes_nothing():
    transform, values = Identity(), random(7)
    assert transform.is_identity and not BlockDCT().is_identity
    assert transform.forward(values, spec_of((7,))) is values
    assert transform.inverse(values, spec_of((7,))) is values


class TestSameBits:
    """Ranks must agree on signs, whatever computes their products of matrices."""

    SPEC = ((256, 96, 3, 3), (100, 128), (384,), (64, 64), (127, 2), ())

    @pytest.mark.parametrize('sign', [False, True])
    def test_any_number_of_threads_computes_the_same(self, sign):
        spec, transform = spec_of(*self.SPEC), BlockDCT(sign=sign)
        values, before, found = random(spec.numel), torch.get_num_threads(), []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                coefficients = transform.forward(values, spec)
                found.append((coefficients, transform.inverse(coefficients, spec)))
        finally:
            torch.set_num_threads(before)
        for forward, inverse in found[1:]:
            assert torch.equal(forward, found[0][0])
            assert torch.equal(inverse, found[0][1])

    @pytest.mark.parametrize('side', [4, 15, 16, 48, 64, 128])
    @pytest.mark.parametrize('power', [1, 9])
    def test_the_kernel_computes_the_same_as_plain_pytorch(self, side, power):
        if not ops.is_native(torch.device('cpu')):
            pytest.skip('there is no C++ library')
        spec = spec_of(*self.SPEC, (48, 80), (97, 3), (0, 4), (36, 50), (128, 256))
        transform, values = BlockDCT(BlockLayout(side)), random(spec.numel).pow(power)
        values[:5000] *= 1e-30
        values[-3:] = 0
        found = transform.forward(values, spec), transform.inverse(values, spec)
        with ops.unfused():
            assert torch.equal(found[0], transform.forward(values, spec))
            assert torch.equal(found[1], transform.inverse(values, spec))

    @pytest.mark.parametrize('side', range(2, 129))
    def test_cosines_are_symmetric_so_that_a_side_can_be_halved(self, side):
        matrix = cosines(side, torch.device('cpu'))
        while True:
            sign = torch.tensor([1.0, -1.0]).repeat(len(matrix))[: len(matrix), None]
            assert torch.equal(matrix, matrix.flip(1) * sign)
            if matrix.shape[1] % 2:
                break
            matrix = matrix[::2, : matrix.shape[1] // 2]

    @pytest.mark.parametrize(('height', 'width'), [(64, 64), (128, 128), (50, 36), (1, 64), (2, 1)])
    @pytest.mark.parametrize('power', [1, 9])
    def test_no_order_of_a_sum_changes_a_bit(self, height, width, power):
        """Rows and columns of the tiles and of the cosines in another order: the same sums."""
        tiles = random(3 * height * 2 * width).pow(power).view(3, height, 2, width)
        left, right = cosines(height, tiles.device), cosines(width, tiles.device)
        wanted = exact_product(tiles, left, right)
        draw = torch.Generator().manual_seed(1)
        for _ in range(3):
            down, along = (torch.randperm(side, generator=draw) for side in (height, width))
            shuffled = tiles[:, down][:, :, :, along]
            assert torch.equal(exact_product(shuffled, left[:, down], right[:, along]), wanted)

    def test_the_largest_sums_are_still_exact(self):
        """Each value is its tile's largest, with the sign that makes the sum largest."""
        matrix = cosines(128, torch.device('cpu'))
        for frequency in (0, 1, 127):
            signs = matrix[frequency].sign().float() * (1 - 2.0**-24)
            tiles = (signs[:, None] * signs).view(1, 128, 1, 128)
            found, order = exact_product(tiles, matrix, matrix), torch.arange(127, -1, -1)
            shuffled = tiles[:, order][:, :, :, order]
            assert torch.equal(found, exact_product(shuffled, matrix[:, order], matrix[:, order]))

    @pytest.mark.parametrize('scale', [1e-42, 1e-30, 1.0, 1e30])
    def test_it_is_as_exact_as_float32_at_any_scale(self, scale):
        spec, transform = spec_of((64, 64)), BlockDCT()
        values = random(spec.numel) * scale
        back = transform.inverse(transform.forward(values, spec), spec)
        assert float((back - values).abs().max()) <= 4e-6 * float(values.abs().max()) + 1e-37

    def test_longer_sides_are_refused(self):
        with pytest.raises(ValueError, match='sides up to 128, got 129'):
            BlockDCT(BlockLayout(129))
