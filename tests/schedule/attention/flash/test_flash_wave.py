"""FlashAttention on AMD's matrix cores: machine code in the interpreter, against float64."""

import math
import re

import group_kernels
import numpy as np
import pytest
from amd_code import amd_module, run_on_amd
from group_kernels import array, arrays, close, extents, group, tensor

from tests.schedule.attention.attention_graphs import (
    CASES,
    LOWEST,
    PLAIN,
    SYMBOLIC,
    packed,
    safe,
    safe_arrays,
    safe_tensors,
    spoil,
    tensors,
    visible,
)
from tests.schedule.attention.flash.flash_cases import (
    HALF,
    SHARED,
    appended,
    float32_operands,
    guarded_weights,
    halves,
    numbers_are_halves,  # noqa: F401  (a fixture)
    problem_of,
)
from tvm_fusion.deploy.toolchain.rocm_code import kernels
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.flash.kernel import flash_mma_kernel
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.wave.config import FlashWaveConfig
from tvm_fusion.schedule.attention.template import Attention

pytestmark = pytest.mark.slow_beyond(2)

ARCHS = ("gfx942", "gfx1100", "gfx90a")
# A head of 256 with so few queries leaves gfx1100 no registers: wide heads are tested below.
PAIRS = [
    (case, arch) for case in SHARED for arch in ARCHS if (case, arch) != ("head of 256", "gfx1100")
]
SIZE = 45  # of a symbolic dimension


def configured(params, body, arch):
    spec = parse(f"rocm:{arch}")
    members, problem = problem_of(params, body, spec)
    return members, problem, list(configs(problem, spec.device))


def compare(params, body, expected, arch, tolerance=2e-3, accept=None, edit=None):
    """Run a drawn configuration of those that are accepted, its waves in a drawn order."""
    rng = np.random.default_rng()
    members, problem, found = configured(params, body, arch)
    accepted = [c for c in found if accept is None or accept(c)]
    config = accepted[rng.integers(len(accepted))]
    func = flash_mma_kernel(members.program, problem, config)
    inputs = arrays(params)
    if edit is not None:
        edit(inputs)
    given = [array(v, inputs) for v in members.inputs]
    results = [np.full(extents(v.type), 7).astype(v.dtype) for v in members.outputs]
    heads = math.prod(extents(params[0].ty)[:-2])
    queries = extents(params[0].ty)[-2]
    symbols = {
        "blocks": heads * -(-queries // config.block_m),
        "size": group_kernels.SIZE,
        "reverse": bool(rng.integers(2)),
    }
    run_on_amd(func, arch, *given, *results, **symbols)
    wide = [x.astype("float64") if x.dtype.kind in "fV" else x for x in inputs.values()]
    close(results, expected(*wide), tolerance)
    return problem, config


@pytest.mark.usefixtures("numbers_are_halves")
@pytest.mark.parametrize(("case", "arch"), PAIRS)
def test_against_float64(case, arch):
    params, body, expected = CASES[case]
    compare(halves(params), body, expected, arch, 4e-3)


@pytest.mark.usefixtures("numbers_are_halves")
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", sorted(set(SYMBOLIC) - {"heads in rows"}))
def test_symbolic_lengths(case, arch, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", SIZE)
    params, body, expected = SYMBOLIC[case]
    compare(halves(params), body, expected, arch, 4e-3)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("size", "columns"), [(20, 24), (32, 96), (80, 96), (128, 64), (192, 128)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 1.6e-2), (HALF, 2e-3)])
def test_sizes_of_heads(size, columns, dtype, tolerance, arch):
    params = tensors(1, 2, 37, 70, size, columns, dtype=dtype)
    compare(params, *PLAIN, arch, tolerance)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("sizes", [(256, 256), (160, 256), (192, 192)])
def test_wide_heads(sizes, arch):
    compare(tensors(1, 2, 37, 70, *sizes, dtype="bfloat16"), *PLAIN, arch, 1.6e-2)


@pytest.mark.parametrize("arch", ARCHS)
def test_two_waves_share_rows(arch):
    params = tensors(1, 2, 37, 70, 64, dtype=HALF)
    compare(params, *PLAIN, arch, accept=lambda c: c.column_parts == 2)


