"""Graphs as ONNX Runtime's optimizers write them: compiled to as few kernels, and right."""

import numpy as np
import onnx
import pytest

import tvm_fusion

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SIZES = {"vocab_size": 101}


class First(torch.nn.Module):
    """The first result of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)[0]


def bert():
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=32, **SIZES,
    )  # fmt: skip
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    inputs = {"attention_mask": mask, "token_type_ids": torch.randint(0, 2, (2, 9))}
    return transformers.BertModel(config, add_pooling_layer=False), inputs


def gpt2():
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=32, use_cache=False, **SIZES
    )
    return transformers.GPT2LMHeadModel(config), {}


def exported(make, path):
    model, inputs = make()
    inputs = {"input_ids": torch.randint(0, 101, (2, 9)), **inputs}
    torch.onnx.export(
        First(model.eval()), kwargs=inputs, f=path, dynamo=True, opset_version=18, verbose=False
    )
    return {name: x.numpy() for name, x in inputs.items()}


def kernels(artifact):
    return artifact.manifest["functions"]["main"]["kernels"]


@pytest.mark.parametrize("make", [bert, gpt2])
def test_extended_optimizations(make, tmp_path):
    plain, optimized = str(tmp_path / "plain.onnx"), str(tmp_path / "optimized.onnx")
    feeds = exported(make, plain)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = optimized
    (expected,) = onnxruntime.InferenceSession(plain, options).run(None, feeds)
    assert any(node.domain == "com.microsoft" for node in onnx.load(optimized).graph.node)
    artifact = tvm_fusion.compile(optimized)
    assert kernels(artifact) <= kernels(tvm_fusion.compile(plain))
    artifact.export(tmp_path / "model")
    (found,) = tvm_fusion.load(tmp_path / "model")(**feeds).values()
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_fused_attention(tmp_path):
    """What ``onnxruntime.transformers.optimizer`` makes of BERT."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    plain, optimized = str(tmp_path / "plain.onnx"), str(tmp_path / "optimized.onnx")
    feeds = exported(bert, plain)
    model = optimizer.optimize_model(plain, "bert", num_heads=4, hidden_size=64, opt_level=0)
    model.save_model_to_file(optimized)
    (expected,) = onnxruntime.InferenceSession(plain).run(None, feeds)
    operators = {node.op_type for node in onnx.load(optimized).graph.node}
    assert operators & {"Attention", "MultiHeadAttention", "SkipLayerNormalization"}
    artifact = tvm_fusion.compile(optimized)
    artifact.export(tmp_path / "model")
    (found,) = tvm_fusion.load(tmp_path / "model")(**feeds).values()
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)
