"""Running sums along rows: right for any length, one launch, wherever they are compiled for."""

import numpy as np
import pytest
from amd_code import amd_module, run_on_amd
from group_kernels import CPU, CUDA, arrays, check, close, group, kernel, run, tensor
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.scan.template import PrefixSum

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
specs = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])
TOLERANCE = {"float32": 2e-5, "float16": 1e-3, "bfloat16": 8e-3, "int32": 0}


def inclusive(x):
    return [np.cumsum(x.astype("float64"), -1)]


def exclusive_of(x):
    return [np.cumsum(x, -1) - x]


def sums(**options):
    return lambda emit, x: op.cumsum(x, axis=-1, **options)


def checked(spec, params, body, reference, tolerance=2e-5):
    return check(PrefixSum(spec is CUDA), params, body, reference, spec, tolerance)


@specs
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(5, 1), (3, 3), (4, 127), (1, 129), (5, 1000), (2, 3, 40)])
def test_rows_of_any_length(shape, dtype, spec):
    params = [tensor("x", *shape, dtype=dtype)]
    checked(spec, params, sums(), inclusive, TOLERANCE[dtype])


@specs
@pytest.mark.parametrize("n", [1, 100, 5000, 20001])
def test_without_the_element_itself(n, spec):
    checked(spec, [tensor("x", 2, n)], sums(exclusive=True), exclusive_of, 1e-4)


@specs
@pytest.mark.parametrize("n", [4096, 5000, 20001])
def test_long_rows_take_several_rounds(n, spec):
    _, func = checked(spec, [tensor("x", 3, n)], sums(), inclusive, 1e-4)
    assert ("round" in func.script()) == (spec is CUDA and n > 2048)


@specs
@pytest.mark.parametrize("rows", [1, 3, 131])
def test_short_rows_share_blocks(rows, spec):
    checked(spec, [tensor("x", rows, 24)], sums(), inclusive)


@specs
def test_symbolic_extents(spec):
    m, n = (tirx.Var(name, "int64") for name in "mn")
    checked(spec, [tensor("x", m, n)], sums(), inclusive)


@specs
def test_a_vector(spec):
    checked(spec, [tensor("x", 700)], sums(), inclusive, 1e-4)
    checked(spec, [tensor("x", 700)], lambda emit, x: op.cumsum(x), inclusive, 1e-4)


@specs
def test_counts_are_wide(spec):
    """What PyTorch computes positions by: counts of int32 in int64."""
    body = sums(dtype="int64")
    checked(spec, [tensor("x", 3, 130, dtype="int32")], body, inclusive, 0)


@specs
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_lose_nothing_on_the_way(dtype, spec):
    """Of 1/2, 5,000 times, float16 would add nothing from 1,024 on, bfloat16 from 128 on."""
    params = [tensor("x", 1, 5000, dtype=dtype)]
    members = group(params, sums(), spec)
    _, func = kernel(PrefixSum(spec is CUDA), members, spec)
    halves = np.full((1, 5000), 0.5).astype(arrays(params)["x"].dtype)
    (found,) = run(func, members, {"x": halves})
    exact = np.cumsum(np.full((1, 5000), 0.5), -1)
    assert np.abs(found.astype("float64") - exact).max() <= TOLERANCE[dtype] * exact.max()


def test_infinities_stay_where_they_are():
    """No thread finds what came before it by taking its own part away from a sum."""
    params = [tensor("x", 1, 1000)]
    members = group(params, sums(), CUDA)
    _, func = kernel(PrefixSum(True), members, CUDA)
    x = np.ones((1, 1000), "float32")
    x[0, 500] = np.inf
    (found,) = run(func, members, {"x": x})
    np.testing.assert_array_equal(found, np.cumsum(x, -1))


def test_other_axes_are_refused():
    members = group([tensor("x", 30, 40)], lambda emit, x: op.cumsum(x, axis=0), CPU)
    assert isinstance(PrefixSum(True).claim(members, CUDA.device), Refusal)


