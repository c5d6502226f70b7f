"""Tiled GEMM on tensor cores: right for every layout, epilogue and drawn configuration."""

import group_kernels
import numpy as np
import pytest
from group_kernels import (
    CUDA,
    arrays,
    check,
    close,
    compiles_for_cuda,
    group,
    kernel,
    run_all,
    shared_bytes,
    tensor,
)
from nvcc import machine_code, needs_nvcc
from tvm import relax, tirx

from tests.schedule.contraction.gemm_graphs import (
    changed,
    computes,
    contraction_of,
    heads,
    product,
    split,
    with_epilogue,
)
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.mma.space import tile_gemm_configs
from tvm_fusion.schedule.contraction.mma.split_k_workspace import split_k_kernels
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.contraction.tile.operand.tile import OperandTile
from tvm_fusion.schedule.gpu.dlight import check_gpu

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
AMPERE, TURING = parse("cuda:sm_80"), parse("cuda:sm_75")
TEMPLATE = GpuContraction()
SMALL = {
    "block_m": 32,
    "block_n": 64,
    "block_k": 32,
    "warps_m": 1,
    "warps_n": 2,
    "warps_k": 1,
    "stages": 3,
    "split_k": 1,
}


def columns_first(m, k, n):
    """A result that is contiguous along M."""
    given, body, reference = product(m, k, n)

    def turned(emit, x, w):
        return op.permute_dims(emit(body(emit, x, w)))

    return given, turned, lambda x, w: [reference(x, w)[0].T]


def parts(m, k, *extents):
    """Columns in parts that vectors of eight would straddle, contiguous in memory."""
    given, body, reference = product(m, k, int(np.prod(extents)))

    def reshaped(emit, x, w):
        return op.reshape(emit(op.astype(emit(body(emit, x, w)), "float16")), (m, *extents))

    return given, reshaped, lambda x, w: [reference(x, w)[0].reshape(m, *extents)]


def one_weight(m, k, n):
    """A batch of which each matrix is multiplied with the same."""
    given = [tensor("x", 3, m, k, dtype="float16"), tensor("w", 1, k, n, dtype="float16")]
    return given, lambda emit, x, w: op.matmul(x, w, "float32"), lambda x, w: [x @ w]


def padded(data, weight):
    """A convolution whose image is padded by one."""
    given = [tensor("x", *data, dtype="float16"), tensor("w", *weight, dtype="float16")]

    def body(emit, x, w):
        return op.nn.conv2d(x, w, padding=(1, 1), out_dtype="float32")

    def reference(x, w):
        x = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(x, weight[2:], (2, 3))
        return [np.einsum("nchwij,kcij->nkhw", windows, w)]

    return given, body, reference


def activated(m, k, n):
    """A prologue on A."""
    given, *_ = product(m, k, n)
    return (
        given,
        lambda emit, x, w: op.matmul(emit(op.nn.relu(x)), w, "float32"),
        lambda x, w: [np.maximum(x, 0) @ w],
    )


def scaled(m, k, n):
    """A scalar tensor in the prologue on A."""
    given = [*product(m, k, n)[0], tensor("s", dtype="float16")]
    return (
        given,
        lambda emit, x, w, s: op.matmul(emit(op.multiply(x, s)), w, "float32"),
        lambda x, w, s: [(x * s).astype("float16").astype(x.dtype) @ w],
    )


def scaled_bytes(m, k, n):
    """Int8 weights with a scale of each column."""
    given = [tensor("x", m, k, dtype="float16"), tensor("q", k, n, dtype="int8")]
    given.append(tensor("s", n, dtype="float16"))

    def body(emit, x, q, s):
        w = emit(op.multiply(emit(op.astype(q, "float16")), s))
        return op.matmul(x, w, "float32")

    return given, body, lambda x, q, s: [x @ (q * s)]


CASES = {
    "scaled": scaled(40, 72, 88),
    "whole": product(64, 128, 64),
    "ragged": product(40, 72, 88),
    "odd": product(33, 67, 45),
    "a_turned": product(40, 72, 88, True),
    "a_turned_odd": product(37, 67, 41, True),
    "b_turned": product(40, 72, 88, False, True),
    "b_turned_odd": product(35, 75, 42, False, True),
    "both_turned": product(72, 40, 48, True, True),
    "of_8_bytes": product(36, 76, 44, False, True),
    "of_4_bytes": product(38, 70, 46, dtype="bfloat16"),
    "of_4_and_2_bytes": product(35, 66, 45),
    "a_turned_of_4_bytes": product(42, 35, 50, True),
    "bfloat16": product(48, 96, 64, dtype="bfloat16"),
    "bfloat16_odd": product(33, 45, 35, False, True, dtype="bfloat16"),
    "epilogue": with_epilogue(40, 64, 72),
    "epilogue_odd": with_epilogue(41, 50, 67),
    "heads": heads(20, 48, 3, 16),
    "epilogue_split": split(40, 72, 24, 40),
    "epilogue_split_odd": split(41, 72, 20, 7),
    "columns_first": columns_first(40, 64, 72),
    "epilogue_parts": parts(26, 48, 3, 4, 12),
    "batch": product(24, 40, 48, batch=(3,)),
    "one_b": one_weight(24, 40, 48),
    "padded": padded((2, 5, 9, 11), (33, 5, 3, 3)),
    "pointwise": padded((1, 16, 6, 10), (24, 16, 1, 1)),
    "prologue": activated(40, 72, 88),
    "prologue_odd": activated(35, 33, 30),
    "bytes": scaled_bytes(40, 64, 48),
}


