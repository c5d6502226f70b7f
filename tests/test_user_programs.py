"""Programs as users write them from the README and the documentation: each runs as it is.

Bundles in C++ are run by ``tests/deploy/build/test_cpp_runner.py``.
"""

import json

import numpy as np
import onnx
import pytest

import tvm_fusion
from tvm_fusion import DimRange, FusionConfig

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("registered_backend", "plain_llvm"),
    pytest.mark.filterwarnings("ignore"),
]
torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

MLP = """
<ir_version: 8, opset_import: ["": 17]>
mlp (float[N, 8] image) => (float[N, 3] logits)
<float[8, 3] w = {WEIGHTS}>
{ h = MatMul(image, w)  logits = Softmax <axis = 1> (h) }
""".replace("WEIGHTS", ", ".join(str(i % 5 - 2.0) for i in range(24)))


@pytest.fixture
def onnx_file(tmp_path):
    path = tmp_path / "mlp.onnx"
    onnx.save(onnx.parser.parse_model(MLP), path)
    return path


def expected_mlp(x):
    h = x @ (np.arange(24) % 5 - 2.0).astype("float32").reshape(8, 3)
    e = np.exp(h - h.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def close(found, expected, tolerance=1e-4):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Block(nn.Module):
    """torchvision's basic block of a ResNet."""

    def __init__(self, planes=8):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(x + self.bn2(self.conv2(y)))


def test_01_torch_compile_of_a_cnn():
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Block(), nn.Flatten())
    model.eval()
    compiled = torch.compile(model, backend="tvm_fusion", options={"freeze": True})
    x = torch.rand(1, 3, 16, 16)
    with torch.inference_mode():
        close(compiled(x), model(x))


def test_02_torch_compile_with_a_graph_break():
    @torch.compile(backend="tvm_fusion")
    def clip(x):
        x = x * 2
        if x.abs().max() > 1:
            return x / x.abs().max()
        return x + 1

    with torch.no_grad():
        for scale in (10.0, 0.01):
            x = torch.rand(4, 5) * scale
            y = x * 2
            close(clip(x), y / y.abs().max() if y.abs().max() > 1 else y + 1)


def test_03_torch_compile_of_texts_of_any_length():
    embed, head = nn.Embedding(50, 8), nn.Linear(8, 2)

    def classify(ids):
        return head(embed(ids).mean(1)).softmax(-1)

    compiled = torch.compile(classify, backend="tvm_fusion", dynamic=True)
    with torch.inference_mode():
        for length in (3, 5, 11):
            ids = torch.randint(0, 50, (2, length))
            close(compiled(ids), classify(ids))


def test_04_torch_compile_in_bfloat16():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).bfloat16()
    compiled = torch.compile(model, backend="tvm_fusion")
    x = torch.rand(3, 16).bfloat16()
    with torch.inference_mode():
        close(compiled(x), model(x), 5e-2)


def test_05_torch_compile_of_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 50}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = transformers.BertModel(config).eval()
    compiled = torch.compile(model, backend="tvm_fusion")
    batch = {
        "input_ids": torch.randint(0, 50, (2, 6)),
        "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
    }
    with torch.inference_mode():
        found, expected = compiled(**batch), model(**batch)
    assert type(found) is type(expected)
    close(found.last_hidden_state, expected.last_hidden_state)


def test_06_torch_compile_of_an_autoregressive_loop():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.register_buffer("keys", torch.zeros(1, 16, 8))

        def forward(self, token, position):
            q = self.embed(token)[:, None]
            self.keys.index_copy_(1, position, q)
            seen = torch.arange(16) <= position
            scores = (q @ self.keys.transpose(1, 2)).masked_fill(~seen, float("-inf"))
            return self.head((scores.softmax(-1) @ self.keys)[:, 0]).argmax(-1)

    def generate(step, model):
        model.keys.zero_()
        tokens = [torch.tensor([3])]
        for position in range(4):
            tokens.append(step(tokens[-1], torch.tensor([position])))
        return torch.cat(tokens)

    model = Decoder()
    with torch.inference_mode():
        step = torch.compile(model, backend="tvm_fusion")
        assert generate(step, model).tolist() == generate(model, model).tolist()


def test_07_an_exported_program_takes_and_returns_tensors():
    model, x = nn.Linear(8, 3), torch.rand(2, 8)
    program = torch.export.export(model, (x,))
    run = tvm_fusion.load(tvm_fusion.compile(program))
    close(run(x), model(x).detach())
    assert isinstance(run(x.numpy()), np.ndarray)


def test_08_nested_inputs_and_outputs():
    class Pair(nn.Module):
        def forward(self, images, *, weights):
            return {"sum": images["a"] + images["b"], "parts": (images["a"] * weights[0], None)}

    a, b = torch.rand(2, 3), torch.rand(2, 3)
    images, weights = {"a": a, "b": b}, [torch.rand(3)]
    program = torch.export.export(Pair(), (images,), {"weights": weights})
    found = tvm_fusion.load(tvm_fusion.compile(program))(images, weights=weights)
    close(found["sum"], a + b)
    close(found["parts"][0], a * weights[0])
    assert found["parts"][1] is None


def test_09_an_exported_program_of_any_batch(tmp_path):
    model = nn.LSTM(4, 5, batch_first=True)
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(model, (torch.rand(2, 3, 4),), dynamic_shapes=({0: batch},))
    artifact = tvm_fusion.compile(program)
    artifact.export(tmp_path / "lstm")
    run = tvm_fusion.load(tmp_path / "lstm")
    for size in (1, 7):
        x = torch.rand(size, 3, 4)
        y, (h, c) = run(x)
        close((y, h, c), (lambda y, s: (y.detach(), *(t.detach() for t in s)))(*model(x)))


