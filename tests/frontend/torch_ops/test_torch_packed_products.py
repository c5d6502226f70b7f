"""Products with integers and packed weights, and bits that are read as another type."""

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

aten = torch.ops.aten


class Weights(torch.nn.Module):
    """A function of weights and an input."""

    def __init__(self, function, **weights):
        super().__init__()
        self.function = function
        for name, weight in weights.items():
            self.register_buffer(name, weight)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def draw(*shape, dtype=torch.int8):
    """Values of an integer type."""
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=torch.int64).to(dtype)


def agree(run, module, *inputs, **bounds):
    mod = import_model(torch.export.export(module, inputs)).mod
    expected = module(*inputs)
    found = run(mod, *(x.numpy() for x in inputs))
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(found, expected.numpy(), **bounds)


def test_products_with_integers(run):
    x, weight, scales = torch.randn(3, 64), draw(48, 64), torch.rand(48)
    module = Weights(lambda w, x: aten._weight_int8pack_mm(x, w.q, w.s), q=weight, s=scales)
    agree(run, module, x, rtol=1e-5, atol=1e-3)
    bytes_ = Weights(lambda w, x: aten._int_mm(x, w.q.t()), q=weight)
    agree(run, bytes_, draw(20, 64), rtol=0, atol=0)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("rows", [80, 16, 128])
def test_weights_packed_for_this_processor(run, rows):
    numbers = torch.randint(0, 16, (rows, 128), dtype=torch.int32)
    module = Weights(
        lambda w, x: aten._weight_int4pack_mm_for_cpu(x, w.q, 32, w.s),
        q=aten._convert_weight_to_int4pack_for_cpu(numbers, 1),
        s=torch.rand(4, rows, 2),
    )
    agree(run, module, torch.randn(3, 128), rtol=1e-5, atol=1e-3)


def gptq(rows, columns, group):
    """GPTQ: numbers of rows in words, groups in the order of their activations."""
    shifts, groups = torch.arange(0, 32, 4, dtype=torch.int32), rows // group

    def product(w, x):
        zeros = ((w.zeros.unsqueeze(2) >> w.shifts) & 15).reshape(groups, columns)
        numbers = ((w.q.unsqueeze(1) >> w.shifts.reshape(1, 8, 1)) & 15).reshape(rows, columns)
        group_of = w.groups.long()
        weight = w.scales[group_of] * (numbers - zeros[group_of]).half()
        return x @ weight.to(x.dtype)

    return Weights(
        product,
        shifts=shifts,
        q=draw(rows // 8, columns, dtype=torch.int32),
        zeros=draw(groups, columns // 8, dtype=torch.int32),
        scales=torch.rand(groups, columns).half(),
        groups=(torch.arange(rows) // group)[torch.randperm(rows)].int(),
    )


def awq(rows, columns, group):
    """AWQ: numbers of columns in words, in an order of their own."""
    groups = rows // group

    def numbers(w, x, count):
        fields = (x.unsqueeze(-1) >> w.shifts) & 15
        return fields[..., w.order].reshape(count, columns).half()

    def product(w, x):
        zeros = numbers(w, w.zeros, groups).reshape(groups, 1, columns)
        centered = numbers(w, w.q, rows).reshape(groups, group, columns) - zeros
        weight = centered * w.scales.reshape(groups, 1, columns)
        return x @ weight.reshape(rows, columns).to(x.dtype)

    return Weights(
        product,
        shifts=torch.arange(0, 32, 4, dtype=torch.int32),
        order=torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]),
        q=draw(rows, columns // 8, dtype=torch.int32),
        zeros=draw(groups, columns // 8, dtype=torch.int32),
        scales=torch.rand(groups, columns).half(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", [gptq, awq])
def test_layouts_of_words_stay_packed(layout):
    """Four bits a weight and scales of half precision are stored, and little besides."""
    rows, columns = 1024, 256
    module, x = layout(rows, columns, 32), torch.randn(3, rows)
    artifact = tvm_fusion.compile(torch.export.export(module, (x,)), target="cpu")
    (found,) = tvm_fusion.load(artifact)(inputs_0=x.numpy()).values()
    expected = module(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    held = sum(buffer.nbytes for name, buffer in module.named_buffers() if name != "groups")
    indices = 2 * 8 * rows  # each read of a group's scales and zero points has its own
    assert sum(array.nbytes for array in artifact.weights.values()) <= held + indices


VIEWS = [
    ("int32", "uint8"), ("uint8", "int32"), ("int16", "float16"), ("float32", "int32"),
    ("int8", "uint8"), ("uint8", "bfloat16"), ("int64", "int16"),
]  # fmt: skip


def test_bits_as_another_type(run):
    """Numbers of every pair of types in one program; floats are drawn as floats."""
    inputs = [
        torch.randn(3, 8) if source == "float32" else draw(3, 8, dtype=getattr(torch, source))
        for source, _ in VIEWS
    ]

    class Views(torch.nn.Module):
        def forward(self, *inputs):
            pairs = zip(inputs, VIEWS, strict=True)
            return tuple(x.view(getattr(torch, dtype)) for x, (_, dtype) in pairs)

    mod = import_model(torch.export.export(Views(), tuple(inputs))).mod
    found = run(mod, *(x.numpy() for x in inputs))
    for (_, dtype), x, own in zip(VIEWS, inputs, found, strict=True):
        assert str(own.dtype) == dtype
        np.testing.assert_array_equal(
            np.ascontiguousarray(own).view("uint8"), x.numpy().view("uint8"), dtype
        )


def test_bits_of_truth_values_are_refused():
    module = Weights(lambda _, x: x.view(torch.uint8))
    program = torch.export.export(module, (torch.ones(3, dtype=torch.bool),))
    with pytest.raises(UserError, match=r"of truth values .*; cast with .to\(dtype"):
        import_model(program)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_stored_types_that_numpy_lacks_at_any_address(dtype):
    """Files are mapped into memory wherever they lie."""
    weight = torch.randn(1 + 16 * 8).to(dtype)[1:].reshape(16, 8)
    module = Weights(lambda w, x: x @ w.q.float().t(), q=weight)
    import_model(torch.export.export(module, (torch.randn(3, 8),)))
