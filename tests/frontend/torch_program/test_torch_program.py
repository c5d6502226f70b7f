import numpy as np
import pytest

from tvm_fusion.config import FusionConfig
from tvm_fusion.core.constants.weight_names import weight_key
from tvm_fusion.core.decisions import recording
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(5)
        self.fc = torch.nn.Linear(5, 4)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image, scale):
        features = torch.relu(self.norm(self.conv(image)))
        logits = self.fc(features.mean((2, 3)))
        return {"logits": logits * scale, "parts": [features, logits.reshape(-1)]}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def export(net, dim=None):
    shapes = None if dim is None else {"image": {0: dim}, "scale": {0: dim}}
    args = (torch.randn(2, 3, 6, 5), torch.randn(2, 1))
    return torch.export.export(net, args, dynamic_shapes=shapes)


def test_static(net, operators, run):
    imported = import_model(export(net))
    assert imported.source == "ExportedProgram"
    signature = imported.signatures["main"]
    assert [(s.name, s.shape) for s in signature.inputs] == [
        ("image", (2, 3, 6, 5)),
        ("scale", (2, 1)),
    ]
    assert [s.name for s in signature.outputs] == ["logits", "parts.0", "parts.1"]
    names = operators(imported.mod["main"])
    assert "nn.batch_norm" not in names
    assert "permute_dims" not in names
    image, scale = torch.randn(2, 3, 6, 5), torch.randn(2, 1)
    with torch.no_grad():
        expected = net(image, scale)
    results = run(imported.mod, image.numpy(), scale.numpy())
    for result, reference in zip(results, [expected["logits"], *expected["parts"]], strict=True):
        np.testing.assert_allclose(result, reference.numpy(), rtol=1e-4, atol=1e-5)


def test_symbolic_keeps_the_exported_range(net, run):
    imported = import_model(export(net, torch.export.Dim("batch", min=1, max=16)))
    assert imported.dims == {"batch": DimRange(1, 16)}
    assert imported.signatures["main"].outputs[2].shape == ("batch*4",)
    attrs = imported.mod["main"].attrs
    assert dict(attrs["tir_var_upper_bound"]) == {"batch": 16}
    for batch in (1, 5):
        image, scale = torch.randn(batch, 3, 6, 5), torch.randn(batch, 1)
        with torch.no_grad():
            expected = net(image, scale)["logits"].numpy()
        result = run(imported.mod, image.numpy(), scale.numpy())[0]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_dims_bind_and_stay_inside_the_exported_range(net):
    program = export(net, torch.export.Dim("batch", min=2, max=16))
    imported = import_model(program, FusionConfig(dims={"image_0": 4}))
    assert imported.dims == {}
    assert imported.signatures["main"].inputs[0].shape == (4, 3, 6, 5)
    with pytest.raises(UserError, match=r"--dim image_0=1; expected extents within 2\.\.16"):
        import_model(program, FusionConfig(dims={"image_0": 1}))


def test_derived_dimensions(net, run):
    """``4*h`` in an input, and ``h`` in none: the signature says so, and calls are checked."""

    class Halves(torch.nn.Module):
        def forward(self, x):
            y = torch.nn.functional.max_pool2d(x, 2)
            return y.reshape(y.shape[0], 3, 2, -1).sum(2)

    h = torch.export.Dim("h", min=2, max=64)
    program = torch.export.export(
        Halves(), (torch.randn(1, 3, 16, 6),), dynamic_shapes=({2: 4 * h},)
    )
    imported = import_model(program)
    assert imported.signatures["main"].inputs[0].shape == (1, 3, "4*h", 6)
    assert imported.dims["h"] == DimRange(2, 64)
    for extent in (16, 36):
        x = torch.randn(1, 3, extent, 6)
        np.testing.assert_allclose(run(imported.mod, x.numpy()), Halves()(x).numpy(), rtol=1e-5)
    assert import_model(program, FusionConfig(dims={"h": 4})).signatures["main"].inputs[
        0
    ].shape == (1, 3, 16, 6)


