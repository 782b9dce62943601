"""The Triton kernels against their plain references: the same bits, for every rule and type.

The cases run on a GPU or, where TRITON_INTERPRET is set, in Triton's interpreter. That must be set
before Triton is imported, so one test runs the cases again in a process of its own. Others compile
the kernels for GPUs that need not be here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import MISFITS
from pairwise import by_pairs

from dgc.ops import Update, reference

cuda = pytest.importorskip('dgc.ops.cuda')

ROOT = Path(__file__).parents[2]
INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
DEVICE = torch.device('cpu' if INTERPRETED else 'cuda')
RULES = ('plain', 'momentum', 'nesterov')
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (0, 1, 511, 512, 513, 1025, 5000)  # blocks of 1024
every = pytest.mark.parametrize(*by_pairs({'rule': RULES, 'dtype': DTYPES, 'numel': SIZES}))
every_rule = pytest.mark.parametrize('rule', RULES)
every_dtype = pytest.mark.parametrize('dtype', DTYPES)


def update_of(rule, gradient, u=None):
    """On the device; ``u`` is drawn where a rule needs one and none is given."""
    gradient = gradient.to(DEVICE)
    if rule == 'plain':
        return Update([gradient])
    u = random(gradient.numel(), 3) if u is None else u.clone()
    return Update([gradient], u.to(DEVICE), 0.9, rule == 'nesterov')


def random(numel, seed):
    """Heavy-tailed, with some exact zeros."""
    draw = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).pow(3)
    return draw * (draw.abs() > 1e-3)


def setting(rule, dtype, numel):
    """What was kept, and an update, made anew at each call."""
    return random(numel, 1).to(DEVICE), update_of(rule, random(numel, 2).to(dtype))


def narrow(rule, dtype, numel):
    """``setting``, with a memory in bfloat16 that is rounded by two keys of 32 bits."""
    kept, update = setting(rule, dtype, numel)
    u = None if update.momentum_buffer is None else update.momentum_buffer.bfloat16()
    return kept.bfloat16(), update._replace(momentum_buffer=u, rounding=(0xDEADBEEF, 77))


def bits(values):
    """All of them; but a NaN is a NaN."""
    values = values.float()
    return torch.where(values.isnan(), torch.nan, values).view(torch.int32)


def expected_of(corrected, threshold, limit):
    """The reference, with a NaN above every threshold."""
    comparable = corrected.where(~corrected.isnan(), torch.inf)
    found = reference.collect(comparable, threshold, limit)
    return found._replace(values=corrected[found.indices].float())


def assert_same(found, expected):
    assert found.total == expected.total
    assert found.indices.dtype == torch.int64
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(bits(found.values), bits(expected.values))


def assert_accumulates(make, threshold, limit):
    """``make`` gives the same memory and update each time."""
    (plain, by_plain), (fast, by_fast) = make(), make()
    reference.accumulate(plain, by_plain, threshold, limit)
    found = cuda.accumulate(fast, by_fast, threshold, limit)
    assert_same(found, expected_of(plain, threshold, limit))
    assert torch.equal(bits(fast), bits(plain))
    if by_plain.momentum_buffer is not None:
        assert torch.equal(bits(by_fast.momentum_buffer), bits(by_plain.momentum_buffer))


@pytest.mark.gpu
@pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason='there is no GPU')
class TestCases:
    @every
    def test_it_is_the_reference_bit_for_bit(self, rule, dtype, numel):
        def make():
            return setting(rule, dtype, numel)

        corrected, update = make()
        reference.accumulate(corrected, update, torch.inf, 0)
        median = float(corrected.abs().median()) if numel else 1.0
        assert_accumulates(make, 0.0, numel)  # all but the zeros
        assert_accumulates(make, 1e-45, numel // 3)  # too many for the list
        assert_accumulates(make, median, numel)  # the median itself is in
        assert_accumulates(make, median, 0)
        assert_accumulates(make, torch.inf, 7)  # none

    @every_rule
    @every_dtype
    def test_a_sample_is_what_will_be_there(self, rule, dtype):
        positions = torch.arange(0, 5000, 3, device=DEVICE).flip(0)
        kept, update = setting(rule, dtype, 5000)
        before = kept.clone()
        sample = cuda.sample(kept, update, positions)
        assert torch.equal(bits(sample), bits(reference.sample(kept, update, positions)))
        assert torch.equal(bits(kept), bits(before))
        assert cuda.sample(kept, update, positions[:0]).shape == (0,)
        cuda.accumulate(kept, update, torch.inf, 0)
        assert torch.equal(bits(sample), bits(kept[positions].abs()))

    @every_rule
    @pytest.mark.parametrize('numel', [0, 1, 1025, 3000])
    def test_a_memory_in_bfloat16_is_rounded_as_by_the_reference(self, rule, numel):
        for dtype in DTYPES:

            def make(dtype=dtype):
                return narrow(rule, dtype, numel)

            assert_accumulates(make, 0.0, numel)
            assert_accumulates(make, 0.1, numel // 3)
            kept, update = make()
            positions = torch.arange(0, numel, 3, device=DEVICE).flip(0)
            sample = cuda.sample(kept, update, positions)
            assert torch.equal(bits(sample), bits(reference.sample(kept, update, positions)))
            assert_same(cuda.collect(kept, 0.1, 7), reference.collect(kept, 0.1, 7))

    @every_rule
    def test_what_is_not_finite_stays_so_in_bfloat16(self, rule):
        def make():
            kept, update = narrow(rule, torch.float32, 3000)
            words = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000], dtype=torch.int32)
            update.gradient[[17, 18, 900, 2999]] = words.view(torch.float32).to(DEVICE)
            return kept, update

        found = cuda.accumulate(*make(), torch.inf, 9)
        assert found.indices.tolist() == [17, 18, 900, 2999]
        assert_same(found, reference.accumulate(*make(), torch.inf, 9))

    def test_a_memory_in_bfloat16_needs_keys(self):
        kept, update = narrow('plain', torch.float32, 9)
        for wrong in ((kept, update._replace(rounding=None)), (kept.float(), update)):
            with pytest.raises(ValueError, match='needs two keys'):
                cuda.accumulate(*wrong, 1.0, 9)

    @pytest.mark.parametrize('numel', SIZES)
    def test_collecting_changes_nothing(self, numel):
        values = random(numel, 1).to(DEVICE)
        before = values.clone()
        for threshold, limit in [(0.0, numel), (0.1, numel), (0.1, 7), (1e9, 7), (0.0, 0)]:
            expected = reference.collect(values, threshold, limit)
            assert_same(cuda.collect(values, threshold, limit), expected)
        assert torch.equal(bits(values), bits(before))
        every_other = torch.stack([values, -values], 1)[:, 0]
        assert_same(cuda.collect(every_other, 0.1, 7), reference.collect(values, 0.1, 7))

    @every_rule
    @pytest.mark.parametrize('limit', [0, 1, 1024, 1500, 2**40])
    def test_of_equal_values_the_first_are_listed(self, rule, limit):
        def make():
            kept, gradient = torch.ones(2, 3000)
            return kept.to(DEVICE), update_of(rule, gradient, gradient)

        reference.accumulate(*make(), torch.inf, 0)
        assert_accumulates(make, 1.0, limit)
        assert_accumulates(make, 100.0, limit)

    @every_rule
    @every_dtype
    def test_zeros_are_never_found(self, rule, dtype):
        def make():
            kept, gradient = torch.zeros(2, 3000)
            kept[::2] = gradient[::3] = -0.0
            return kept.to(DEVICE), update_of(rule, gradient.to(dtype), gradient)

        assert_accumulates(make, 0.0, 3000)
        assert cuda.accumulate(*make(), 0.0, 3000).total == 0

    @every_rule
    @every_dtype
    @pytest.mark.parametrize('limit', [2, 3000])
    def test_infinities_and_nans_are_found(self, rule, dtype, limit):
        def make():
            kept, gradient = random(3000, 1), random(3000, 2).to(dtype)
            gradient[[17, 900, 2999]] = torch.tensor(
                [torch.inf, torch.nan, -torch.inf], dtype=dtype
            )
            kept[[18, 2998]] = torch.tensor([-torch.nan, torch.inf])
            return kept.to(DEVICE), update_of(rule, gradient)

        for threshold in (0.5, 1e30, 1e39, torch.inf):
            assert_accumulates(make, threshold, limit)
        found = cuda.accumulate(*make(), 1e30, limit)
        assert found.indices.tolist() == [17, 18, 900, 2998, 2999][:limit]

    @every_rule
    def test_subnormal_numbers_are_not_flushed(self, rule):
        def make():
            tiny = random(3000, 1) * 2.0**-140
            return tiny.to(DEVICE), update_of(rule, tiny.flip(0), tiny * 2)

        assert_accumulates(make, 0.0, 3000)
        assert_accumulates(make, 2.0**-140, 3000)

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_every_number_of_16_bits_is_read_as_it_is(self, dtype):
        gradient = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        kept = torch.zeros(len(gradient), device=DEVICE)
        cuda.accumulate(kept, Update([gradient.to(DEVICE)]), torch.inf, 0)
        assert torch.equal(bits(kept.cpu()), bits(torch.zeros(len(gradient)) + gradient.float()))

    @every_rule
    @every_dtype
    def test_a_gradient_need_not_be_contiguous(self, rule, dtype):
        def make():
            gradient = random(4000, 2).to(dtype).to(DEVICE)[::2]
            return random(2000, 1).to(DEVICE), update_of(rule, gradient)

        assert not make()[1].gradient.is_contiguous()
        assert_accumulates(make, 0.5, 2000)
        kept, update = make()
        positions = torch.arange(0, 2000, 20, device=DEVICE)
        sample = cuda.sample(kept, update, positions)
        assert torch.equal(bits(sample), bits(reference.sample(kept, update, positions)))

    @every_rule
    @every_dtype
    def test_a_gradient_may_come_in_pieces(self, rule, dtype):
        def make():
            kept, update = setting(rule, dtype, 3000)
            return kept, update._replace(gradients=update.gradient.split([1, 0, 1999, 1000]))

        assert_accumulates(make, 0.5, 3000)

    def test_buffers_may_begin_anywhere(self):
        def make():
            kept, update = setting('momentum', torch.bfloat16, 3001)
            return kept[1:], Update([update.gradient[1:]], update.momentum_buffer[1:], 0.9)

        assert_accumulates(make, 0.5, 3000)

    @pytest.mark.skipif(not INTERPRETED, reason='a GPU runs programs in the order it likes')
    @pytest.mark.parametrize('limit', [100, 5000])
    def test_the_order_of_programs_does_not_matter(self, limit, monkeypatch):
        from triton.runtime.interpreter import interpreter_builder as builder

        run = []

        def set_grid_idx(x, y, z):
            run.append(builder.grid_dim[0] - 1 - x)
            builder.grid_idx = (run[-1], y, z)

        monkeypatch.setattr(builder, 'set_grid_idx', set_grid_idx)
        assert_accumulates(lambda: setting('nesterov', torch.float16, 5000), 0.5, limit)
        assert run[:5] == [4, 3, 2, 1, 0]

    @pytest.mark.skipif(INTERPRETED, reason='takes a million programs')
    def test_positions_may_exceed_32_bits(self):
        numel = 2**31 + 5000
        if torch.cuda.mem_get_info()[0] < 3 * 4 * numel:
            pytest.skip('needs 24 GiB')
        places = torch.tensor([0, 2**31 - 1, 2**31, numel - 1], device=DEVICE)
        kept, gradient = (torch.zeros(numel, device=DEVICE) for _ in '12')
        gradient[places] = 1.0
        assert cuda.sample(kept, Update([gradient]), places).tolist() == [1.0] * 4
        for limit in (3, 4):
            found = cuda.accumulate(kept, Update([gradient]), 0.5, limit)
            assert found.total == 4
            assert torch.equal(found.indices, places[:limit])

    @pytest.mark.parametrize(('kept', 'update'), MISFITS)
    def test_what_does_not_fit_is_refused(self, kept, update):
        with pytest.raises(ValueError, match=r'dgc: \w+ must be flat'):
            cuda.accumulate(kept, update, 1.0, 1)
        with pytest.raises(ValueError, match=r'dgc: \w+ must be flat'):
            cuda.sample(kept, update, torch.tensor([0]))


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason='this is that process')
def test_the_cases_hold_in_the_interpreter():
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-k', 'TestCases']
    done = subprocess.run(
        [*command, __file__],
        cwd=ROOT,
        env=os.environ | {'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r'(\d+) passed', done.stdout)[1]) > 100


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """``compiled(capability)`` collects every kernel that is launched from then on, for such a
    GPU; nothing runs."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def start(capability):
        kernels = []

        def run(self, *args, grid, warmup, **options):
            kernels.append(launch(self, *args, grid=grid, warmup=True, **options))

        none = SimpleNamespace(
            get_current_target=lambda: GPUTarget('cuda', capability, 32),
            get_current_device=lambda: f'none of capability {capability}',  # a key of a cache
            get_current_stream=lambda device: 0,
        )
        monkeypatch.setattr(driver, '_active', none)
        monkeypatch.setattr(JITFunction, 'run', run)
        return kernels

    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    return start