@pytest.mark.parametrize("arch", ARCHS)
def test_products_in_float32_of_halves(arch):
    params = tensors(1, 2, 40, 70, 64, dtype=HALF)
    compare(params, float32_operands(PLAIN[0]), PLAIN[1], arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("queries", "keys", "options", "skips"),
    [
        (100, 100, {}, True),
        (37, 100, {"offset": 63}, True),
        (150, 150, {"window": 20}, True),
        (60, 60, {"fill": -100.0}, False),
    ],
)
def test_hidden_tiles_are_skipped(queries, keys, options, skips, arch):
    params = tensors(1, 2, queries, keys, 32, dtype=HALF)
    problem, _ = compare(
        params, *visible(queries, keys, **options), arch, accept=lambda c: c.block_n == 32
    )
    assert problem.skips == skips


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_packed_sequences_skip_keys_of_others(is_causal, arch):
    offsets = np.array([0, 5, 6, 96, 133])
    total = int(offsets[-1])
    params = tensors(1, 1, total, total, 32, dtype=HALF)
    params += [tensor(name, total, dtype="int64") for name in ("begin", "end")]
    body, expected, edit = packed(offsets, is_causal)
    problem, _ = compare(params, body, expected, arch, 4e-3, lambda c: c.block_n == 32, edit)
    assert problem.skips


@pytest.mark.parametrize("arch", ARCHS)
def test_scores_that_grow_are_rescaled(arch):
    """Each tile's scores are far beyond those of the one before."""

    def grow(inputs):
        inputs["q"][:] = 1
        inputs["k"][:] = (np.arange(130) / 8)[:, None]

    params = tensors(1, 1, 33, 130, 32, dtype=HALF)
    compare(params, *PLAIN, arch, accept=lambda c: c.block_n == 32, edit=grow)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 1e-3), (HALF, 1e-4)])
def test_weights_are_right_on_average(dtype, tolerance, arch):
    """Weights rounded towards zero without more would all be too small, as would results be."""

    def flatten(inputs):
        inputs["q"] /= 8
        inputs["v"][:] = 1

    compare(tensors(1, 1, 33, 300, 32, dtype=dtype), *PLAIN, arch, tolerance, edit=flatten)


@pytest.mark.parametrize("arch", ARCHS)
def test_one_instruction_rounds_two_weights(arch):
    params = tensors(1, 1, 64, 256, 64, dtype=HALF)
    members, problem, (config, *_) = configured(params, PLAIN[0], arch)
    func = flash_mma_kernel(members.program, problem, config)
    assembly = amd_module({"main": func}, arch).inspect_source("asm")
    scores, results = (config.rows_of_warp * x // config.lanes for x in (config.block_n, 64))
    assert len(re.findall("v_cvt_pk_?rtz_f16_f32", assembly)) >= scores // 2
    assert assembly.count("v_cvt_f16_f32") <= results
    if config.lanes == 64:
        assert assembly.count("v_pk_fma_f32") >= scores // 2


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("masked_weight", [0.0, 0.5])
def test_rows_whose_weights_are_nan(masked_weight, arch):
    params, body, expected, hide = guarded_weights(masked_weight)
    compare(params, body, expected, arch, edit=hide)


def test_rows_with_nan_or_infinity_stay_nan():
    compare(safe_tensors(5, 40, 32, HALF), safe, safe_arrays, "gfx942", edit=spoil)


@pytest.mark.parametrize("arch", ARCHS)
def test_appended_keys_are_copied_from_their_own_buffers(arch):
    problem, _ = compare(*appended(), arch)
    assert len(problem.k.loads) == len(problem.v.loads) == 2


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_claims_are_kept_and_nothing_is_spilled(size, arch):
    """One matrix instruction after another, no exchange through LDS in the loop."""
    spec = parse(f"rocm:{arch}")
    members = group(tensors(1, 16, 1024, 1024, size, dtype=HALF), PLAIN[0], spec)
    claim = Attention(True).claim(members, spec.device)
    config = claim.details.config
    assert isinstance(config, FlashWaveConfig)
    (made,) = Attention(True).emit(claim, spec.tvm_target()).kernels
    assembly = amd_module({"main": made.func}, arch).inspect_source("asm")
    (code,) = kernels(assembly)
    assert code.shared_bytes == claim.shared_bytes
    assert not code.spills
    assert code.registers <= claim.registers + 24
    columns = size + size // config.column_parts  # of scores and results
    products = config.m16 * (config.block_n // 16) * columns // 16
    assert assembly.count(f"v_{config.instruction.family}_f32_16x16x16") >= products


def test_finite_masks():
    """All rows see a key."""
    body, expected = visible(40, 70, fill=LOWEST)
    params = tensors(1, 1, 40, 70, 32, dtype=HALF)
    problem, _ = compare(params, float32_operands(body), expected, "gfx942")
    assert problem.skips
