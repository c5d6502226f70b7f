"""``tvm-fusion quantize``: a float model becomes one of 8 bits that compiles, nearly as exact."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_fusion
from tvm_fusion.cli import main

pytest.importorskip("onnxruntime")


def network(rng, opset=17):
    def weights(name, *shape):
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c"], "stem", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "act"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w1"], ["y"], "head", transB=1),
    ]
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 8, 8])
    scores = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(
        nodes, "net", [image], [scores], [weights("w0", 16, 3, 3, 3), weights("w1", 5, 16)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng()
    onnx.save(network(rng), tmp_path / "net.onnx")
    (tmp_path / "data").mkdir()
    for i in range(2):
        np.save(tmp_path / f"data/{i}.npy", rng.standard_normal((3, 3, 8, 8), "float32"))
    return tmp_path


def quantize(folder, capsys, *words, model="net.onnx", data="data", output="q.onnx"):
    paths = (folder / model, "--data", folder / data, "-o", folder / output)
    code = main(["quantize", *map(str, [*paths, *words]), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_folder_of_arrays(folder, capsys):
    code, found = quantize(folder, capsys)
    assert (code, found["samples"]) == (0, 6)
    assert {layer["node"] for layer in found["layers"]} >= {"stem", "head"}
    errors = [layer["error"] for layer in found["layers"]]
    assert errors == sorted(errors, reverse=True)
    assert 0 < found["outputs"]["y"] < 0.05
    kinds = {i.name: i.data_type for i in onnx.load(folder / "q.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds.values()
    artifact = tvm_fusion.compile(folder / "q.onnx", dims={"N": 3})
    x = np.load(folder / "data/0.npy")
    exact = tvm_fusion.load(tvm_fusion.compile(folder / "net.onnx", dims={"N": 3}))(x)["y"]
    error = np.abs(tvm_fusion.load(artifact)(x)["y"] - exact).max() / np.abs(exact).max()
    assert error < 0.05


def test_a_bias_that_layers_share(folder, capsys):
    """ONNX Runtime's name of a copy, a number behind it, is another tensor's here."""
    model = network(np.random.default_rng())
    stem, act = model.graph.node[:2]
    bias = numpy_helper.from_array(np.ones(16, "float32"), "b")
    turned = -numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer.extend([bias, numpy_helper.from_array(turned, "w2")])
    other = helper.make_node("Conv", ["x", "w2", "b"], ["b0"], "second", pads=[1] * 4)
    stem.input.append("b")
    total = helper.make_node("Add", ["c", "b0"], ["s"], "join")
    act.input[0] = "s"
    nodes = [stem, other, total, *model.graph.node[1:]]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "shared.onnx")
    code, found = quantize(folder, capsys, model="shared.onnx")
    assert code == 0, found
    assert found["outputs"]["y"] < 0.05


def test_layers_in_branches(folder, capsys):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (bool c, float[1, 4] x) => (float[1, 4] y) {
        y = If(c) <then_branch = t () => (float[1, 4] p) { p = MatMul(x, x) },
                  else_branch = e () => (float[1, 4] r) { r = Identity(x) }>
    }"""
    onnx.save(onnx.parser.parse_model(text), folder / "if.onnx")
    code, found = quantize(folder, capsys, model="if.onnx")
    assert code == 2
    assert "has its MatMul in branches and loops alone" in found["error"]


def test_axes_that_are_weights(folder, capsys):
    """From opset 18 on a reduction has its axes there, as PyTorch's exporter writes it."""
    model = network(np.random.default_rng(), opset=18)
    pool = model.graph.node[2]
    pool.op_type = "ReduceMean"
    pool.input.append("axes")
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    onnx.save(model, folder / "axes.onnx")
    code, found = quantize(folder, capsys, model="axes.onnx")
    assert code == 0, found
    assert 0 < found["outputs"]["y"] < 0.05