@pytest.mark.parametrize("name", CASES)
def test_claims_and_computes_the_product(name):
    params, body, reference = CASES[name]
    tolerance = 2e-3 if name.startswith("epilogue") else 2e-5
    claim, func = check(TEMPLATE, params, body, reference, AMPERE, tolerance)
    assert isinstance(claim.details.config.tile, TileGemmConfig)
    assert check_gpu(func, AMPERE.tvm_target()) is None
    assert claim.shared_bytes == shared_bytes(func)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_several_tiles_of_a_pipeline(name):
    """Small tiles: more than one along M, N and K, with a ragged last one."""
    members, contraction = contraction_of(*CASES[name][:2])
    start = tile_gemm_config(contraction, CUDA.device)
    computes(tile_gemm_gpu(members.program, changed(start, **SMALL)), members, CASES[name], 1)


@pytest.mark.parametrize(
    ("case", "a", "b"),
    [
        ("whole", 8, 8),
        ("of_8_bytes", 4, 4),
        ("of_4_bytes", 2, 2),
        ("of_4_and_2_bytes", 2, None),
        ("odd", None, None),
    ],
)
def test_the_widest_aligned_copies(case, a, b):
    """``None``: shifted words, by threads."""
    _, contraction = contraction_of(*CASES[case][:2])
    config = tile_gemm_config(contraction, CUDA.device)
    tiles = OperandTile(config, True), OperandTile(config, False)
    assert tuple(t.lanes if t.is_copied else None for t in tiles) == (a, b)


@pytest.mark.parametrize(
    "change",
    [
        {"block_k": 64, "warps_k": 2},
        {"block_k": 64, "warps_k": 4},
        {"split_k": 2},
        {"split_k": 4, "warps_k": 2, "stages": 2},
        {"block_m": 64, "warps_m": 2, "block_n": 128, "stages": 2},
        {"block_m": 16, "block_n": 32, "stages": 4},
    ],
)
def test_slices_and_clusters(change):
    case = with_epilogue(50, 200, 72)
    members, contraction = contraction_of(*case[:2])
    start = tile_gemm_config(contraction, CUDA.device)
    config = changed(start, **{**SMALL, **change})
    computes(tile_gemm_gpu(members.program, config), members, case, 2)


@pytest.mark.parametrize(
    ("spec", "change"),
    [
        (AMPERE, {"split_k": 3}),
        (AMPERE, {"split_k": 4, "block_k": 64, "warps_k": 2, "stages": 2}),
        (TURING, {"split_k": 2, "stages": 2}),
    ],
)
@pytest.mark.parametrize("case", [with_epilogue(50, 200, 72), heads(20, 200, 3, 16)])
def test_split_k_through_memory(spec, change, case):
    """Without clusters a second kernel adds up the ranks' sums, and has the epilogue."""
    members, contraction = contraction_of(*case[:2])
    config = changed(tile_gemm_config(contraction, spec.device), **{**SMALL, **change})
    emission = split_k_kernels(members.program, config, members)
    assert [len(k.writes) for k in emission.kernels] == [1, len(members.outputs)]
    inputs = arrays(case[0], 4)
    expected = case[2](*(x.astype("float64") for x in inputs.values()))
    for result, wide in zip(run_all(members, emission, inputs), expected, strict=True):
        close([result], [wide], 2e-3 if result.dtype == "float16" else 2e-5)


@pytest.mark.slow
def test_split_k_where_it_pays():
    """Few tiles of many terms, on a device without clusters; two launches, or one otherwise."""
    long_, short = product(64, 14336, 4096), product(128, 3072, 768)
    claims = [TEMPLATE.claim(group(*x[:2], AMPERE), AMPERE.device) for x in (long_, short)]
    tiles = [claim.details.config.tile for claim in claims]
    assert tiles[0].tile.split_k > 1
    assert tiles[1].tile.split_k == 1
    assert [c.launches for c in claims] == [2, 1]
    space = list(TEMPLATE.configs(claims[0], AMPERE.device))
    plain = next(c for c in space if c["split_k"] == 1)
    other = TEMPLATE.configure(claims[0], plain, AMPERE.device)
    assert other.launches == 1
    assert other.bytes < claims[0].bytes
    n = tirx.Var("n", "int64")
    _, contraction = contraction_of(*product(n, 14336, 4096)[:2])
    assert {c.tile.split_k for c in tile_gemm_configs(contraction, AMPERE.device)} == {1}


