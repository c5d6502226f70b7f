"""Bisections of a sorted row: numbers as numpy's, NaN behind all, and kernels for a GPU."""

import numpy as np
import pytest
from tvm import relax

import tvm_fusion


def searching(values, boundaries, right):
    """Build a module that searches float32 values."""
    bb = relax.BlockBuilder()
    v, b = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("v", values), ("b", boundaries))
    )
    with bb.function("main", [v, b]):
        with bb.dataflow():
            found = bb.emit_output(bb.emit(relax.op.bucketize(v, b, out_int32=True, right=right)))
        bb.emit_func_output(found)
    return bb.get()


@pytest.mark.parametrize("right", [False, True])
def test_places_are_numpys(right, tmp_path):
    rng = np.random.default_rng()
    boundaries = np.sort(rng.integers(-5, 6, 13)).astype("float32")
    values = np.append(rng.integers(-7, 8, (3, 8)), [[np.nan] * 8], 0).astype("float32")
    artifact = tvm_fusion.compile(searching(values.shape, (13,), right), "cpu")
    (found,) = tvm_fusion.load(artifact.export(tmp_path / "a"))(v=values, b=boundaries).values()
    wanted = np.searchsorted(boundaries, values, side="right" if right else "left")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.cuda_toolchain
def test_a_gpu_has_a_task_for_each_value():
    artifact = tvm_fusion.compile(searching((300,), (13,), False), "cuda:sm_90a")
    assert artifact.manifest["functions"]["main"]["kernels"] == 1
