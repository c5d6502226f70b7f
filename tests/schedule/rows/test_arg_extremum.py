"""Places of extrema on a GPU: NaN, ties, infinities and zeros of either sign, in every type."""

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from group_kernels import CUDA, group, kernel, run, tensor
from tvm import relax, tirx

from tests.schedule.rows.gpu.test_rows_gpu import threads_and_blocks
from tvm_fusion.device import parse
from tvm_fusion.schedule.rows.template import Rows

OP = relax.op
NAN, INF = float("nan"), float("inf")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PLACES = {"argmax": np.argmax, "argmin": np.argmin}


def rows(n, dtype, seed=0):
    """Rows of few different numbers, so that there are ties, with what is not finite anywhere."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (9, n)).astype("float32")
    places = rng.integers(0, n, (9, 4))
    x[1] = -INF
    x[2] = INF
    x[3] = np.where(rng.integers(0, 2, n), 0.0, -0.0)
    x[4] = NAN
    x[5, places[5]] = NAN
    x[6, places[6]] = [NAN, INF, -INF, NAN]
    x[7, places[7, :2]] = [INF, -INF]
    x[8, -1] = -NAN
    return x.astype(DTYPES[dtype])


def computed(name, x, dtype, axis=-1, **options):
    """Places by the kernel, and the kernel."""
    params = [tensor("x", *x.shape, dtype=dtype)]
    members = group(params, lambda emit, x: emit(getattr(OP, name)(x, axis, **options)), CUDA)
    _, func = kernel(Rows(), members, CUDA)
    (found,) = run(func, members, {"x": x}, CUDA)
    return found, func


def shifts(func):
    """Shifts of bits, which integers in the order of numbers are made by."""
    found = []
    tvm_ffi.structural_walk(func.body, (tirx.RShift, found.append))
    return len(found)


@pytest.mark.slow_beyond(22)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("n", [3, 37, 128, 1000])
def test_places_are_numpys(name, n, dtype):
    x = rows(n, dtype)
    found, func = computed(name, x, dtype)
    np.testing.assert_array_equal(found, PLACES[name](x.astype("float32"), -1))
    assert shifts(func) == 0


@pytest.mark.parametrize("name", PLACES)
def test_kept_and_along_other_axes(name):
    x = np.ascontiguousarray(rows(41, "float16").T)
    found, _ = computed(name, x, "float16", 0, keepdims=True)
    right = PLACES[name](x.astype("float32"), 0)
    np.testing.assert_array_equal(found, right[None])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_rows_that_registers_do_not_hold_are_read_once(name):
    x = np.tile(rows(1000, "float16"), (1, 70))[5:7]
    found, func = computed(name, x, "float16")
    np.testing.assert_array_equal(found, PLACES[name](x.astype("float32"), -1))
    assert shifts(func) > 0


def test_double_precision_compares_integers():
    x = np.random.default_rng(3).standard_normal((3, 100))
    x[1, 7] = x[1, 50] = NAN
    found, func = computed("argmax", x, "float64")
    np.testing.assert_array_equal(found, x.argmax(-1))
    assert shifts(func) > 0


@pytest.mark.parametrize("name", PLACES)
def test_values_and_places(name):
    """As of PyTorch's max along an axis."""
    x = rows(200, "float16")
    extremum = {"argmax": OP.max, "argmin": OP.min}[name]

    def both(emit, x):
        return [emit(extremum(x, -1)), emit(getattr(OP, name)(x, -1))]

    members = group([tensor("x", *x.shape, dtype="float16")], both, CUDA)
    _, func = kernel(Rows(), members, CUDA)
    values, places = run(func, members, {"x": x}, CUDA)
    reduced = {"argmax": np.max, "argmin": np.min}[name](x.astype("float32"), -1)
    np.testing.assert_array_equal(values.astype("float32"), reduced)
    np.testing.assert_array_equal(places, PLACES[name](x.astype("float32"), -1))


def test_whole_waves_compare_numbers_too():
    spec = parse("rocm:gfx942")
    params = [tensor("x", 7, 1000, dtype="float16")]
    members = group(params, lambda emit, x: emit(OP.argmax(x, -1)), spec)
    _, func = kernel(Rows(), members, spec)
    assert shifts(func) == 0
    assert threads_and_blocks(func)[1] == 64
