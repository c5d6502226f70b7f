"""Tiled GEMM on AMD's matrix cores: the cases of mma.sync, computed by MFMA and by WMMA."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from amd_code import amd_module, run_on_amd
from emulator.amd import loops
from emulator.memory import EmulationError
from group_kernels import arrays, check, close, group, run, tensor
from tvm import relax, tirx

from tests.schedule.contraction.conv_graphs import launched
from tests.schedule.contraction.copies.test_implicit_gemm import CASES as CONVOLUTIONS
from tests.schedule.contraction.copies.test_implicit_gemm import build
from tests.schedule.contraction.gemm_graphs import (
    changed,
    computes,
    contraction_of,
    heads,
    product,
    results,
    with_epilogue,
)
from tests.schedule.contraction.mma.test_tile_gemm_gpu import CASES, SMALL
from tests.schedule.contraction.ragged_graphs import drawn, ends_of, expected, experts, gated
from tvm_fusion.deploy.toolchain.rocm_code import faults, kernels
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.copies.implicit_gemm import ImplicitGemm
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.mma.model import rates_of
from tvm_fusion.schedule.contraction.mma.split_k_workspace import split_k_kernels
from tvm_fusion.schedule.contraction.mma.wave_tiles import LATENCY
from tvm_fusion.schedule.contraction.tile import shape
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.gpu.memory.vector_moves import AMD_MOVES
from tvm_fusion.schedule.instructions.amd import HALF_FLOP_PER_CLOCK

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
ARCHS = {arch: parse(f"rocm:{arch}") for arch in ("gfx942", "gfx1100", "gfx90a")}
TEMPLATE = GpuContraction()
FAMILIES = {"gfx942": "mfma", "gfx90a": "mfma", "gfx1100": "wmma"}
TILES = (SMALL | {"stages": 2}, SMALL | {"stages": 3, "warps_n": 1, "block_m": 16})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("arch", ARCHS)
def test_claims_and_computes_the_product(name, arch):
    params, body, reference = CASES[name]
    tolerance = 2e-3 if name.startswith("epilogue") else 2e-5
    claim, _ = check(TEMPLATE, params, body, reference, ARCHS[arch], tolerance)
    tile = claim.details.config.tile
    assert isinstance(tile, TileGemmConfig)
    assert tile.problem.mma.family == FAMILIES[arch]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("numbers", TILES)
@pytest.mark.parametrize("arch", ARCHS)
def test_several_tiles_of_a_pipeline(name, numbers, arch):
    """Small tiles: more than one along M, N and K, with a ragged last one."""
    members, contraction = contraction_of(*CASES[name][:2])
    start = tile_gemm_config(contraction, ARCHS[arch].device)
    made = tile_gemm_gpu(members.program, changed(start, **numbers))
    computes(made, members, CASES[name], 1, ARCHS[arch])


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        *((arch, dtype) for arch in ARCHS for dtype in ("int8", "bfloat16")),
        ("gfx942", "float32"),
        ("gfx90a", "float32"),
    ],
)
def test_types(arch, dtype):
    """Bytes of CDNA2 and CDNA3 have instructions of different lengths."""
    sums = "int32" if dtype == "int8" else "float32"
    params = [tensor("x", 37, 80, dtype=dtype), tensor("w", 80, 44, dtype=dtype)]
    members = group(params, lambda emit, x, w: op.matmul(x, w, sums), ARCHS[arch])
    claim = TEMPLATE.claim(members, ARCHS[arch].device)
    assert claim.details.config.tile.problem.mma.kind == dtype
    emission = TEMPLATE.emit(claim, ARCHS[arch].tvm_target())
    inputs = arrays(params)
    (found,) = results(members, emission, inputs, ARCHS[arch])
    close([found], [inputs["x"].astype("float64") @ inputs["w"].astype("float64")])


@pytest.mark.parametrize("case", [with_epilogue(50, 200, 72), heads(20, 200, 3, 16)])
@pytest.mark.parametrize("arch", ARCHS)
def test_split_k_through_memory(arch, case):
    members, contraction = contraction_of(*case[:2])
    start = tile_gemm_config(contraction, ARCHS[arch].device)
    config = changed(start, **SMALL | {"split_k": 3, "stages": 2, "block_k": 64, "warps_k": 2})
    if arch != "gfx1100":
        config = changed(config, warps_n=1)
    emission = split_k_kernels(members.program, config, members)
    inputs = arrays(case[0], 4)
    sums = case[2](*(x.astype("float64") for x in inputs.values()))
    found = results(members, emission, inputs, ARCHS[arch])
    for result, wide in zip(found, sums, strict=True):
        close([result], [wide], 2e-3 if result.dtype == "float16" else 2e-5)


@pytest.mark.parametrize(("m", "k", "n"), [(512, 4608, 56), (512, 4096, 4096)])
def test_waves_of_32_lanes_share_k_in_one_kernel(m, k, n):
    """Products that split-K took in two kernels, one with 200 spilled registers."""
    _, contraction = contraction_of(*product(m, k, n, b_is_turned=True)[:2])
    tile = tile_gemm_config(contraction, ARCHS["gfx1100"].device).tile
    assert tile.split_k == 1
    if n < m:  # as fast as four waves of 210
        assert (tile.warps_k, tile.registers_at_most) == (8, 146)


def test_latency_is_in_seconds_what_the_device_has():
    """Units are those of an H100's products: a clock of fewer products is a part of one."""
    for spec in ARCHS.values():
        device = spec.device
        _, contraction = contraction_of(*product(64, 64, 64, b_is_turned=True)[:2])
        config = tile_gemm_config(contraction, device)
        rates = rates_of(config.problem, device)
        rate = device.peak_flops["float16"] / device.sm_count  # of a compute unit
        found = rates.latency * 2 * rates.mma / rate
        clock = HALF_FLOP_PER_CLOCK[device.arch] / rate
        assert found == pytest.approx(LATENCY * clock, rel=0.01)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("terms", [80, 66])
