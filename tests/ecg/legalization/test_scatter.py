"""Scattered updates: in the order of the indices, by columns, in one launch of all threads."""

import numpy as np
import pytest
import tvm
from index_cases import REDUCTIONS
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.device import parse


def scattered(data, indices, updates, mode, names=("a", "b", "c")):
    params = [
        relax.Var(name, relax.TensorType(a.shape, str(a.dtype)))
        for name, a in zip(names, (data, indices, updates), strict=True)
    ]
    built = tvm.compile(
        main_module(params, relax.op.scatter_nd(*params, reduction=mode)),
        parse("cpu").tvm_target(),
        relax_pipeline="tvm_fusion",
        tir_pipeline="tvm_fusion",
    )
    given = [tvm.runtime.tensor(a) for a in (data, indices, updates)]
    return relax.VirtualMachine(built, tvm.cpu())["main"](*given).numpy()


@pytest.mark.slow_beyond(19)
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "places", "depth"),
    [((9, 256), (6,), 1), ((7, 5), (4, 3), 2), ((5, 4, 70), (11,), 1), ((6, 3, 1024), (5, 2), 2),
     ((50,), (30,), 1), ((4, 17), (1,), 1)],
)  # fmt: skip
def test_updates_in_the_order_of_the_indices(shape, places, depth, mode):
    rng = np.random.default_rng()
    data = rng.standard_normal(shape).astype("float32")
    indices = np.stack([rng.integers(0, n, places) for n in shape[:depth]], -1)
    updates = rng.standard_normal((*places, *shape[depth:])).astype("float32")
    expected = data.astype("float64")
    size = np.abs(expected)
    grow = REDUCTIONS[mode] if mode in ("add", "mul") else np.maximum
    for place in np.ndindex(*places):
        at = tuple(indices[place])
        expected[at] = REDUCTIONS[mode](expected[at], updates[place])
        size[at] = grow(size[at], np.abs(updates[place]))
    found = scattered(data, indices, updates, mode)
    roundings = np.prod(places) if mode in ("add", "mul") else 0
    assert_sums_close(found, expected, size, roundings)


@pytest.mark.parametrize("dtype", ["int64", "float16", "int8"])
def test_other_types(dtype):
    rng = np.random.default_rng()
    data = rng.integers(-9, 9, (6, 130)).astype(dtype)
    updates = rng.integers(-9, 9, (3, 130)).astype(dtype)
    indices = np.array([[4], [0], [4]], "int32")
    expected = data.copy()
    expected[[0, 4]] = updates[[1, 2]]
    np.testing.assert_array_equal(scattered(data, indices, updates, "update"), expected)


def test_extents_that_are_not_known_go_tvms_way():
    n = tirx.Var("n", "int64")
    types = [((n, 4), "float32"), ((2, 1), "int64"), ((2, 4), "float32")]
    params = [relax.Var(f"p{i}", relax.TensorType(*ty)) for i, ty in enumerate(types)]
    pipeline = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    built = tvm.compile(
        main_module(params, relax.op.scatter_nd(*params)), parse("cpu").tvm_target(), **pipeline
    )
    data, indices = np.zeros((5, 4), "float32"), np.array([[3], [1]])
    given = [tvm.runtime.tensor(a) for a in (data, indices, np.ones((2, 4), "float32"))]
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*given).numpy()
    np.testing.assert_array_equal(found.sum(1), [0, 4, 0, 4, 0])


@pytest.mark.parametrize("rows", [6, None])
@pytest.mark.parametrize("made", ["zeros", "positions"])
def test_what_is_made_of_nothing_is_no_kernel(made, rows):
    """Zeros that are added to, and positions that are updated, are expressions of the scatter."""
    op, count = relax.op, rows or tirx.Var("n", "int64")
    indices = relax.Var("i", relax.TensorType((count, 1), "int64"))
    updates = relax.Var("u", relax.TensorType((count, 70), "float32"))

    def body(emit, indices, updates):
        zeros = op.full((5, 70), relax.const(0.0))
        data = zeros if made == "zeros" else op.arange(0, 350, 1, "float32")
        return op.scatter_nd(emit(op.reshape(emit(data), (5, 70))), indices, updates, "add")

    dims = {} if rows else {"n": tvm_fusion.DimRange(1, 8)}
    mod = main_module([indices, updates], body)
    artifact = tvm_fusion.compile(mod, target="cpu", dims=dims)
    (launch,) = artifact.manifest["functions"]["main"]["launches"]
    assert "scatter_nd" in launch["kernel"]
    rng = np.random.default_rng()
    places = rng.integers(0, 5, (6, 1))
    values = rng.integers(-9, 9, (6, 70)).astype("float32")
    expected = np.zeros((5, 70), "float32") if made == "zeros" else np.arange(350.0).reshape(5, 70)
    np.add.at(expected, places[:, 0], values)
    (found,) = tvm_fusion.load(artifact)(i=places, u=values).values()
    np.testing.assert_array_equal(found, expected)
