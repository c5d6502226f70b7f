"""Windows of adaptive pooling, of one length for schedules and of the right one in the result."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_modules import main_module
from tvm import relax, s_tir, tirx

from tvm_fusion import transform
from tvm_fusion.device import parse

N = tirx.Var("n", "int64")
TARGET = parse("cpu").tvm_target()
CASES = [
    ((2, 3, 11), (4,)),
    ((2, 3, N), (4,)),
    ((1, 3, 9, 7), (5, 7)),
    ((2, 3, 9, 7), (1, 1)),
    ((1, 3, N, 8), (1, 4)),
    ((1, 2, 5, 4, 3), (2, 2, 5)),
]


def module(shape, out, dtype):
    operator = getattr(relax.op.nn, f"adaptive_avg_pool{len(out)}d")
    x = relax.Var("x", relax.TensorType(shape, dtype))
    return main_module([x], operator(x, out))


def reference(x, out):
    for axis, count in enumerate(out, start=2):
        size = x.shape[axis]
        windows = [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        x = np.stack([x.take(window, axis).mean(axis) for window in windows], axis)
    return x


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
@pytest.mark.parametrize(("shape", "out"), CASES, ids=str)
def test_means_of_windows(shape, out, dtype, tolerance):
    built = tvm.compile(
        module(shape, out, dtype), TARGET, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    sizes = [extent if isinstance(extent, int) else 10 for extent in shape]
    x = np.random.default_rng(3).normal(size=sizes).astype(dtype)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, reference(x.astype("float64"), out), atol=tolerance)


@pytest.mark.parametrize(("shape", "out"), CASES, ids=str)
def test_reductions_have_one_length(shape, out):
    with TARGET:
        mod = transform.Legalize()(module(shape, out, "float32"))
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    blocks = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda block, *_: blocks.append(block)))
    own = {v.var for block in blocks for v in block.iter_vars}
    reduced = [v.dom.extent for b in blocks for v in b.iter_vars if v.iter_type == 2]
    assert reduced
    assert all(own.isdisjoint(tirx.analysis.undefined_vars(extent)) for extent in reduced)