def test_a_constant_weight_is_packed_along_k(arch, terms):
    w = np.random.default_rng().standard_normal((terms, 44)).astype("float16")
    params = [tensor("x", 40, terms, dtype="float16")]
    spec = ARCHS[arch]

    def body(emit, x):
        return op.matmul(x, relax.const(w), "float32")

    members = group(params, body, spec)
    claim = TEMPLATE.claim(members, spec.device)
    assert isinstance(claim.details.copies, ImplicitGemm)
    assert [f.name for f in TEMPLATE.forms(claim, spec.device) if f.is_chosen] == ["weight along K"]
    emission = TEMPLATE.emit(claim, spec.tvm_target())
    inputs = arrays(params)
    (found,) = results(members, emission, inputs, spec)
    close([found], [inputs["x"].astype("float64") @ w.astype("float64")])


@pytest.mark.parametrize("arch", ARCHS)
def test_the_weight_of_a_cast_image_is_padded_to_vectors(arch):
    """27 terms of a window become 32; no load is of two bytes."""
    rng, spec = np.random.default_rng(), ARCHS[arch]
    w = rng.standard_normal((24, 3, 3, 3)).astype("float16")
    params = [tensor("x", 1, 3, 9, 11, dtype="float32")]

    def body(emit, x):
        options = {"strides": 2, "padding": 1, "out_dtype": "float32"}
        return op.nn.conv2d(emit(op.astype(x, "float16")), relax.const(w), **options)

    members = group(params, body, spec)
    claim = TEMPLATE.claim(members, spec.device)
    emission = TEMPLATE.emit(claim, spec.tvm_target())
    inputs = arrays(params)
    (found,) = results(members, emission, inputs, spec)
    x = np.pad(inputs["x"].astype("float16").astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    close([found], [np.einsum("ncyxrs,kcrs->nkyx", windows, w.astype("float64"))])
    (func,) = (kernel.func for kernel in emission.kernels)
    assembly = amd_module({"main": func}, arch).inspect_source("asm")
    assert not re.search(r"global_load_(ushort|short|u16|d16)", assembly)


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("arch", ARCHS)
def test_channels_last_convolutions(arch, case):
    members, images, right = build(case)
    claim = TEMPLATE.claim(members, ARCHS[arch].device)
    assert claim.details.config.tile.problem.mma.family == FAMILIES[arch]
    emission = TEMPLATE.emit(claim, ARCHS[arch].tvm_target())
    if len(emission.kernels) > 1:  # split-K
        config = replace(claim.details.config, gemm=claim.details.config.tile.with_tile(split_k=1))
        details = replace(claim.details, config=config)
        emission = TEMPLATE.emit(replace(claim, details=details), ARCHS[arch].tvm_target())
    found = launched(emission, members, images, ARCHS[arch])
    np.testing.assert_allclose(found, right, atol=4e-3)


@pytest.mark.parametrize("arch", ARCHS)
def test_symbolic_rows(arch):
    """Five rows: the host launches a skinny GEMM of as many."""
    n = tirx.Var("n", "int64")
    params = [tensor("x", n, 64, dtype="float16"), tensor("w", 48, 64, dtype="float16")]

    def body(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w)), "float32")

    claim, _ = check(TEMPLATE, params, body, lambda x, w: [x @ w.T], ARCHS[arch])
    assert claim.details.config.tile is not None


