"""Rotary embedding is found in every spelling, and computes the same."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.rewrite.recompose.written import cleaned, const, module, op, recomposed, tensor

LENGTH, WIDTH = 7, 6
X = tensor(2, 3, LENGTH, WIDTH)
TABLE = tensor(1, 1, LENGTH, WIDTH // 2)
ANGLES = np.outer(np.arange(LENGTH), 0.3 ** np.arange(WIDTH // 2))
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def wide(table, order):
    """A table as wide as the tensor, each angle twice."""
    return np.concatenate([table, table], -1) if order == "half" else np.repeat(table, 2, -1)


def sliced(x, begin, end, step=1):
    return op.strided_slice(x, (3,), (begin,), (end,), (step,))


def half(x):
    """Both halves, by slices."""
    return sliced(x, 0, WIDTH // 2), sliced(x, WIDTH // 2, (1 << 63) - 1)


def by_split(x):
    parts = op.split(x, 2, axis=-1)
    return parts[0], parts[1]


def every_other(x):
    return sliced(x, 0, WIDTH, 2), sliced(x, 1, (1 << 63) - 1, 2)


def real_imaginary(x):
    """Halves of pairs that are an axis of their own, as of complex numbers."""
    pairs = op.reshape(x, (2, 3, x.ty.shape[2], WIDTH // 2, 2))
    return tuple(op.take(pairs, relax.const(i, "int64"), axis=4) for i in (0, 1))


def real_imaginary_split(x):
    parts = op.split(op.reshape(x, (2, 3, x.ty.shape[2], WIDTH // 2, 2)), 2, axis=-1)
    return tuple(op.squeeze(parts[i], [-1]) for i in (0, 1))


def joined(a, b):
    return op.concat([a, b], -1)


def woven(a, b):
    shape = a.ty.shape if isinstance(a, relax.Var) else (2, 3, LENGTH, WIDTH // 2)
    return op.reshape(op.stack([a, b], -1), (*list(shape)[:-1], WIDTH))


def woven_by_concat(a, b):
    return op.reshape(op.concat([op.expand_dims(a, -1), op.expand_dims(b, -1)], -1),
                      (2, 3, LENGTH, WIDTH))  # fmt: skip


def whole(apart, together, order, change=""):
    """``x * cos + turned * sin`` with constant tables."""

    def body(x):
        a, b = apart(x)
        cos, sin = (const(wide(t, order).astype("float32")) for t in (COS, SIN))
        cos, sin = (sin, cos) if change == "exchanged" else (cos, sin)
        turned = together(op.negative(b), a)
        if change == "sign":
            turned = together(b, op.negative(a))
        if change == "order":
            turned = together(op.negative(a), b)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    return body


def whole_subtracted(x):
    a, b = by_split(x)
    cos, sin = (const(wide(t, "half").astype("float32")) for t in (COS, SIN))
    swapped = joined(op.multiply(b, const(-1.0)), a)
    return op.add(op.multiply(sin, swapped), op.multiply(cos, x))


def parts(apart, together, change=""):
    """Both parts of the result, with tables that are parameters."""

    def body(x, cos, sin):
        a, b = apart(x)
        first = op.subtract(op.multiply(a, cos), op.multiply(sin, b))
        second = op.add(op.multiply(a, sin), op.multiply(b, cos))
        if change == "sign":
            first = op.add(op.multiply(a, cos), op.multiply(b, sin))
            second = op.subtract(op.multiply(b, cos), op.multiply(a, sin))
        if change == "exchanged":
            second = op.add(op.multiply(a, cos), op.multiply(b, sin))
        return together(first, second)

    return body


def computed(x, angles):
    """Tables computed in the graph, as wide as the tensor."""
    both = op.concat([angles, angles], -1)
    a, b = half(x)
    turned = joined(op.negative(b), a)
    return op.add(op.multiply(x, op.cos(both)), op.multiply(turned, op.sin(both)))


def computed_exchanged(x, angles):
    both = op.concat([angles, angles], -1)
    a, b = half(x)
    turned = joined(op.negative(b), a)
    return op.add(op.multiply(x, op.sin(both)), op.multiply(turned, op.cos(both)))


VARIANTS = {
    "half": (whole(half, joined, "half"), [X], "half-split"),
    "half_by_split": (whole(by_split, joined, "half"), [X], "half-split"),
    "half_commuted": (whole_subtracted, [X], "half-split"),
    "interleaved": (whole(every_other, woven, "interleaved"), [X], "interleaved"),
    "interleaved_concat": (
        whole(real_imaginary, woven_by_concat, "interleaved"), [X], "interleaved"
    ),
    "half_in_parts": (parts(half, joined), [X, TABLE, TABLE], "half-split"),
    "interleaved_in_parts": (parts(every_other, woven), [X, TABLE, TABLE], "interleaved"),
    "real_imaginary": (parts(real_imaginary, woven), [X, TABLE, TABLE], "interleaved"),
    "real_imaginary_split": (
        parts(real_imaginary_split, woven_by_concat), [X, TABLE, TABLE], "interleaved"
    ),
    "computed": (computed, [X, TABLE], "half-split"),
}  # fmt: skip


def reference(x, cos, sin, order):
    """In float64."""
    x = x.astype("float64")
    if order == "half-split":
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def rotary(mod):
    after, log = recomposed(mod)
    relax.analysis.well_formed(after)  # raises
    return after, [d for d in log if d.consumer == "rotary"]


def names(mod):
    values = [b.value for b in mod["main"].body.blocks[0].bindings]
    return [v.op.name.removeprefix("relax.") for v in values if isinstance(v, relax.Call)]


@pytest.mark.parametrize("name", VARIANTS)
def test_is_found(name):
    body, types, order = VARIANTS[name]
    after, log = rotary(module(body, *types))
    assert [d.verdict for d in log] == ["accepted"]
    assert f"x x0, {order}," in log[0].sentence
    ops = names(after)
    assert ops.count("multiply") == 4
    assert (ops.count("subtract"), ops.count("add")) == (1, 1)
    assert "negative" not in ops
    again, log = rotary(after)
    assert [d.verdict for d in log] == ["accepted"]
    assert sorted(names(again)) == sorted(ops)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.slow
def test_computes_the_same(name):
    body, types, order = VARIANTS[name]
    after, _ = rotary(module(body, *types))
    machine = relax.VirtualMachine(tvm.compile(after, "llvm"), tvm.cpu())
    x = np.random.default_rng(5).standard_normal((2, 3, LENGTH, WIDTH)).astype("float32")
    tables = [COS, SIN] if len(types) == 3 else [ANGLES] if len(types) == 2 else []
    tables = [t[None, None].astype("float32") for t in tables]
    found = machine["main"](*(tvm.runtime.tensor(a) for a in (x, *tables))).numpy()
    np.testing.assert_allclose(found, reference(x, COS, SIN, order), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (whole(half, joined, "half", "sign"), [X]),
        (whole(half, joined, "half", "exchanged"), [X]),
        (whole(half, joined, "half", "order"), [X]),
        (whole(every_other, joined, "half"), [X]),
        (whole(half, woven, "half"), [X]),
        (whole(half, joined, "interleaved"), [X]),
        (parts(half, joined, "sign"), [X, TABLE, TABLE]),
        (parts(half, joined, "exchanged"), [X, TABLE, TABLE]),
        (parts(half, woven), [X, TABLE, TABLE]),
        (computed_exchanged, [X, TABLE]),
    ],
    ids=range(10),
)
def test_near_misses(body, types):
    mod = module(body, *types)
    after, log = rotary(mod)
    tvm.ir.assert_structural_equal(after, cleaned(mod))
    assert all(d.verdict == "refused" for d in log)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_symbolic_length(dtype):
    n = tirx.Var("n", "int64")
    types = [tensor(2, 3, n, WIDTH, dtype=dtype), *[tensor(n, WIDTH // 2, dtype=dtype)] * 2]

    def body(x, cos, sin):
        cos, sin = (op.concat([t, t], -1) for t in (cos, sin))
        a, b = half(x)
        turned = joined(op.negative(b), a)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    _, log = rotary(module(body, *types))
    assert [d.verdict for d in log] == ["accepted"]
