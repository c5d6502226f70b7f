"""Running products, and sums of any type, on GPUs: a thread a line, and no kernel of TVM's."""

import numpy as np
import pytest
from amd_code import run_on_amd
from group_kernels import CUDA, SIZE, arrays, check, group, kernel, run, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.untouched import is_scheduled
from tvm_fusion.device import parse
from tvm_fusion.ecg.legalization.operators.scan import TYPES
from tvm_fusion.schedule.single.template import Single

pytestmark = pytest.mark.slow_beyond(6)

op = relax.op
INTEGERS = ("int8", "uint8", "int16", "uint32", "int32", "int64", "uint64")


def exclusive_of(function, x, axis):
    """What numpy has for the elements before each one."""
    first = np.take(x, [0], axis) * 0 + (function is np.cumprod)
    before = np.delete(x, -1, axis)
    return function(np.concatenate([first, before], axis), axis)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 37), 1), ((5, 37), 0), ((3, 11, 7), 1), ((17,), 0), ((1, 1), -1)]
)
def test_products_along_any_axis(shape, axis, dtype, exclusive):
    def reference(x):
        return [exclusive_of(np.cumprod, x, axis) if exclusive else np.cumprod(x, axis)]

    params = [tensor("x", *shape, dtype=dtype)]
    tolerance = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-6, "float64": 1e-14}[dtype]

    def body(emit, x):
        return op.cumprod(x, axis=axis, exclusive=exclusive)

    check(Single(True), params, body, reference, CUDA, tolerance)


def test_symbolic_extents():
    m, n = (tirx.Var(name, "int64") for name in "mn")
    for axis in (0, 1):
        params = [tensor("x", m, n)]
        members = group(params, lambda emit, x, axis=axis: op.cumprod(x, axis), CUDA)
        _, func = kernel(Single(True), members, CUDA)
        x = arrays(params)["x"]
        assert x.shape == (SIZE, SIZE)
        np.testing.assert_allclose(run(func, members, {"x": x})[0], np.cumprod(x, axis), 1e-6)


def test_lines_of_three_axes_are_scheduled_without_a_failure():
    members = group([tensor("x", 3, 8, 5)], lambda emit, x: op.cumprod(x, 1), CUDA)
    with recording() as decisions:
        kernel(Single(True), members, CUDA)
    assert [d.code for d in decisions] == ["scheduled"]


LIMITS = {
    "zero before what overflows": [0, 1e30, 1e30, 1e30],
    "back from a large number": [1e30, 1e-30, 1e-30, 1e-30, 1e30],
    "infinite for good": [1e30, 1e30, 1e-30, -1],
    "zero for good": [1e-30, 1e-30, 1e30, 1e30],
    "no number": [np.inf, 0, 2],
}


@pytest.mark.parametrize("case", LIMITS)
def test_products_overflow_in_order(case):
    x = np.array([LIMITS[case]], "float32")
    members = group([tensor("x", *x.shape)], lambda emit, x: op.cumprod(x, 1), CUDA)
    _, func = kernel(Single(True), members, CUDA)
    with np.errstate(all="ignore"):
        expected = np.cumprod(x, 1)
    np.testing.assert_array_equal(run(func, members, {"x": x})[0], expected)


def drawn(shape, dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(3)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True) | np.array(1, dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cumsum", d) for d in INTEGERS if d not in TYPES] + [("cumprod", d) for d in INTEGERS],
)
def test_integers_wrap(name, dtype):
    x = drawn((3, 21), dtype)
    params = [tensor("x", *x.shape, dtype=dtype)]
    members = group(params, lambda emit, x: getattr(op, name)(x, 0), CUDA)
    _, func = kernel(Single(True), members, CUDA)
    (found,) = run(func, members, {"x": x})
    np.testing.assert_array_equal(found, getattr(np, name)(x, 0, dtype=dtype))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("axis", "dtype"), [(0, "float32"), (1, "int64")])
def test_on_amd(axis, dtype, arch):
    spec, shape = parse(f"rocm:{arch}"), (37, 70)
    x = arrays([tensor("x", *shape)])["x"] if dtype == "float32" else drawn(shape, dtype)
    body, params = lambda emit, x: op.cumprod(x, axis), [tensor("x", *shape, dtype=dtype)]
    _, func = kernel(Single(True), group(params, body, spec), spec)
    y = np.zeros_like(x)
    run_on_amd(func, arch, x, y)
    np.testing.assert_allclose(y, np.cumprod(x, axis), 1e-5 if dtype == "float32" else 0)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942", "rocm:gfx1100"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_no_kernel_of_tvm_is_taken(name, target):
    n = tirx.Var("n", "int64")
    dtypes = ("float32", "float16", "bfloat16", "float64", *INTEGERS)
    cases = [((n, 7), d, axis, e) for d in dtypes for axis in (0, 1) for e in (False, True)]
    cases += [((4, n), d, None, False) for d in ("float32", "int64", "int8")]
    for shape, dtype, axis, exclusive in cases:
        x = tensor("x", *shape, dtype=dtype)
        result = getattr(op, name)(x, axis, exclusive=exclusive)
        with parse(target).tvm_target():
            made = transform.Legalize()(main_module([x], result))
        functions = [f for f in made.functions.values() if isinstance(f, tirx.PrimFunc)]
        assert functions
        assert not any(map(is_scheduled, functions)), (shape, dtype, axis)
        assert "call_pure_packed" not in made["main"].script()
