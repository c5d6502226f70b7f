"""Numbers beside tensors, symbolic ones too, fused layers of transformers, results without tensors.

Programs are imported and compared with PyTorch at several extents.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_fusion  # noqa: E402
from tvm_fusion.core.decisions import recording  # noqa: E402
from tvm_fusion.errors import UserError  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402
from tvm_fusion.frontend.torch_ops.registry import CONVERTERS, register  # noqa: E402

pytestmark = pytest.mark.torch


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function, x):
    dims = {axis: torch.export.Dim.DYNAMIC(min=2, max=64) for axis in range(x.ndim)}
    return torch.export.export(Function(function), (x,), dynamic_shapes=(dims,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.new_ones(torch.sym_sum([x.shape[0], x.shape[1], 3])),
        lambda x: x.new_ones(max(x.shape[0], 4) + min(x.shape)),
        lambda x: x.new_ones(math.trunc(x.shape[0] * 0.5) + math.floor(x.shape[1] * 0.3)),
        lambda x: x.new_ones(math.ceil(x.shape[0] / 2) + round(x.shape[1] / 3)),
        lambda x: x.new_ones(x.shape[0] << 1) * (x.shape[0] >> 1) + (x.shape[1] & 3),
        lambda x: x.new_ones(x.shape[0] ** 2) * abs(x.shape[1] - 5),
        lambda x: x * torch.sym_ite((x.shape[0] > 4) & (x.shape[1] > 4), 2, 1),
        lambda x: x * torch.sym_ite((x.shape[0] > 4) | (x.shape[1] > 4), 2, 1),
    ],
    ids=["sum", "extrema", "truncated", "rounded", "bits", "powers", "and", "or"],
)
def test_functions_of_extents(function, tmp_path):
    program = exported(function, torch.ones(6, 7))
    exe = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "model"))
    for shape in ((6, 7), (9, 4), (4, 11)):
        x = torch.rand(shape)
        wanted = function(x).numpy()
        (found,) = exe.run({"x": x.numpy()}).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_scalars_that_a_half_type_does_not_hold(run):
    """PyTorch multiplies and divides by them in float32."""
    wide = torch.tensor(1e5)

    def scaled(x):
        masked = (1 - x) * -1e9
        return masked, x * 1e-8 * 1e8, x / 1e5, x / 1e-8, x * wide, x / wide, x * 70000

    x = torch.tensor([0.0, 1.0, 0.5, 60000.0, -0.25]).half()
    found = run(import_model(torch.export.export(Function(scaled), (x,))).mod, x.numpy())
    for number, (one, other) in enumerate(zip(found, scaled(x), strict=True)):
        np.testing.assert_array_equal(one, other.numpy(), err_msg=str(number))


def test_limits_that_exclude_everything(tmp_path):
    """The upper one is taken, and NaN stays."""
    x = torch.tensor([math.nan, 1.0, -1.0, 9.0])
    program = torch.export.export(Function(lambda x: x.clamp(3, 1)), (x,))
    exe = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "model"))
    np.testing.assert_array_equal(exe(x), [math.nan, 1, 1, 1])


def test_sum_with_a_length_that_depends_on_data(tmp_path):
    """Dynamo writes such a sum where graphs get self loops."""

    def scattered(edges):
        kept = edges[:, edges[0] != edges[1]]
        both = torch.cat([kept, torch.arange(5).view(1, -1).repeat(2, 1)], 1)
        ones = torch.ones((torch.sym_sum([5, kept.shape[1]]),))
        return torch.zeros(5).scatter_add_(0, both[1], ones)

    edges = torch.tensor([[0, 1, 2, 3, 4, 4], [0, 2, 2, 1, 0, 4]])
    program = torch.export.export(Function(scattered), (edges,))
    exe = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "model"))
    (result,) = exe.run({"x": edges.numpy()}).values()
    np.testing.assert_array_equal(result, scattered(edges))


HIDDEN = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    "options",
    [
        {"need_weights": False},
        {"need_weights": True, "average_attn_weights": False, "key_padding_mask": HIDDEN},
        {"need_weights": False, "key_padding_mask": HIDDEN, "attn_mask": CAUSAL},
    ],
    ids=["plain", "weights", "masks"],
)
def test_fused_attention(options, run):
    """What nn.MultiheadAttention calls in eval mode, as in torchvision's ViT."""
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    model, x = Function(lambda x: layer(x, x, x, **options)), torch.randn(2, 5, 16)
    model.layer = layer
    with torch.no_grad():
        program = torch.export.export(model.eval(), (x,))
        wanted = [w for w in model(x) if w is not None]
    found = run(import_model(program).mod, x.numpy())
    for one, other in zip(found if isinstance(found, list) else [found], wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


FUSED = torch.ops.aten._transformer_encoder_layer_fwd


@pytest.mark.parametrize("norm_first", [False, True])
def test_fused_encoder_layer(norm_first, run):
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    attention, x = layer.self_attn, torch.randn(2, 5, 16)

    def fused(x):
        return FUSED(
            x, 16, 4, attention.in_proj_weight, attention.in_proj_bias,
            attention.out_proj.weight, attention.out_proj.bias, True, norm_first, 1e-5,
            layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias,
            layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias,
        )  # fmt: skip

    model = Function(fused)
    model.layer = layer
    with torch.no_grad():
        program = torch.export.export(model.eval(), (x,))
        wanted = layer(x).numpy()
    assert any(node.target == FUSED.default for node in program.graph.nodes)
    found = run(import_model(program).mod, x.numpy())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_results_that_are_none():
    def nested(x):
        return {"a": (x + 1, None), "b": [x * 2, None, {"c": x * 3}], "n": None}

    program = torch.export.export(Function(nested), (torch.ones(3),))
    with recording() as decisions:
        imported = import_model(program)
    names = [output.name for output in imported.signatures["main"].outputs]
    assert names == ["a.0", "b.0", "b.2.c"]
    dropped = [d.consumer for d in decisions if d.code == "none_dropped"]
    assert dropped == ["a.1", "b.1", "n"]


@pytest.mark.parametrize(
    ("result", "found"), [(lambda x: (x, "text"), "type str"), (lambda x: None, "no tensor")]
)
def test_results_that_are_refused(result, found):
    program = torch.export.export(Function(result), (torch.ones(3),))
    with pytest.raises(UserError, match=found):
        import_model(program)


def test_an_error_names_the_module_and_the_line():
    """Whatever a converter raises is one sentence with the operator's place."""

    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.sinh(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + 1

    program = torch.export.export(Outer(), (torch.ones(3),))
    kept, raised = CONVERTERS["sinh.default"], ValueError("no such number")

    @register("sinh", replace=True)
    def breaks(call):
        raise raised

    try:
        with pytest.raises(UserError) as error:
            import_model(program)
    finally:
        CONVERTERS["sinh.default"] = kept
    sentence = str(error.value)
    line = Inner.forward.__code__.co_firstlineno + 1
    assert f"(at inner, test_torch_numbers.py line {line})" in sentence
    assert "aten.sinh cannot be converted (no such number)" in sentence
    assert "\n" not in sentence
    assert error.value.__cause__ is raised
