"""GEMM of float8, int8 and float32 on tensor cores, against float64 and exact integers."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from group_kernels import CUDA, close, extents, group, run, tensor
from tvm import relax

from tests.schedule.contraction.gemm_graphs import changed, with_numbers
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.tile.results.vectors import store_size
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config, wgmma_configs
from tvm_fusion.schedule.index.inline import inlined

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
WIDE = {E4M3: "float16", E5M2: "float32", "int8": "int32", "uint8": "int32"}


def product(m, k, n, types=(E4M3, E4M3), a_is_turned=False, b_is_turned=True, epilogue="scale"):
    """A product of narrow operands that are cast; scaled, with a bias, cast, or as it is."""
    a_dtype, b_dtype = types
    given = [
        tensor("x", *((k, m) if a_is_turned else (m, k)), dtype=a_dtype),
        tensor("w", *((n, k) if b_is_turned else (k, n)), dtype=b_dtype),
        tensor("s", n),
    ]
    sums = "int32" if "int" in a_dtype else "float32"

    def operand(emit, value, is_turned, dtype):
        value = emit(op.astype(value, WIDE[dtype])) if dtype in WIDE else value
        return emit(op.permute_dims(value)) if is_turned else value

    def body(emit, x, w, s):
        a, b = operand(emit, x, a_is_turned, a_dtype), operand(emit, w, b_is_turned, b_dtype)
        if str(a.ty.dtype) != str(b.ty.dtype):
            a, b = (emit(op.astype(v, "float32")) for v in (a, b))
        total = emit(op.matmul(a, b, sums))
        if epilogue == "none":
            return [total, op.multiply(emit(op.astype(total, "float32")), s)]
        scaled = emit(op.multiply(emit(op.astype(total, "float32")), s))
        return op.astype(scaled, epilogue) if epilogue != "scale" else scaled

    def reference(x, w, s):
        total = (x.T if a_is_turned else x) @ (w.T if b_is_turned else w)
        return [total, total * s] if epilogue == "none" else [total * s]

    return given, body, reference


def inputs_of(params):
    rng = np.random.default_rng()

    def make(param):
        dtype = str(param.ty.dtype.dtype)
        if "int" in dtype:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, extents(param.ty), dtype, endpoint=True)
        values = rng.standard_normal(extents(param.ty))
        return values.astype(getattr(ml_dtypes, dtype) if "float8" in dtype else dtype)

    return {p.name: make(p) for p in params}


def check(case, config_of, kernel_of, tolerance=2e-5, device=FEW):
    """Make the kernel, and compare its results; sums of integers are exact."""
    params, body, reference = case
    members = group(params, body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    config = config_of(contraction, device)
    assert config is not None
    inputs = inputs_of(params)
    results = run(kernel_of(members.program, config), members, inputs)
    wide = [x.astype("int64" if x.dtype.kind in "iu" else "float64") for x in inputs.values()]
    expected = reference(*wide)
    for result, exact in zip(results, expected, strict=True):
        if result.dtype.kind == "i":
            np.testing.assert_array_equal(result, exact)
    close(results, expected, tolerance)
    return config


def wgmma_tile(contraction, device):
    """The smallest tile."""
    found = wgmma_configs(contraction, device)
    tile = {"block_m": 64, "block_n": 64, "consumers": 1}
    return with_numbers(found, **tile)


def mma_tile(contraction, device):
    """A small tile of several stages and slices."""
    start = tile_gemm_config(contraction, device)
    if start is None:
        return None
    return changed(
        start, block_m=32, block_n=64, block_k=64 // start.problem.item_bytes, warps_m=1, warps_n=2,
        warps_k=1, stages=3, split_k=1,
    )  # fmt: skip


BYTES = {
    "e4m3": product(72, 272, 88),
    "e5m2": product(72, 272, 88, (E5M2, E5M2)),
    "mixed": product(72, 144, 64, (E4M3, E5M2)),
    "odd_rows": product(77, 144, 83, epilogue="float16"),
    "float8_results": product(72, 144, 64, epilogue=E4M3),
    "s8": product(72, 272, 88, ("int8", "int8"), epilogue="none"),
    "u8": product(77, 144, 83, ("uint8", "uint8"), epilogue="none"),
    "u8_s8": product(72, 144, 64, ("uint8", "int8"), epilogue="none"),
}
TOLERANCE = {"odd_rows": 2e-3, "float8_results": 0.07}


@pytest.mark.parametrize("name", BYTES)
def test_wgmma(name):
    config = check(BYTES[name], wgmma_tile, wgmma_gemm_gpu, TOLERANCE.get(name, 2e-5))
    assert config.tile.block_k == 128


@pytest.mark.parametrize("name", BYTES)
def test_mma_sync(name):
    config = check(BYTES[name], mma_tile, tile_gemm_gpu, TOLERANCE.get(name, 2e-5))
    assert config.problem.k_step == 32


FLOATS = {
    "k_contiguous": product(72, 136, 88, ("float32", "float32")),
    "n_contiguous": product(72, 136, 88, ("float32", "float32"), b_is_turned=False),
    "both_turned": product(72, 136, 88, ("float32", "float32"), True, True),
    "a_turned": product(72, 136, 88, ("float32", "float32"), True, False),
    "odd_rows": product(77, 68, 83, ("float32", "float32")),
}
ROUNDING = replace(FEW, rounds_to_tf32=True)


@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4096, 4096), (512, 4096, 14336)])
def test_consumers_of_tfloat32_share_columns(m, k, n):
    """In turns they took 434 us, and 359 so, on an H200 (4096^3)."""
    params, body, _ = product(m, k, n, ("float32", "float32"))
    members = group(params, body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    config = wgmma_config(contraction, replace(CUDA.device, rounds_to_tf32=True))
    assert (config.tile.block_m, config.tile.block_n, config.is_ping_pong) == (128, 256, False)


@pytest.mark.parametrize("name", FLOATS)
def test_split_float32_keeps_its_precision(name):
    # Of the largest result; up to 3e-7 are float32's own. Without a lower half: above 1e-4.
    config = check(FLOATS[name], mma_tile, tile_gemm_gpu, 1e-6)
    assert config.problem.products == 3


@pytest.mark.parametrize("name", FLOATS)
def test_float32_is_rounded_where_that_is_allowed(name):
    check(FLOATS[name], mma_tile, tile_gemm_gpu, 4e-3, ROUNDING)
    with pytest.raises(AssertionError):
        check(FLOATS[name], mma_tile, tile_gemm_gpu, 2e-5, ROUNDING)


def test_wgmma_of_tfloat32():
    check(FLOATS["odd_rows"], wgmma_tile, wgmma_gemm_gpu, 4e-3, ROUNDING)


def test_bytes_are_stored_as_words():
    """Float8 results of four columns at once, int8 results of eight."""
    sizes = {dtype: store_size(dtype, 8) for dtype in (E4M3, "int8", "float16", "float64")}
    assert sizes == {E4M3: 4, "int8": 8, "float16": 8, "float64": None}
    assert store_size("int8", 2) is None


def test_infinities_of_split_float32():
    """As float32 has them: products with lower halves, which are NaN, are left out."""
    params, body, _ = product(32, 64, 64, ("float32", "float32"))
    members = group(params, body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    config = mma_tile(contraction, FEW)
    inputs = inputs_of(params)
    x, w = inputs["x"], inputs["w"]
    x[1, 3], x[2, 5], x[4, 7], x[5] = np.inf, -np.inf, np.nan, 3e38
    w[7, 3] = 0
    with np.errstate(all="ignore"):
        expected = (x @ w.T) * inputs["s"]
    (result,) = run(tile_gemm_gpu(members.program, config), members, inputs)
    rows = [1, 2, 4]
    np.testing.assert_array_equal(result[rows], expected[rows])
    assert np.isnan(result[1, 7])
    assert np.isinf(result[1]).sum() == 63
    assert np.isfinite(np.delete(result, [1, 2, 4, 5], 0)).all()


@pytest.mark.parametrize(
    ("case", "types"),
    [
        (product(72, 144, 96, b_is_turned=False), ("float16", "float16")),
        (product(72, 143, 88), ("float16", "float16")),
        (product(72, 144, 96, a_is_turned=True), ("float16", "float16")),
        (product(72, 144, 96, ("int8", "int8"), b_is_turned=False), ("int8", "int8")),
        (product(72, 143, 83, ("int8", "uint8"), epilogue="none"), ("int8", "uint8")),
    ],
    ids=["b_across", "odd_k", "a_across", "int8_across", "int8_odd_k"],
)
def test_what_wgmma_does_not_read(case, types):
    """Float8 is exact in float16; threads put bytes along K on their way to shared memory."""
    params, body, _ = case
    members = group(params, body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    assert wgmma_config(contraction, FEW) is None or types[0] == "float16"
    config = check(case, mma_tile, tile_gemm_gpu)
    assert (config.problem.a_dtype, config.problem.b_dtype) == types
    assert config.problem.staged_a or config.problem.staged_b


@pytest.mark.parametrize(
    "case",
    [
        product(40, 67, 48, ("float32", "float32")),
        product(40, 64, 43, ("float32", "float32"), b_is_turned=False),
    ],
    ids=["odd_k", "odd_n"],
)
def test_float32_that_is_not_aligned(case):
    """Words are copied one by one."""
    check(case, mma_tile, tile_gemm_gpu)


def test_float32_that_is_computed():
    """Squeeze-excite scales, the layer before a product: by threads, in vectors."""
    given = [tensor("x", 40, 72), tensor("g", 72), tensor("w", 72, 48)]

    def body(emit, x, g, w):
        return op.matmul(emit(op.multiply(emit(op.nn.relu(x)), g)), w)

    def reference(x, g, w):
        return [(np.maximum(x, 0) * g) @ w]

    config = check((given, body, reference), mma_tile, tile_gemm_gpu)
    assert config.problem.staged_a
    assert config.problem.products > 1


@pytest.mark.parametrize(
    ("spec", "types", "expected"),
    [
        ("cuda:sm_89", (E4M3, E5M2), E4M3),
        ("cuda:sm_86", (E4M3, E5M2), "float16"),
        ("cuda:sm_80", ("int8", "uint8"), "int8"),
        ("cuda:sm_80", ("float32", "float32"), "float32"),
        ("rocm:gfx942", ("int8", "int8"), None),
    ],
)
def test_devices(spec, types, expected):
    params, body, _ = product(256, 256, 256, types)
    members = group(params, body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    config = tile_gemm_config(contraction, parse(spec).device)
    assert (None if config is None else config.problem.a_dtype) == expected


def test_claims_tell_the_arithmetic():
    cases = {
        "products of float8_e4m3fn": (product(512, 512, 512), CUDA.device),
        "float32 split into tfloat32 (3xTF32)": (FLOATS["k_contiguous"], CUDA.device),
        "float32 rounded to tfloat32": (FLOATS["k_contiguous"], ROUNDING),
    }
    for arithmetic, ((params, body, _), device) in cases.items():
        claim = GpuContraction().claim(group(params, body, CUDA), device)
        assert claim.arithmetic == arithmetic