@pytest.mark.slow
def test_the_design_space():
    case = with_epilogue(49, 136, 200)
    members, contraction = contraction_of(*case[:2])
    found = list(tile_gemm_configs(contraction, CUDA.device))
    shapes = [c.tile for c in found]
    default = tile_gemm_config(contraction, CUDA.device)
    assert shapes[0] == default.tile
    assert len(shapes) > 100
    assert len(set(shapes)) == len(shapes)
    most = CUDA.device.shared_memory_per_block
    assert all(c.shared_bytes <= most and c.accumulators <= 128 for c in found)
    for number in np.random.default_rng().choice(len(found), 3, replace=False):
        computes(tile_gemm_gpu(members.program, found[number]), members, case, 3)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((128, 768, 768), 64 * 64), ((4096, 4096, 4096), 128 * 256), ((16, 4096, 4096), 16 * 128)],
)
def test_tiles_follow_the_shape(shape, tile):
    _, contraction = contraction_of(*product(*shape)[:2])
    config = tile_gemm_config(contraction, CUDA.device)
    assert config.tile.block_m * config.tile.block_n <= tile
    assert config.tile.block_m * config.tile.block_n >= min(tile, 128 * 128) // 4
    assert int(config.blocks) >= 48


@pytest.mark.parametrize(("spec", "name"), [("cuda:sm_75", "bfloat16")])
def test_devices_without_the_instructions(spec, name):
    params, body, _ = CASES[name]
    spec = parse(spec)
    claim, _ = kernel(TEMPLATE, group(params, body, spec), spec)
    assert claim.details.config.tile is None


OF_TURING = (
    *("whole", "odd", "a_turned", "b_turned_odd", "of_8_bytes", "of_4_and_2_bytes"),
    *("epilogue_odd", "heads", "padded", "pointwise", "prologue", "bytes"),
)


@pytest.mark.parametrize("name", OF_TURING)
def test_copies_through_registers(name):
    """Compute capability 7.5 has no cp.async; several tiles along each axis."""
    members, contraction = contraction_of(*CASES[name][:2])
    start = tile_gemm_config(contraction, TURING.device)
    assert not start.problem.is_async
    small = changed(start, **{**SMALL, "stages": 2})
    made = tile_gemm_gpu(members.program, small)
    assert "cp_async" not in made.script()
    computes(made, members, CASES[name], 1)


@pytest.mark.slow
def test_turing_has_64_kib_of_shared_memory():
    params, body, reference = with_epilogue(130, 200, 136)
    claim, func = check(TEMPLATE, params, body, reference, TURING, 2e-3)
    assert isinstance(claim.details.config.tile, TileGemmConfig)
    assert shared_bytes(func) == claim.shared_bytes <= 64 << 10
    _, contraction = contraction_of(*product(4096, 4096, 4096)[:2])
    found = list(tile_gemm_configs(contraction, TURING.device))
    assert found[0].tile.block_m * found[0].tile.block_n >= 64 * 128
    assert {c.problem.is_async for c in found} == {False}
    assert max(c.shared_bytes for c in found) <= 64 << 10
    assert {c.tile.stages for c in found} <= {2, 3}


@pytest.mark.parametrize(("rows", "is_tiled"), [(8, False), (9, True), (16, True)])
def test_few_rows(rows, is_tiled):
    """The skinny GEMM serves fewer."""
    params, body, reference = product(rows, 256, 128)
    claim, _ = check(TEMPLATE, params, body, reference, AMPERE)
    assert (claim.details.config.tile is not None) is is_tiled
    assert (claim.details.config.skinny is None) is is_tiled


@pytest.mark.parametrize("size", [2, 17])
def test_a_symbolic_batch(size, monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", size)
    n = tirx.Var("n", "int64")
    params = [tensor("x", n, 24, 40, dtype="float16"), tensor("w", n, 40, 48, dtype="float16")]

    def body(emit, x, w):
        return op.matmul(x, w, "float32")

    claim, _ = check(TEMPLATE, params, body, lambda x, w: [x @ w], AMPERE)
    assert claim.details.config.tile is not None


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES)


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_machine_code_without_cp_async_and_of_split_k():
    claims, older, newer = {}, {}, {}
    for name, shape in {"large": (1024, 512, 1024), "small": (40, 256, 96)}.items():
        params, body, _ = with_epilogue(*shape)
        claims[name], older[name] = kernel(TEMPLATE, group(params, body, TURING), TURING)
    for name, made in machine_code(older, "sm_75").items():
        assert made.spilled_bytes == made.stack_bytes == 0
        assert abs(claims[name].registers - made.registers) <= made.registers / 4
        assert made.ptx.count("m16n8k8.") > 0
    params, body, _ = with_epilogue(64, 14336, 4096)
    members = group(params, body, AMPERE)
    emission = TEMPLATE.emit(TEMPLATE.claim(members, AMPERE.device), AMPERE.tvm_target())
    newer = dict(zip(("partial", "add_up"), (k.func for k in emission.kernels), strict=True))
    for made in machine_code(newer, "sm_80").values():
        assert made.spilled_bytes == made.stack_bytes == 0


def test_float32_keeps_its_precision():
    params, body, _ = product(64, 128, 64, dtype="float32")
    claim, _ = kernel(TEMPLATE, group(params, body, CUDA), CUDA)
    assert claim.details.config.tile.problem.products == 3
