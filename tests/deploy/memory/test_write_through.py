"""Kernels that write slices of states themselves, and slices that keep a kernel of their own."""

import math

import numpy as np
import pytest
from cache_models import copied
from tvm import relax, tirx

import tvm_fusion

op = relax.op
PLACES, NAMES = 9, {"keys": "output_1", "values": "output_2"}


def module(axis, count=1, kind="", dtype="float32"):
    """A step that writes two tensors that it computes into caches, and sums the caches up."""
    shape = [1, 2, 6, 16]
    shape[axis] = PLACES
    new = [count if i == axis else n for i, n in enumerate(shape)]
    builder = relax.BlockBuilder()
    emit = builder.emit
    types = {"x": (new, "float32"), "position": ((count,), "int64")}
    types |= dict.fromkeys(NAMES, (shape, dtype))
    x, position, keys, values = (
        relax.Var(n, relax.TensorType(s, t)) for n, (s, t) in types.items()
    )
    with builder.function("main", [x, position, keys, values]):
        with builder.dataflow():
            number = position
            if kind == "late":
                number = emit(op.astype(emit(op.sum(emit(op.abs(x)))), "int64"))
                number = emit(op.reshape(number, (1,)))
            first = emit(op.multiply(x, x))
            second = emit(op.reshape(x, (math.prod(new),)))
            second = emit(op.reshape(emit(op.exp(second)), new))
            if dtype != "float32":
                first, second = (emit(op.astype(v, dtype)) for v in (first, second))
            caches = (
                copied(emit, keys, number, first, axis),
                copied(emit, values, position, second, axis),
            )
            product = emit(op.multiply(*(emit(op.astype(c, "float32")) for c in caches)))
            result = emit(op.sum(product, axis=[axis]))
            others = [first] if kind == "read" else []
            whole = builder.emit_output(relax.Tuple([result, *caches, *others]))
        builder.emit_func_output(whole)
    return builder.get()


def launched(executable):
    return [x["kernel"] for x in executable.manifest["functions"]["main"]["launches"]]


def draw(shape, seed, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("axis", "count", "dtype"),
    [(1, 1, "float32"), (2, 1, "float16"), (3, 1, "float32"), (2, 3, "float32")],
)
def test_the_kernel_that_computes_slices_writes_them(axis, count, dtype):
    artifact = tvm_fusion.compile(module(axis, count, dtype=dtype), in_place=NAMES)
    assert not any("write" in name for name in launched(artifact))
    for seed, first in enumerate((0, PLACES - count, -count, 5)):
        agrees(tvm_fusion.load(artifact), axis, first + np.arange(count), seed, dtype)


@pytest.mark.parametrize("axis", [1, 2])
def test_kernels_of_symbolic_extents_write_slices(axis):
    given = module(axis, tirx.Var("tokens", "int64"))
    dims = {"tokens": tvm_fusion.DimRange(1, PLACES)}
    artifact = tvm_fusion.compile(given, in_place=NAMES, dims=dims)
    assert not any("write" in name for name in launched(artifact))
    for count in (1, 4, PLACES):
        first = np.random.default_rng().integers(PLACES - count + 1)
        agrees(tvm_fusion.load(artifact), axis, first + np.arange(count), count)


def agrees(executable, axis, positions, seed, dtype="float32"):
    shape = tuple(executable.signatures["main"].inputs[2].shape)
    keys, values = (draw(shape, seed, dtype) for seed in range(2))
    new = tuple(len(positions) if i == axis else n for i, n in enumerate(shape))
    x, want = draw(new, seed), (keys.copy(), values.copy())
    place = (slice(None),) * axis + (positions,)
    want[0][place], want[1][place] = x * x, np.exp(x)
    result = executable(x=x, position=positions, keys=keys, values=values)
    total = (want[0].astype("float64") * want[1]).sum(axis)
    np.testing.assert_allclose(result["output_0"], total, rtol=1e-2, atol=1e-2)
    for found, expected in zip((keys, values), want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("kind", ["read", "late"])
def test_slices_that_are_needed_or_placed_later_have_a_kernel(kind):
    artifact = tvm_fusion.compile(module(2, kind=kind), in_place=NAMES)
    assert any("write" in name for name in launched(artifact))
    executable = tvm_fusion.load(artifact)
    keys, values = (draw((1, 2, PLACES, 16), seed) for seed in range(2))
    x = draw((1, 2, 1, 16), 3) / 100
    result = executable(x=x, position=np.array([4]), keys=keys, values=values)
    place = int(np.abs(x).sum()) if kind == "late" else 4
    np.testing.assert_allclose(keys[:, :, place], (x * x)[:, :, 0], rtol=1e-6)
    np.testing.assert_allclose(values[:, :, 4], np.exp(x)[:, :, 0], rtol=1e-6)
    total = (keys.astype("float64") * values).sum(2)
    np.testing.assert_allclose(result["output_0"], total, rtol=1e-5, atol=1e-5)