@pytest.mark.parametrize("finish", [None, gated])
@pytest.mark.parametrize("arch", ARCHS)
def test_ragged_rows(arch, finish):
    """Rows of experts, one of them without any."""
    params, body = experts(133, 4, 72, 80, finish)
    members, contraction = contraction_of(params, body)
    config = tile_gemm_config(contraction, ARCHS[arch].device)
    func = tile_gemm_gpu(members.program, changed(config, block_k=32, warps_k=1))
    for ends in ends_of(133):
        inputs = drawn(params, ends)
        found = run(func, members, inputs, ARCHS[arch], kernels=1)
        close(found, expected(finish, **inputs), 2e-5 if finish is None else 2e-3)


def test_a_missing_barrier_is_seen(monkeypatch):
    """LDS is written for other waves: the emulator knows who waited."""
    spec = ARCHS["gfx942"]
    silent = replace(AMD_MOVES, barrier=lambda: tirx.Evaluate(tirx.const(0)))
    monkeypatch.setattr(shape, "AMD_MOVES", silent)
    members, contraction = contraction_of(*CASES["whole"][:2])
    config = changed(tile_gemm_config(contraction, spec.device), **SMALL | {"stages": 2})
    func = tile_gemm_gpu(members.program, config)
    with pytest.raises(EmulationError, match="without a barrier"):
        run(func, members, arrays(CASES["whole"][0]), spec)


def main_loop(assembly):
    """Count the instructions of the loop that multiplies."""
    loops = []
    for back in re.finditer(r"s_cbranch\w* (\.LBB\d+_\d+)", assembly):
        start = assembly.find(f"\n{back[1]}:")
        if 0 <= start < back.start():
            loops.append(assembly[start : back.end()])
    (loop,) = (x for x in loops if re.search("v_w?mfma|v_wmma", x))
    return Counter(re.findall(r"^\s+([a-z]\w+)", loop, re.M))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_loop_of_a_large_product(arch):
    """One barrier and no spill, loads and stores of 16 bytes, products behind the loads."""
    case = product(4096, 4096, 4096, b_is_turned=True)
    members, contraction = contraction_of(*case[:2])
    config = tile_gemm_config(contraction, ARCHS[arch].device)
    config = config.with_tile(block_m=128, block_n=128, block_k=32, split_k=1)
    module = amd_module({"main": tile_gemm_gpu(members.program, config)}, arch)
    assembly = module.inspect_source("asm")
    assert list(faults(module.inspect_source("hip"), assembly)) == []
    (kernel,) = kernels(assembly)
    assert (kernel.spilled, kernel.scratch_bytes) == (0, 0)
    assert kernel.shared_bytes == 32 << 10
    counts = main_loop(assembly)
    products = sum(n for name, n in counts.items() if "mfma" in name or "wmma" in name)
    steps = counts["s_barrier"]
    waves = config.threads // config.problem.mma.lanes
    assert products == steps * 8 * 8 * 32 // config.problem.mma.k // waves
    loads = {name: n for name, n in counts.items() if name.startswith(("global", "ds_"))}
    assert all(name.endswith(("b128", "dwordx4")) for name in loads)
    assert sum(loads.values()) == steps * (4 + 4 + (8 if waves == 4 else 24))
    assert counts.total() - products <= 60 * steps


@pytest.mark.parametrize(("arch", "share"), [("gfx942", 0.84), ("gfx1100", 0.9), ("gfx90a", 0.9)])
def test_the_clocks_of_machine_code(arch, share):
    """Products keep matrix cores busy, LDS three quarters of that; no two lanes want a bank."""
    params, body, reference = product(128, 512, 128, b_is_turned=True)
    members, contraction = contraction_of(params, body)
    config = tile_gemm_config(contraction, ARCHS[arch].device)
    warps = {"warps_m": 2, "warps_n": 2 if config.problem.mma.lanes == 64 else 4, "warps_k": 1}
    config = config.with_tile(block_m=128, block_n=128, block_k=32, split_k=1, **warps)
    inputs = arrays(params)
    given, result = [inputs[v.name] for v in members.inputs], np.full((128, 128), np.nan, "f4")
    launched = run_on_amd(tile_gemm_gpu(members.program, config), arch, *given, result, clocks=True)
    close([result], reference(*(x.astype("float64") for x in inputs.values())))
    (loop,) = loops(launched, arch)
    assert loop.matrix_share >= share
    assert loop.lds_clocks == loop.lds_ideal
    simds = 2 if arch == "gfx1100" else 4  # share the LDS of a compute unit
    assert simds * loop.lds_clocks <= 0.75 * loop.clocks["matrix"]