def test_vectors_where_rows_have_whole_ones():
    for n, dtype, width in ((4096, "float16", 8), (4096, "float32", 4), (4095, "float16", None)):
        members = group([tensor("x", 64, n, dtype=dtype)], sums(), CUDA)
        _, func = kernel(PrefixSum(True), members, CUDA)
        loops = [x for x in find(func.body, tirx.For) if x.kind == tirx.ForKind.VECTORIZED]
        assert {int(x.extent) for x in loops} == ({width} if width else set())


def module(shape, dtype):
    x = tensor("x", *shape, dtype=dtype)
    return main_module([x], op.cumsum(x, axis=-1))


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx90a", "rocm:gfx942", "rocm:gfx1100"])
@pytest.mark.parametrize(("n", "dtype"), [(1000, "float16"), (4096, "float32"), (129, "bfloat16")])
def test_one_launch_on_every_gpu(target, n, dtype):
    text = str(tvm_fusion.explain(module((64, n), dtype), target=target))
    assert "by prefix_sum" in text
    assert "1 kernel" in text


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942"])
@pytest.mark.parametrize("options", [{"axis": 0}, {"axis": 1, "exclusive": True}, {}])
def test_a_gpu_sums_across_rows_along_them(target, options):
    x = relax.Var("x", relax.TensorType((5, 7, 9), "float32"))
    mod = main_module([x], op.cumsum(x, **options))
    groups = tvm_fusion.explain(mod, target, stock=False).groups
    templates = {group.template for group in groups}
    assert "prefix_sum" in templates
    assert not templates & {"fallback", "single"}


@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((37, 1), 0), ((5, 64), 0), ((33, 331), 0), ((3, 1100), -2), ((4, 9, 70), 1), ((7, 3, 5), 0),
     ((2, 6, 5, 4, 3), 2), ((19, 4, 600), 0)],
)  # fmt: skip
def test_columns_on_a_cpu(shape, axis, is_exclusive):
    def reference(x):
        whole = np.cumsum(x.astype("float64"), axis)
        return [whole - x if is_exclusive else whole]

    def body(emit, x):
        return op.cumsum(x, axis=axis, exclusive=is_exclusive)

    checked(CPU, [tensor("x", *shape)], body, reference)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_columns_of_any_type(dtype):
    def reference(x):
        return [np.cumsum(x.astype("float64"), 0)]

    params = [tensor("x", 21, 75, dtype=dtype)]
    checked(CPU, params, lambda emit, x: op.cumsum(x, axis=0), reference, TOLERANCE[dtype])


def test_symbolic_columns():
    k, m, n = (tirx.Var(name, "int64") for name in "kmn")

    def reference(x):
        return [np.cumsum(x.astype("float64"), 1)]

    checked(CPU, [tensor("x", k, m, n)], lambda emit, x: op.cumsum(x, axis=1), reference)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize(
    ("shape", "exclusive", "dtype"),
    [
        ((3, 100), False, "float32"),
        ((2, 517), True, "int32"),
        ((5, 3), True, "float32"),
        ((1, 5000), False, "float16"),
        ((2, 129), False, "int64"),
    ],
)
def test_amd_waves_scan_by_lane_moves(arch, shape, exclusive, dtype):
    params = [tensor("x", *shape, dtype=dtype)]
    spec = parse(f"rocm:{arch}")
    members = group(params, sums(exclusive=exclusive), spec)
    _, func = kernel(PrefixSum(True), members, spec)
    assert "bpermute" not in amd_module({"main": func}, arch).inspect_source("asm")
    (x,) = arrays(params).values()
    y = np.full(shape, 7).astype(dtype)
    run_on_amd(func, arch, x, y)
    wide = x.astype("float64")
    close([y], exclusive_of(wide) if exclusive else inclusive(wide), TOLERANCE.get(dtype, 0))
