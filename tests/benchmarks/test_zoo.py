import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import zoo
from benchmarks.zoo import light, roles, weights
from benchmarks.zoo.batch import batched
from benchmarks.zoo.strip import strip

NODES = {  # of the exporter's graphs
    "bert_base": 491,
    "bert_base_dyn": 580,
    "convnext_tiny": 289,
    "efficientnet_b0": 239,
    "gpt2": 527,
    "llama_4l": 268,
    "mobilenet_v2": 100,
    "resnet50": 122,
    "segformer_b0": 405,
    "swin_tiny": 733,
    "t5_small_enc": 255,
    "unet2d": 400,
    "vit_b16": 489,
}
SMALL = ("light_squeezenet", "light_shufflenet", "mobilenet_v2")


def run(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], fetch: str | None = None
) -> np.ndarray:
    """Run a model in ONNX Runtime; its output, or an inner tensor."""
    ort = pytest.importorskip("onnxruntime")
    if fetch:
        model.graph.output.append(helper.make_empty_tensor_value_info(fetch))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run([fetch] if fetch else None, inputs)[0]


def tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def assert_healthy(out: np.ndarray) -> None:
    assert np.isfinite(out).all()
    assert out.std() > 1e-3
    assert np.abs(out).max() < 50


def test_names():
    assert zoo.names() == (*NODES, *light.NAMES)
    assert len(light.NAMES) == 9
    with pytest.raises(KeyError, match="no model named 'bert'"):
        zoo.load("bert")


def test_a_batch_holds_the_results_of_its_images():
    name = "mobilenet_v2"
    model, images = zoo.load(name), [zoo.inputs(name, seed=i)["pixel_values"] for i in range(3)]
    several = run(batched(model, 3), {"pixel_values": np.concatenate(images)})
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    for image, result in zip(images, several, strict=True):
        np.testing.assert_allclose(result, run(model, {"pixel_values": image})[0], atol=1e-5)


@pytest.mark.parametrize("name", NODES)
def test_exported_graphs_are_the_exporters_and_hold_no_weights(name):
    graph = zoo.blank(name).graph
    assert len(graph.node) == NODES[name]
    large = [t for t in graph.initializer if np.prod(t.dims) > 300 and not zoo.is_blank(t)]
    for tensor in large:  # masks and positions, rotary tables, masks of shifted windows
        is_table = list(tensor.dims) == [1, 1, 128, 64] or tensor.dims[1:] == [49, 49]
        assert tensor.data_type != TensorProto.FLOAT or is_table


@pytest.mark.parametrize("name", light.NAMES)
def test_light_graphs_have_one_input_and_no_constant_weights(name):
    graph = light.blank(name).graph
    assert len(graph.input) == 1
    assert all(node.op_type != "ConstantOfShape" for node in graph.node)
    floats = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT]
    assert floats
    assert all(zoo.is_blank(t) for t in floats)


@pytest.mark.parametrize("name", SMALL)
def test_small_models_are_healthy(name):
    model = zoo.load(name)
    onnx.checker.check_model(model, full_check=True)
    assert_healthy(run(model, zoo.inputs(name)))


def test_activations_stay_near_unit_size_in_a_residual_network():
    model = zoo.load("light_shufflenet")
    last = [n for n in model.graph.node if n.op_type == "Gemm"][-1].output[0]
    assert 0.5 < run(model, zoo.inputs("light_shufflenet"), last).std() < 5