def test_what_computes_in_float_stays_in_float(tmp_path, capsys):
    """Masked scores have no scale, and a bias or a softmax gains nothing by bytes."""
    rng, lowest = np.random.default_rng(), np.finfo("float32").min
    weights = rng.standard_normal((16, 16), "float32") / 4
    mask = np.triu(np.full((8, 8), lowest), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], "project"),
        helper.make_node("Transpose", ["q"], ["t"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"], "scores"),
        helper.make_node("Add", ["s", "m"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "q"], ["o"], "mix"),
        helper.make_node("Add", ["o", "x"], ["y"], "residual"),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 8, 16]) for name in "xy"
    ]
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(mask, "m")]
    graph = helper.make_graph(nodes, "attention", ends[:1], ends[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", rng.standard_normal((4, 8, 16), "float32"))
    code, found = quantize(tmp_path, capsys, data="data.npy")
    assert code == 0
    assert found["outputs"]["y"] < 0.05
    made = onnx.load(tmp_path / "q.onnx").graph
    rounded = {node.input[0] for node in made.node if node.op_type == "QuantizeLinear"}
    assert not rounded & {"s", "masked", "o", "y"}
    assert {"p", "x"} <= rounded


def test_the_error_of_an_activation_is_behind_it(folder, capsys):
    """Where the range of its result replaces a ReLU."""
    _, found = quantize(folder, capsys)
    assert max(layer["error"] for layer in found["layers"]) < 0.1


def test_options(folder, capsys):
    x = np.random.default_rng().standard_normal((4, 3, 8, 8), "float32")
    np.savez(folder / "all.npz", x=x)
    words = ("--samples", "3", "--exclude", "head", "--activations", "int8", "--method", "entropy")
    code, found = quantize(folder, capsys, *words, data="all.npz")
    assert (code, found["samples"]) == (0, 3)
    (head,) = [n for n in onnx.load(folder / "q.onnx").graph.node if n.name == "head"]
    assert not head.input[1].endswith("_DequantizeLinear_Output")
    code, found = quantize(folder, capsys, model="q.onnx", output="again.onnx")
    assert code == 2
    assert "is quantized already (it has DequantizeLinear); expected a float" in found["error"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (None, "there is no file or folder"),
        ({}, "lacks input 'x'; expected the inputs 'x'"),
        ({"z": (2, 3, 8, 8)}, "has an unknown input 'z'; expected the inputs 'x'"),
        ({"x": (2, 3, 8)}, "has shape (2, 3, 8); expected (samples, 3, 8, 8)"),
        ({"x": (2, 3, 8, 9)}, "has shape (2, 3, 8, 9); expected (samples, 3, 8, 8)"),
        ({"x": (0, 3, 8, 8)}, "has no samples; expected at least one"),
        ({"x": np.full((1, 3, 8, 8), np.nan, "float32")}, "has NaN or infinite values"),
        ({"x": np.zeros((1, 3, 8, 8))}, "has dtype float64; expected float32; cast it"),
    ],
)
def test_data_that_does_not_fit(folder, capsys, arrays, words):
    if arrays is not None:
        as_array = {
            n: np.zeros(a, "float32") if isinstance(a, tuple) else a for n, a in arrays.items()
        }
        np.savez(folder / "bad.npz", **as_array)
    code, found = quantize(folder, capsys, data="bad.npz")
    assert code == 2
    assert words in found["error"]
    assert not (folder / "q.onnx").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--exclude", "haed"], "there is no node 'haed'; expected one of head"),
        (["--method", "minimax"], "there is no method 'minimax'; expected one of minmax"),
        (["--activations", "uint4"], "there is no type 'uint4'; expected one of uint8, int8"),
        (["--samples", "0"], "samples is 0; expected a whole number from 1"),
    ],
)
def test_options_that_are_wrong(folder, capsys, options, words):
    code, found = quantize(folder, capsys, *options)
    assert code == 2
    assert words in found["error"]


def test_places_and_models_that_are_wrong(folder, capsys):
    relu = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(relu), folder / "relu.onnx")
    for words, places in {
        "is the model itself; expected another file": {"output": "net.onnx"},
        "; expected the name of an .onnx file": {"output": "q"},
        "has nothing to quantize; expected one of Conv": {"model": "relu.onnx"},
        "does not exist": {"model": "no.onnx"},
        "there is no folder": {"output": "none/q.onnx"},
    }.items():
        code, found = quantize(folder, capsys, **places)
        assert code == 2
        assert words in found["error"]


def test_without_onnx_runtime(folder):
    """In a process of its own, where nothing has imported it."""
    program = (
        "import importlib.util as util, sys\n"
        "sys.modules['onnxruntime'] = None\n"
        "there = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'onnxruntime' else there(name, *a)\n"
        "from tvm_fusion.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ("quantize", "net.onnx", "--data", "data", "-o", "q.onnx")
    command = [sys.executable, "-c", program, *words]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (found.returncode, "tvm_fusion[onnx]" in found.stderr) == (2, True), found.stderr


def test_extents_that_the_model_does_not_know(folder, capsys):
    """Some exporters write -1 for them."""
    model = network(np.random.default_rng())
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value = dims[2].dim_value = -1
    onnx.save(model, folder / "net.onnx")
    code, found = quantize(folder, capsys)
    assert (code, found["samples"]) == (0, 6)


def test_inputs_that_all_calls_take(tmp_path, capsys):
    """A number, such as a rate, and a state that is no sample."""
    model = network(np.random.default_rng())
    model.graph.node.extend(
        [
            helper.make_node("Mul", ["y", "rate"], ["m"], "scale"),
            helper.make_node("Add", ["m", "state"], ["z"], "shift"),
        ]
    )
    kind = onnx.TensorProto.FLOAT
    model.graph.input.append(helper.make_tensor_value_info("rate", kind, []))
    model.graph.input.append(helper.make_tensor_value_info("state", kind, [2, 1, 5]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", kind, None))
    onnx.save(model, tmp_path / "net.onnx")
    draw = np.random.default_rng().standard_normal
    given = {"rate": np.float32(2), "state": draw((2, 1, 5), "float32")}
    np.savez(tmp_path / "data.npz", x=draw((3, 3, 8, 8), "float32"), **given)
    code, found = quantize(tmp_path, capsys, data="data.npz")
    assert (code, found["samples"]) == (0, 3)
    assert found["outputs"]["z"] < 0.05


def test_products_with_a_bias_stay_products(tmp_path, capsys):
    """ONNX Runtime makes Gemm of them, and loads none of whose constants it takes the names again.

    The nodes have no names, and are quantized nevertheless.
    """
    rng = np.random.default_rng()
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape, "float32"), name)
        for name, shape in (("w0", (8, 8)), ("w1", (8, 8)), ("b0", 8), ("b1", 8))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["p"]),
        helper.make_node("Add", ["p", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["q"]),
        helper.make_node("Add", ["q", "b1"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 4, 8]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", rng.standard_normal((2, 4, 8), "float32"))
    assert quantize(tmp_path, capsys, data="x.npy")[0] == 0
    written = onnx.load(tmp_path / "q.onnx").graph.node
    products = [node for node in written if node.op_type in ("MatMul", "Gemm")]
    assert [node.op_type for node in products] == ["MatMul", "MatMul"]
    assert all("DequantizeLinear" in name for node in products for name in node.input)
    import onnxruntime as ort

    ort.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
