"""What value codings guarantee about their quantization error, measured."""

import math

import pytest
import torch
from pairwise import by_pairs

from dgc.codec import VALUES, Codec, Contraction, Unbiased
from dgc.ops import unfused
from dgc.ops.uniform import keys, uniform

CONTRACTIONS = {n: c for n, c in VALUES.items() if isinstance(c.error, Contraction)}
UNBIASED = {n: c for n, c in VALUES.items() if isinstance(c.error, Unbiased)}
every_contraction = pytest.mark.parametrize('coding', CONTRACTIONS.values(), ids=CONTRACTIONS)
every_unbiased = pytest.mark.parametrize('coding', UNBIASED.values(), ids=UNBIASED)
SEEDS = 600
SIZES = [1, 7, 8, 9, 63, 64, 65, 128, 513, 4096, 4097, 9000]


def vectors(size: int) -> dict[str, torch.Tensor]:
    """Vectors that are easy for a coding, and the hardest ones for it."""
    draw = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=draw)
    one, half = torch.zeros(size), torch.full((size,), 1 / 14)
    one[size // 2] = -3.0
    half[::64] = 1.0
    return {
        'normal': normal,
        'equal': torch.full((size,), 0.25),
        'heavy tails': normal**5,
        'one that is not zero': one,
        'half a step of int4 beside each largest': half,
        'tiny': normal * 1e-25,
        'huge': normal * 1e30,
    }


def decoded(coding, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return coding.decode(coding.encode(values, seed), len(values)).double()


def squared(values: torch.Tensor) -> float:
    return float(values.double().square().sum())


def test_the_classes_of_the_codings():
    assert set(UNBIASED) == {'qsgd8', 'qsgd4', 'qsgd2', 'ternary', 'natural'}
    deltas = {name: coding.error.delta for name, coding in CONTRACTIONS.items()}
    assert deltas == pytest.approx(
        {
            'fp32': 1.0,
            'fp16': 1 - 2.0**-22,
            'bf16': 1 - 2.0**-16,
            'int8': 1 - 255 / 254**2,
            'int4': 1 - 127 / 14**2,
            'sign': 1 / 4096,
            '2bit': (1 - 2.0**-16) / 64,
            'fp4': 8 / 9 - 63 / 24**2,
            'fp4e3': 8 / 9 - 63 / 128**2,
        },
        abs=1e-12,
    )
    assert {name: coding.error.omega for name, coding in UNBIASED.items()} == pytest.approx(
        {
            'qsgd8': 511 / (4 * 127**2),
            'qsgd4': 127 / (4 * 49),
            'qsgd2': math.sqrt(63) / 2,
            'ternary': math.sqrt(511) / 2,
            'natural': 1 / 8,
        }
    )
    assert Codec('qsgd4', 'none').error is VALUES['qsgd4'].error


@every_contraction
@pytest.mark.parametrize('size', SIZES)
def test_the_error_of_a_contraction_is_bounded(coding, size):
    for name, values in vectors(size).items():
        error = squared(values.double() - decoded(coding, values))
        bound = (1 - coding.error.delta) * squared(values)
        assert error <= bound * (1 + 1e-5) + 1e-12 * squared(values), name


def steps_of(coding, values: torch.Tensor) -> torch.Tensor:
    """The distance of the two levels around each value, of which it takes one."""
    if coding.name == 'natural':
        return 2.0 ** values.abs().double().clamp(min=1e-38).log2().floor()
    parts = values.abs().split(coding.block)
    step = torch.cat([part.max().expand(len(part)) for part in parts]).double() / coding.top
    return step.clamp(min=2.0**-126)


@pytest.mark.parametrize(
    *by_pairs({'size': SIZES, 'vector': list(vectors(1)), 'coding': list(UNBIASED)})
)
def test_the_mean_of_an_unbiased_coding_is_the_value_and_its_variance_is_bounded(
    size, vector, coding
):
    """Over many seeds; every size with every vector, and both with every coding."""
    seeds = max(40, SEEDS // max(1, size // 100))
    values, coding = vectors(size)[vector], UNBIASED[coding]
    errors = torch.stack([decoded(coding, values, seed) for seed in range(seeds)])
    errors -= values.double()
    step = steps_of(coding, values)  # an error is at most one
    # The mean of n errors has a deviation of at most 1/2√n steps: six of them, and rounding.
    assert ((errors.mean(0) / step).abs() <= 3 / math.sqrt(seeds) + 1e-4).all()
    variance = float(errors.square().sum(1).mean())
    slack = 1 + 6 / math.sqrt(seeds * min(size, getattr(coding, 'block', size)))
    assert variance <= coding.error.omega * squared(values) * slack + 1e-9 * squared(values)


@every_unbiased
def test_a_mean_over_many_seeds_is_close(coding):
    values = torch.randn(64, generator=torch.Generator().manual_seed(1))
    mean = sum(decoded(coding, values, seed) for seed in range(4000)) / 4000
    bound = 5 * math.sqrt(coding.error.omega / 4000) * math.sqrt(squared(values))
    assert math.sqrt(squared(mean - values)) <= bound


class TestUniform:
    def test_it_is_uniform(self):
        draws = uniform(7, 1_000_000, torch.device('cpu')).double()
        assert draws.min() >= 0 and draws.max() < 1
        counts = torch.histc(draws, 100, 0, 1)
        chi_squared = float(((counts - 10_000) ** 2 / 10_000).sum())
        assert chi_squared < 99 + 6 * math.sqrt(2 * 99)

    def test_neighbours_and_seeds_are_uncorrelated(self):
        size = 200_000
        streams = [uniform(s, size, torch.device('cpu')).double() - 0.5 for s in (0, 1, 2, 2**32)]
        pairs = [(a, b) for i, a in enumerate(streams) for b in streams[:i]]
        pairs += [(a[gap:], a[:-gap]) for a in streams for gap in (1, 2, 64, 1024)]
        for one, other in pairs:
            correlation = float((one * other).mean()) * 12
            assert abs(correlation) < 6 / math.sqrt(size)

    def test_seeds_do_not_draw_the_same_numbers_in_another_order(self):
        sets = [set(uniform(seed, 4096, torch.device('cpu')).tolist()) for seed in range(8)]
        common = [len(one & other) for i, one in enumerate(sets) for other in sets[:i]]
        assert max(common) < 30  # 4096² / 2^24 = 1 is expected

    def test_any_integer_is_a_seed_modulo_2_to_the_64(self):
        assert keys(-1) == keys(2**64 - 1) == keys(3 * 2**64 - 1)
        assert len({keys(seed) for seed in (0, 1, -1, 2**32, 2**63, 2**64 - 2)}) == 6
        assert all(0 <= key < 2**32 for seed in range(100) for key in keys(seed))

    def test_its_numbers_never_change(self):
        """Bytes of messages depend on them: a change of these is a new version of the format."""
        first = (uniform(0, 4, torch.device('cpu')) * 2**24).long().tolist()
        again = (uniform(12345, 4, torch.device('cpu')) * 2**24).long().tolist()
        assert first == [13560622, 3402108, 8416888, 5058886]
        assert again == [9352405, 5300056, 3534517, 4610791]


@every_unbiased
@pytest.mark.parametrize('seed', [0, 1, -5, 2**40 + 3])
def test_plain_and_compiled_write_the_same_messages(coding, seed):
    values = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    section = coding.encode(values, seed)
    with unfused():
        assert torch.equal(coding.encode(values, seed), section)