def test_a_seed_gives_the_same_model_and_another_seed_another():
    first, again, other = (tensors(zoo.load("mobilenet_v2", seed)) for seed in (0, 0, 1))
    assert first.keys() == again.keys() == other.keys()
    drawn = [t.name for t in zoo.blank("mobilenet_v2").graph.initializer if zoo.is_blank(t)]
    for name in drawn:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_inputs_are_seeded():
    first, again, other = (zoo.inputs("gpt2", seed)["input_ids"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_drawn_tensor_is_pinned():
    values = weights.draw("w", (3,), weights.SCALE, seed=0)
    np.testing.assert_allclose(values, [0.97484559, 0.97256345, 0.92320466], rtol=1e-6)


def test_inputs_are_valid():
    drawn = zoo.inputs("bert_base_dyn", dims={"seq": 40})
    assert {name: x.shape for name, x in drawn.items()} == {
        "input_ids": (1, 40),
        "attention_mask": (1, 40),
    }
    assert 0 <= drawn["input_ids"].min() <= drawn["input_ids"].max() < 30522
    assert drawn["attention_mask"].sum() == 35
    assert zoo.inputs("bert_base_dyn", dims={"seq": 1})["attention_mask"].sum() == 1
    assert zoo.inputs("bert_base_dyn", dims={"seq": 2})["attention_mask"].sum() == 1
    assert zoo.inputs("unet2d")["timestep"].max() < 1000
    assert zoo.inputs("light_resnet50")["gpu_0/data_0"].std() == pytest.approx(1, abs=0.01)


def test_a_symbolic_dimension_needs_an_extent():
    with pytest.raises(ValueError, match="symbolic dimension 'seq'"):
        zoo.inputs("bert_base_dyn")


def test_batch_norm_statistics_are_not_trivial():
    model = zoo.load("light_resnet50")
    values = tensors(model)
    norms = [n for n in model.graph.node if n.op_type == "BatchNormalization"]
    scale, bias, mean, var = (
        np.concatenate([values[node.input[i]] for node in norms]) for i in (1, 2, 3, 4)
    )
    assert (scale.mean(), scale.std()) == pytest.approx((1, 0.1), abs=0.01)
    assert (bias.mean(), bias.std()) == pytest.approx((0, 0.1), abs=0.01)
    assert (mean.mean(), mean.std()) == pytest.approx((0, 0.1), abs=0.01)
    assert (var.min(), var.max()) == pytest.approx((0.5, 1.5), abs=0.01)


def toy(weight: np.ndarray, op: str = "MatMul") -> onnx.ModelProto:
    """x (2, 400) times a weight, plus a constant that is part of the graph."""
    graph = helper.make_graph(
        [
            helper.make_node(op, ["x", "w"], ["h"], doc_string="from somewhere"),
            helper.make_node("Add", ["h", "half"], ["y"]),
        ],
        "toy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 400))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.full(300, 0.5, np.float32), "half"),
        ],
    )
    return helper.make_model(graph)


def test_strip_tells_weights_from_constants():
    model = strip(
        toy(np.zeros((400, 300), np.float32)),
        toy(np.ones((400, 300), np.float32)),
    )
    blank = {t.name: zoo.is_blank(t) for t in model.graph.initializer}
    assert blank == {"w": True, "half": False}
    assert list(model.graph.initializer[0].dims) == [400, 300]
    assert not model.graph.node[0].doc_string


def test_strip_refuses_different_graphs():
    weight = np.zeros((400, 300), np.float32)
    with pytest.raises(ValueError, match="differ in more than their weights"):
        strip(toy(weight), toy(weight, op="Gemm"))


def test_strip_refuses_a_weight_of_another_type():
    zeros = np.zeros((400, 300), np.float16)
    with pytest.raises(ValueError, match="w is no float32 weight"):
        strip(toy(zeros), toy(zeros + 1))


def test_a_weight_is_scaled_by_its_fan_in():
    graph = toy(np.zeros((400, 300), np.float32)).graph
    assert roles.recipes(graph, {"w": (400, 300)}) == {"w": weights.Recipe("weight", 0.0, 0.05)}


def test_an_unused_weight_has_no_role():
    graph = toy(np.zeros((400, 300), np.float32)).graph
    with pytest.raises(ValueError, match="no role found for the initializers lost"):
        roles.recipes(graph, {"w": (400, 300), "lost": (3,)})


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NODES, *light.NAMES])
def test_every_model_is_healthy(name):
    model = zoo.load(name, seed=1)
    onnx.checker.check_model(model, full_check=True)
    assert_healthy(run(model, zoo.inputs(name, seed=1, dims={"seq": 77})))


@pytest.mark.slow
def test_one_symbolic_graph_serves_many_lengths():
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(zoo.load("bert_base_dyn").SerializeToString())
    for length in (2, 33, 512):
        (out,) = session.run(None, zoo.inputs("bert_base_dyn", dims={"seq": length}))
        assert out.shape == (1, length, 768)
        assert_healthy(out)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["mobilenet_v2", "unet2d"])
def test_torch_modules_export_and_are_healthy(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    from benchmarks.zoo import torch_models

    model = torch_models.build(name)
    program = torch.export.export(model.module, (), kwargs=model.inputs)
    out = next(iter(program.module()(**model.inputs).values())).detach().numpy()
    assert out.std() == pytest.approx(1, abs=0.2)
    assert_healthy(out)


@pytest.mark.torch
def test_every_exported_graph_has_a_torch_module():
    pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    from benchmarks.zoo import torch_models

    assert tuple(NODES) == torch_models.NAMES


def test_graphs_are_replaced_in_their_archive(tmp_path, monkeypatch):
    before = zoo.exported()
    monkeypatch.setattr(zoo, "GRAPHS", tmp_path / "graphs.tar.xz")
    zoo.store({"gpt2": b"another"})
    try:
        assert zoo.exported() == {**before, "gpt2": b"another"}
    finally:
        zoo.exported.cache_clear()
