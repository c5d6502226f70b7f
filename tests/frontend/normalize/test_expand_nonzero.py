from __future__ import annotations

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ExpandNonzero

RNG = np.random.default_rng(11)


def module(shape, dtype, build):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    return main_module([x], build(x))


def run(mod, tmp_path, x, **options):
    program = tvm_fusion.load(tvm_fusion.compile(mod, "cpu", **options).export(tmp_path / "a"))
    return list(program.run({"x": x}).values())


def calls(mod):
    found = []
    relax.analysis.post_order_visit(mod["main"], found.append)
    return {str(c.op.name) for c in found if isinstance(c, relax.Call) and hasattr(c.op, "name")}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5, 2), "float32"), ((31,), "bool"), ((4, 6), "int64")]
)
def test_nonzero(tmp_path, shape, dtype):
    mod = module(shape, dtype, relax.op.nonzero)
    x = (RNG.integers(-1, 2, shape) * (RNG.random(shape) > 0.3)).astype(dtype)
    (result,) = run(mod, tmp_path, x)
    np.testing.assert_array_equal(result, np.stack(np.nonzero(x)))
    assert "relax.nonzero" not in calls(ExpandNonzero()(mod))


def test_nonzero_that_finds_nothing_or_has_nothing_to_look_at(tmp_path):
    (result,) = run(
        module((3, 4), "float32", relax.op.nonzero), tmp_path, np.zeros((3, 4), "float32")
    )
    assert result.shape == (2, 0)
    empty = ExpandNonzero()(module((0, 4), "float32", relax.op.nonzero))
    assert calls(empty) == {"relax.zeros"}


def test_nonzero_of_symbolic_shape(tmp_path):
    mod = module((tirx.Var("n", "int64"), 3), "float32", relax.op.nonzero)
    x = RNG.integers(0, 2, (5, 3)).astype("float32")
    (result,) = run(mod, tmp_path, x, dims={"n": tvm_fusion.DimRange(1, 9)})
    np.testing.assert_array_equal(result, np.stack(np.nonzero(x)))


def test_unique_of_symbolic_shape(tmp_path):
    rows, columns = tirx.Var("m", "int64"), tirx.Var("n", "int64")
    mod = module((rows, columns), "int64", lambda x: relax.op.unique(x, True, True, True, True))
    x = RNG.integers(0, 6, (5, 3))
    dims = {"m": tvm_fusion.DimRange(1, 9), "n": tvm_fusion.DimRange(1, 9)}
    results = run(mod, tmp_path, x, dims=dims)
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, want.reshape(-1))


def test_unique(tmp_path):
    mod = module(
        (4, 5),
        "float32",
        lambda x: relax.op.unique(
            x, sorted=True, return_index=True, return_inverse=True, return_counts=True
        ),
    )
    x = RNG.integers(0, 6, (4, 5)).astype("float32")
    results = run(mod, tmp_path, x)
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, want.reshape(result.shape))


def test_unique_of_slices_is_recorded_as_python(tmp_path):
    mod = module((4, 2), "float32", lambda x: relax.op.unique(x, axis=0))
    assert "relax.unique" in calls(ExpandNonzero()(mod))
    artifact = tvm_fusion.compile(mod, "cpu")
    (decision,) = [d for d in artifact.manifest["decisions"] if d["code"] == "python_only"]
    assert decision["sentence"].startswith("unique is a Python function of TVM")
    x = RNG.integers(0, 2, (4, 2)).astype("float32")
    (result,) = tvm_fusion.load(artifact.export(tmp_path / "a")).run({"x": x}).values()
    np.testing.assert_array_equal(result, np.unique(x, axis=0))


def test_other_operators_stay():
    mod = module((4,), "float32", relax.op.exp)
    assert ExpandNonzero()(mod).same_as(mod)