@pytest.mark.skipif(INTERPRETED, reason='the interpreter compiles nothing')
class TestCompiled:
    """The host's code as it is, with tensors on the CPU that no kernel touches."""

    @staticmethod
    def launch_all(numel):
        """Every kernel, for every rule and type."""
        v, u, positions = torch.zeros(numel), torch.zeros(numel), torch.zeros(5, dtype=torch.int64)
        for dtype in DTYPES:
            g = torch.zeros(numel, dtype=dtype)
            for update in (Update([g]), Update([g], u, 0.9), Update([g], u, 0.9, nesterov=True)):
                cuda.accumulate(v, update, 1.0, 9)
                if dtype == torch.float32:
                    cuda.sample(v, update, positions)
        cuda.collect(v, 1.0, 9)
        narrow, keys = torch.zeros(numel, dtype=torch.bfloat16), (1, 0xFFFFFFFF)
        for rule in (Update([v]), Update([v], narrow, 0.9), Update([v], narrow, 0.9, True)):
            cuda.accumulate(narrow, rule._replace(rounding=keys), 1.0, 9)
            cuda.sample(narrow, rule._replace(rounding=keys), positions)
        cuda.collect(narrow, 1.0, 9)
        for each in (v, narrow):
            cuda._first_kernel[(1,)](each, numel, 1, 9, positions, positions, v, **cuda.OPTIONS)

    @pytest.mark.parametrize('capability', [90, 120])
    def test_each_operation_is_rounded_on_its_own(self, compiled, capability):
        kernels = compiled(capability)
        self.launch_all(5001)
        assert len(kernels) == 22
        products = 0
        for kernel in kernels:
            assert kernel.asm['cubin']
            assert not re.search(r'\b(fma|mad)\.\S*f32|\.ftz', kernel.asm['ptx'])
            products += ' mul.rn.f32' in kernel.asm['ptx'].replace('\t', ' ')
        assert products == 12

    def test_with_fusion_it_would_not_be(self, compiled, monkeypatch):
        monkeypatch.setitem(cuda.OPTIONS, 'enable_fp_fusion', True)
        kernels = compiled(90)
        v, u, gradient = torch.zeros(3, 5000)
        cuda.accumulate(v, Update([gradient], u, 0.9), 1.0, 9)
        assert 'fma.rn.f32' in kernels[0].asm['ptx']

    @pytest.mark.parametrize('numel', [5000, 5001])
    def test_memory_is_read_in_vectors(self, compiled, numel):
        kernels = compiled(90)
        v, u, gradient = (torch.zeros(numel) for _ in 'vug')
        cuda.accumulate(v, Update([gradient], u, 0.9), 1.0, 9)
        assert kernels[0].asm['ptx'].count('ld.global.v4.b32') >= 6
        assert kernels[0].asm['ptx'].count('st.global.v4.b32') >= 4
