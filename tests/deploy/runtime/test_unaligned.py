"""Inputs and outputs that begin at any element of larger arrays, against aligned ones."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion.deploy.runtime.tensors import aligned_empty

BF16 = np.dtype(ml_dtypes.bfloat16)
F, H, B = np.dtype("float32"), np.dtype("float16"), np.dtype("bool")
INPUTS = {
    "x": (F, (33, 65)), "y": (F, (33, 65)), "w": (F, (65, 48)), "image": (F, (1, 3, 17, 19)),
    "kernel": (F, (8, 3, 3, 3)), "rows": (np.dtype("int64"), (21,)), "h": (H, (9, 130)),
    "brain": (BF16, (9, 66)), "bytes": (np.dtype("int8"), (7, 129)), "flags": (B, (7, 129)),
}  # fmt: skip
NODES = [
    ("Add", ["x", "y"], ["sum"]),
    ("Softmax", ["x"], ["soft"]),
    ("MatMul", ["x", "w"], ["product"]),
    ("Transpose", ["y"], ["turned"], {"perm": [1, 0]}),
    ("Conv", ["image", "kernel"], ["conv"], {"pads": [1, 1, 1, 1]}),
    ("Gather", ["x", "rows"], ["gathered"]),
    ("Exp", ["h"], ["half"]),
    ("Add", ["brain", "brain"], ["double"]),
    ("Where", ["flags", "bytes", "zero"], ["chosen"]),
    ("ReduceSum", ["y", "axis"], ["column"], {"keepdims": 0}),
]
OUTPUTS = {
    "sum": (F, (33, 65)), "soft": (F, (33, 65)), "product": (F, (33, 48)), "turned": (F, (65, 33)),
    "conv": (F, (1, 8, 17, 19)), "gathered": (F, (21, 65)), "half": (H, (9, 130)),
    "double": (BF16, (9, 66)), "chosen": (np.dtype("int8"), (7, 129)), "column": (F, (65,)),
}  # fmt: skip
KINDS = {F: T.FLOAT, H: T.FLOAT16, BF16: T.BFLOAT16, B: T.BOOL}
KINDS |= {np.dtype("int64"): T.INT64, np.dtype("int8"): T.INT8}


def room(dtype, shape, start):
    """Allocate an array that begins so many elements behind an aligned address."""
    size = int(np.prod(shape))
    return aligned_empty((size + start,), dtype)[start:].reshape(shape)


def draw(start, generator):
    arrays = {}
    for name, (dtype, shape) in INPUTS.items():
        values = generator.standard_normal(shape)
        if name == "rows":
            values = generator.integers(-33, 33, shape)
        elif dtype == B:
            values = values > 0
        elif dtype == np.int8:
            values = generator.integers(-128, 128, shape)
        arrays[name] = room(dtype, shape, start)
        arrays[name][...] = values.astype(dtype)
    return arrays


@pytest.fixture(scope="module")
def executable(tmp_path_factory):
    values = [[(n, KINDS[d], list(s)) for n, (d, s) in v.items()] for v in (INPUTS, OUTPUTS)]
    constants = {"zero": np.zeros((), "int8"), "axis": np.zeros(1, "int64")}
    model = onnx_model(NODES, *values, constants)
    folder = tmp_path_factory.mktemp("unaligned")
    return tvm_fusion.load(tvm_fusion.compile(model).export(folder / "many"))


@pytest.mark.parametrize("start", [1, 2, 3, 5, 7])
def test_results_do_not_depend_on_where_arrays_begin(executable, start):
    generator = np.random.default_rng()
    inputs = draw(start, generator)
    moved = {name: room(a.dtype, a.shape, 0) for name, a in inputs.items()}
    for name, array in moved.items():
        array[...] = inputs[name]
    expected = executable.run(moved)
    found = executable.run(inputs)
    out = {name: room(d, s, start) for name, (d, s) in OUTPUTS.items()}
    written = executable.run(inputs, out=out)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(written[name], array, err_msg=name)
        assert written[name] is out[name]
    np.testing.assert_allclose(found["sum"], inputs["x"] + inputs["y"])
    np.testing.assert_array_equal(found["gathered"], inputs["x"][inputs["rows"]])
    exact = inputs["x"].astype("float64") @ inputs["w"]
    np.testing.assert_allclose(found["product"], exact, rtol=1e-4, atol=1e-4)


def test_no_input_is_copied(executable, monkeypatch):
    from tvm_fusion.deploy.runtime import tensors

    def copied(*_):
        raise AssertionError("an array was copied")

    inputs = draw(1, np.random.default_rng(3))
    monkeypatch.setattr(tensors, "aligned_empty", copied)
    executable.run(inputs)


def test_memory_that_no_element_begins_at_is_copied(executable):
    inputs = draw(0, np.random.default_rng(4))
    odd = np.zeros(inputs["x"].nbytes + 1, np.uint8)[1:].view("float32").reshape(33, 65)
    odd[...] = inputs["x"]
    found = executable.run({**inputs, "x": odd})
    np.testing.assert_array_equal(found["sum"], executable.run(inputs)["sum"])


def test_an_artifact_of_earlier_versions_gets_aligned_copies(executable, tmp_path):
    from tvm_fusion.deploy.runtime.executable import _alignment

    device = executable.device
    assert _alignment({"alignment": "element"}, device) is None
    assert _alignment({}, device) == 64