def command(capsys, *words):
    from tvm_fusion.cli import main

    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_10_a_pt2_file_on_the_command_line(tmp_path, capsys):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    torch.export.save(torch.export.export(model, (torch.rand(1, 1, 8, 8),)), tmp_path / "m.pt2")
    command(capsys, "compile", tmp_path / "m.pt2", "-o", tmp_path / "m")
    assert command(capsys, "check", tmp_path / "m", tmp_path / "m.pt2")["passed"]


def test_11_an_onnx_file(onnx_file):
    artifact = tvm_fusion.compile(onnx_file, dims={"N": 2})
    run = tvm_fusion.load(artifact)
    x = np.random.default_rng().random((2, 8), "float32")
    np.testing.assert_allclose(run(image=x)["logits"], expected_mlp(x), rtol=1e-5)
    np.testing.assert_array_equal(run(x)["logits"], run(image=x)["logits"])


def test_12_an_onnx_file_of_a_dynamic_batch(onnx_file):
    run = tvm_fusion.load(tvm_fusion.compile(onnx_file, config={"dims": {"N": DimRange(1, 8)}}))
    for size in (1, 8):
        x = np.random.default_rng().random((size, 8), "float32")
        np.testing.assert_allclose(run(x)["logits"], expected_mlp(x), rtol=1e-5)
    with pytest.raises(tvm_fusion.UserError, match=r"compile with --dim N=1\.\.9"):
        run(np.zeros((9, 8), "float32"))


def test_13_an_onnx_file_on_the_command_line(onnx_file, tmp_path, capsys):
    command(capsys, "compile", onnx_file, "--dim", "N=1..4", "-o", tmp_path / "a")
    assert command(capsys, "check", tmp_path / "a", onnx_file, "--dim", "N=3")["passed"]
    assert command(capsys, "run", tmp_path / "a", "--repeat", "3")["latency_ms"]["min"] > 0


def test_14_the_onnx_backend(onnx_file):
    import tvm_fusion.onnx_backend as backend

    x = np.random.default_rng().random((2, 8), "float32")
    (logits,) = backend.prepare(onnx.load(onnx_file), "CPU").run([x])
    np.testing.assert_allclose(logits, expected_mlp(x), rtol=1e-5)


def relax_module():
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 3), "float32")):
            with R.dataflow():
                h = R.nn.relu(R.matmul(x, w))
                y = R.nn.softmax(h)
                R.output(y)
            return y

    return Module


def relax_inputs():
    x, w = (np.random.default_rng().random(shape, "float32") for shape in ((4, 8), (8, 3)))
    e = np.exp(x @ w)
    return x, w, e / e.sum(1, keepdims=True)


def test_15_a_relax_module():
    x, w, expected = relax_inputs()
    (y,) = tvm_fusion.load(tvm_fusion.compile(relax_module()))(x, w).values()
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def run_by_tvm(executable, *arrays):
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_16_the_pipeline_by_name():
    import tvm

    from tvm_fusion.device import parse

    x, w, expected = relax_inputs()
    target = parse("cpu").tvm_target()
    options = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    y = run_by_tvm(tvm.compile(relax_module(), target, **options), x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_17_passes_in_a_pipeline_of_ones_own():
    import tvm
    from tvm import relax

    from tvm_fusion.device import parse

    x, w, expected = relax_inputs()
    target = parse("cpu").tvm_target()
    passes = [
        relax.transform.CanonicalizeBindings(),
        tvm_fusion.transform.Legalize(),
        tvm_fusion.transform.FuseOperators(),
        tvm_fusion.transform.ScheduleKernels(),
    ]
    with target:
        module = tvm.transform.Sequential(passes)(relax_module())
    y = run_by_tvm(tvm.compile(module, target, tir_pipeline="tvm_fusion"), x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_18_a_module_of_relax_frontend_nn():
    from tvm.relax.frontend import nn as relax_nn

    class Model(relax_nn.Module):
        def __init__(self):
            self.fc = relax_nn.Linear(8, 3)

        def forward(self, x):
            return relax_nn.op.silu(self.fc(x))

    spec = {"forward": {"x": relax_nn.spec.Tensor((2, 8), "float32")}}
    module, _ = Model().export_tvm(spec)
    x, w, b = (np.random.default_rng().random(s, "float32") for s in ((2, 8), (3, 8), (3,)))
    executable = tvm_fusion.load(tvm_fusion.compile(module))
    inputs = {"x": x, "fc.weight": w, "fc.bias": b}
    (y,) = executable.run(inputs, function="forward").values()
    h = x @ w.T + b
    np.testing.assert_allclose(y, h / (1 + np.exp(-h)), rtol=1e-5)


def test_19_half_precision_and_reasons(onnx_file):
    config = FusionConfig(precision="bf16", dims={"N": 2})
    x = np.random.default_rng().random((2, 8), "float32")
    found = tvm_fusion.load(tvm_fusion.compile(onnx_file, config=config))(x)["logits"]
    np.testing.assert_allclose(found, expected_mlp(x), atol=2e-2)
    assert tvm_fusion.explain(onnx_file, config=config, stock=False).groups


def test_20_a_second_process_finds_the_artifact(onnx_file, tmp_path):
    for _ in range(2):
        artifact = tvm_fusion.compile(onnx_file, dims={"N": 2}, cache=tmp_path / "cache")
        assert tvm_fusion.load(artifact)(np.ones((2, 8), "float32"))["logits"].shape == (2, 3)
    assert artifact.seconds == 0  # nothing was compiled
