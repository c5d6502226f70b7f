"""Sorts of every type, with NaN and signed zeros among the numbers."""

import ml_dtypes  # noqa: F401  # numpy's bfloat16
import numpy as np
import pytest
import tvm
from relax_modules import module_of
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool"]


def module(x, **makes):
    """One function for each operator."""
    functions = {}
    for name, make in makes.items():
        param = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
        functions[name] = [param], make(param)
    return module_of(functions)


def run(x, pipeline="tvm_fusion", **makes):
    """What each operator gives, compiled in one module."""
    target = parse("cpu").tvm_target()
    executable = tvm.compile(
        module(x, **makes), target, relax_pipeline=pipeline, tir_pipeline=pipeline
    )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    results = [machine[name](tvm.runtime.tensor(x)) for name in makes]
    return [
        [result.numpy()] if hasattr(result, "numpy") else [part.numpy() for part in result]
        for result in results
    ]


def numbers(dtype, shape=(5, 13)):
    x = (np.random.default_rng().normal(size=shape) * 4).round()  # some are equal
    if dtype in FLOATS:
        x.flat[[3, 20, 21, 40]], x.flat[[7, 50]], x.flat[[9, 33]] = np.nan, np.inf, -np.inf
        x.flat[[11, 12]] = 0.0, -0.0
    with np.errstate(invalid="ignore"):
        return x.astype(dtype)


def order(x, axis, descending):
    """Stable, NaN larger than all."""
    wide = x.astype("float64")
    wide = -wide if descending else wide
    is_nan = np.isnan(wide)
    return np.lexsort((wide, ~is_nan if descending else is_nan), axis=axis)


@pytest.mark.slow_beyond(10)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_orders_as_numpy_does(dtype, descending):
    x = numbers(dtype)
    places = order(x, 0, descending)
    (found,), (ordered,) = run(
        x,
        argsort=lambda v: relax.op.argsort(v, 0, descending, "int64"),
        sort=lambda v: relax.op.sort(v, 0, descending),
    )
    np.testing.assert_array_equal(found, places)
    assert ordered.dtype == x.dtype
    right = np.take_along_axis(x, places, 0)
    np.testing.assert_array_equal(ordered.astype("float64"), right.astype("float64"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32"])
def test_the_largest(dtype):
    x = numbers(dtype)
    places = order(x, 1, True)[:, :4]
    values = np.take_along_axis(x, places, 1).astype("float64")
    right = {"both": [values, places], "values": [values], "indices": [places]}
    results = run(x, **{parts: largest(parts) for parts in right})
    for found, wanted in zip(results, right.values(), strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.astype("float64"), other)


def test_the_largest_keep_the_sign_of_zero():
    x = np.array([[0.0, -0.0, -1.0, -0.0, 0.0]], "float32")
    (found,) = run(x, main=largest("both"))
    np.testing.assert_array_equal(np.signbit(found[0]), [[False, True, True, False]])


def largest(parts):
    return lambda v: relax.op.topk(v, 4, 1, parts, True, "int32")


def test_integers_are_sorted_as_they_are():
    with parse("cpu").tvm_target():
        mod = transform.Legalize()(module(numbers("int32"), main=relax.op.sort))
    assert "sort_keys" not in mod.script()


def test_stock_loses_the_order_beside_nan():
    """Fails where TVM's sort is right: then floating point numbers need no keys."""
    x = np.float32([3, np.nan, 1, 2, np.nan, -1, 0])
    ((found,),) = run(x, "default", main=relax.op.sort)
    assert not np.array_equal(found, np.sort(x), equal_nan=True)


def test_places_alone_need_no_sorted_numbers():
    """They were a group without results, which no template emits a kernel for."""

    def places(v):
        return relax.TupleGetItem(relax.op.topk(v, 3), 1)

    with parse("cpu").tvm_target():
        legal = transform.Legalize()(module(numbers("float32"), main=places))
    assert "sort_keys" in legal["main"].script()
    assert "sorted_numbers" not in legal["main"].script()