def test_unlimited_dimensions_are_unbound(net):
    program = export(net, torch.export.Dim.AUTO)
    with pytest.raises(UserError, match=r"unbound dimensions image_0 \('s\d+' in the model\)"):
        import_model(program)
    ranged = import_model(program, FusionConfig(dims={"image_0": DimRange(2, 8)}))
    assert ranged.dims == {"image_0": DimRange(2, 8)}


def test_unsupported_operators_are_all_listed():
    class Odd(torch.nn.Module):
        def forward(self, x):
            factors = [torch.linalg.ldl_factor_ex(y)[0].sum() for y in (x, x * 2)]
            return (
                sum(factors)
                + torch.nn.functional.fractional_max_pool2d(
                    x[None], 2, 2, _random_samples=torch.zeros(1, 1, 2)
                ).sum()
            )

    program = torch.export.export(Odd(), (torch.randn(3, 3),))
    with pytest.raises(UserError) as error:
        import_model(program)
    text = str(error.value)
    assert "\n" not in text
    assert "ExportedProgram has unsupported operators aten.fractional_max_pool2d (1x)" in text
    assert "aten.linalg_ldl_factor_ex (2x)" in text
    assert "compute factorizations outside of the model" in text


def test_a_decomposition_that_fails_is_recorded(monkeypatch):
    """What is left over is refused by its name."""

    def fail(*_args):
        raise RuntimeError("no such distance")

    class Distance(torch.nn.Module):
        def forward(self, x):
            return torch.dist(x, x * 2, 3.0)

    program = torch.export.export(Distance(), (torch.randn(3, 3),))
    monkeypatch.setitem(torch._decomp.decomposition_table, torch.ops.aten.dist.default, fail)
    with recording() as log, pytest.raises(UserError, match=r"aten\.dist"):
        import_model(program)
    assert [(d.code, d.verdict) for d in log] == [("decomposition_failed", "refused")]
    assert "torch could not decompose aten.dist.default (no such distance" in log[0].sentence


def test_weights_know_their_names(net):
    names = import_model(export(net)).weight_names
    by_key = {weight_key(const.value.numpy()): name for const, name in names.items()}
    assert by_key[weight_key(net.fc.bias.detach().numpy())] == "fc.bias"
    assert by_key[weight_key(net.fc.weight.detach().numpy().T)] == "permute_dims(fc.weight)"
    assert "batch_norm(conv.weight)" in names.values()


def test_half_precision(net, run):
    imported = import_model(export(net), FusionConfig(precision="bf16"))
    image, scale = torch.randn(2, 3, 6, 5), torch.randn(2, 1)
    with torch.no_grad():
        expected = net(image, scale)["logits"].numpy()
    result = run(imported.mod, image.numpy(), scale.numpy())[0]
    error = np.abs(result - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < 3e-2


def test_names_of_plain_outputs():
    class Pair(torch.nn.Module):
        def forward(self, x):
            return x + 1, x * 2

    imported = import_model(torch.export.export(Pair(), (torch.randn(3),)))
    assert [s.name for s in imported.signatures["main"].outputs] == ["output_0", "output_1"]


def test_attention_that_torch_fails_to_decompose(run):
    """With a batch above one, torch's decomposition of masked attention breaks a view after it."""

    class Attention(torch.nn.Module):
        def forward(self, x, mask):
            q, k, v = x.view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return y.transpose(1, 2).reshape(2, 9, 32).view(-1, 32)

    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    x = torch.randn(2, 9, 96)
    program = torch.export.export(Attention(), (x, mask))
    with recording() as log:
        imported = import_model(program)
    result = run(imported.mod, x.numpy(), mask.numpy())
    np.testing.assert_allclose(result, Attention()(x, mask).numpy(), rtol=1e-4, atol=1e-5)
    assert [d.code for d in log] == ["attention_spelled_out"]
