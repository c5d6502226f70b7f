"""Scatters whose index is broadcast along the features write whole rows, on CPUs alone."""

import numpy as np
import pytest
import tvm
from index_cases import REDUCTIONS
from relax_modules import main_module
from tvm import relax, tirx
from tvm.target import Target

from tvm_fusion.device import parse
from tvm_fusion.frontend.normalize import ScatterRows
from tvm_fusion.frontend.normalize.engine import op_name

op = relax.op


def scattered(axis, shape, count, reduction, symbolic=False, repeat="broadcast", dtype="int64"):
    """A module that scatters rows along an axis: of data, an index of them, updates."""
    n, e = (tirx.Var(name, "int64") if symbolic else size for name, size in
            (("n", shape[axis]), ("e", count)))  # fmt: skip
    given, written = ([*shape] for _ in range(2))
    given[axis], written[axis] = n, e
    params = [
        relax.Var("x", relax.TensorType(given, "float32")),
        relax.Var("i", relax.TensorType([e], dtype)),
        relax.Var("u", relax.TensorType(written, "float32")),
    ]
    x, i, u = params
    ones = [e if a == axis else 1 for a in range(len(shape))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            index = builder.emit(op.reshape(i, ones))
            if repeat == "broadcast":
                index = builder.emit(op.broadcast_to(index, written))
            else:
                repeats = [1 if a == axis else d for a, d in enumerate(shape)]
                index = builder.emit(op.tile(index, repeats))
            result = builder.emit_output(op.scatter_elements(x, index, u, axis, reduction))
        builder.emit_func_output(result)
    return builder.get()


def operators(mod):
    return [op_name(b.value) for block in mod["main"].body.blocks for b in block.bindings]


def under(spec, mod):
    with parse(spec).tvm_target():
        return ScatterRows()(mod)


CASES = [
    (0, (7, 20), "add", "broadcast", "int64"),
    (1, (3, 9, 5), "max", "broadcast", "int32"),
    (2, (4, 3, 6), "mul", "broadcast", "int64"),
    (0, (5, 33), "update", "broadcast", "int64"),
    (0, (8, 64), "min", "tile", "int64"),
]


@pytest.mark.parametrize(
    ("axis", "shape", "reduction", "repeat", "dtype", "symbolic"),
    [*((*c, False) for c in CASES), *((*c, True) for c in CASES if c[3] == "broadcast")],
)
def test_rows_against_numpy(axis, shape, reduction, repeat, dtype, symbolic):
    """Negative numbers count from the end; those out of range are dropped."""
    rng, size = np.random.default_rng(), shape[axis]
    index = np.append(rng.integers(-size, size, 12), [size, -size - 1, 10**6]).astype(dtype)
    mod = scattered(axis, shape, len(index), reduction, symbolic, repeat, dtype)
    assert "relax.scatter_nd" in operators(under("cpu", mod))
    built = tvm.compile(
        mod, parse("cpu").tvm_target(), relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    x = rng.standard_normal(shape).astype("float32")
    u = rng.standard_normal([len(index) if a == axis else d for a, d in enumerate(shape)])
    u = u.astype("float32")
    expected, new = (np.moveaxis(a.astype("float64"), axis, 0).copy() for a in (x, u))
    for row, number in zip(new, index, strict=True):
        if -size <= number < size:
            expected[number] = REDUCTIONS[reduction](expected[number], row)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, (x, index, u)))
    expected = np.moveaxis(expected, 0, axis)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_other_targets_and_other_indices_stay():
    rows = scattered(0, (7, 20), 5, "add")
    tvm.ir.assert_structural_equal(under("cuda:sm_90a", rows), rows)
    assert Target.current(allow_none=True) is None
    tvm.ir.assert_structural_equal(ScatterRows()(rows), rows)
    params = [
        relax.Var("x", relax.TensorType((7, 20), "float32")),
        relax.Var("i", relax.TensorType((5, 20), "int64")),
        relax.Var("u", relax.TensorType((5, 20), "float32")),
    ]
    elements = main_module(params, op.scatter_elements(*params, 0, "add"))
    tvm.ir.assert_structural_equal(under("cpu", elements), elements)


def test_part_of_the_features_is_no_row():
    x, i, u = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in
        (("x", (7, 20), "float32"), ("i", (5, 1), "int64"), ("u", (5, 8), "float32"))
    )  # fmt: skip
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i, u]):
        with builder.dataflow():
            index = builder.emit(op.broadcast_to(i, (5, 8)))
            result = builder.emit_output(op.scatter_elements(x, index, u, 0, "add"))
        builder.emit_func_output(result)
    assert operators(under("cpu", builder.get()))[-1] == "relax.scatter_elements"
