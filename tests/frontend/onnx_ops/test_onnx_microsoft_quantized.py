"""Operators over packed weights, as ONNX Runtime's quantizers write them."""

import numpy as np
import pytest
from onnx import helper

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

F32 = "float32"


@pytest.mark.slow
@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize(
    ("bits", "has_zeros"),
    [(4, True), (4, False), (8, True), (2, True)],
)
def test_gather_of_packed_rows(agrees, rng, bits, has_zeros):
    rows, columns, size = 7, 48, 16
    blocks = columns // size
    inputs = {
        "d": rng.integers(0, 256, (rows, columns * bits // 8)).astype("uint8"),
        "i": rng.integers(-rows, rows, (2, 3)),
        "s": rng.standard_normal((rows, blocks), F32),
    }
    if has_zeros:
        inputs["z"] = rng.integers(0, 256, (rows, -(-blocks * bits // 8))).astype("uint8")
    agrees(
        "com.microsoft::GatherBlockQuantized", inputs, {"y": F32},
        constants=[*inputs.keys() - {"i"}],
        bits=bits, block_size=size, gather_axis=0, quantize_axis=1,
    )  # fmt: skip


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("per_row", [False, True])
def test_dynamic_lstm(agrees, rng, onnx_model, onnxruntime_run, direction, per_row):
    """As the LSTM of the same weights in float32, and ONNX Runtime's to what bytes keep."""
    directions, hidden, features = 1 + (direction == "bidirectional"), 8, 6
    shape = (directions, 4 * hidden) if per_row else (directions,)

    def weights(terms):
        return rng.integers(-127, 128, (directions, terms, 4 * hidden)).astype("int8")

    inputs = {
        "x": rng.standard_normal((5, 3, features), F32),
        "w": weights(features),
        "r": weights(hidden),
        "b": rng.standard_normal((directions, 8 * hidden), F32) / 8,
        "_lengths": np.zeros(0),
        "h": rng.standard_normal((directions, 3, hidden), F32) / 8,
        "c": rng.standard_normal((directions, 3, hidden), F32) / 8,
        "p": rng.standard_normal((directions, 3 * hidden), F32) / 8,
        "ws": rng.uniform(0.001, 0.004, shape).astype(F32),
        "wz": np.zeros(shape, "int8"),
        "rs": rng.uniform(0.001, 0.004, shape).astype(F32),
        "rz": np.zeros(shape, "int8"),
    }
    wide = {
        name: np.swapaxes(inputs[name].astype(F32) * inputs[scale].reshape(directions, 1, -1), 1, 2)
        for name, scale in (("w", "ws"), ("r", "rs"))
    }
    given = {n: inputs[n] for n in ("x", "w", "r", "b", "h", "c", "p")} | wide
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b", "", "h", "c", "p"], ["y", "yh", "yc"],
        hidden_size=hidden, direction=direction,
    )  # fmt: skip
    model = onnx_model(
        [node],
        {n: (F32, list(a.shape)) for n, a in given.items()},
        {n: (F32, None) for n in ("y", "yh", "yc")},
    )
    agrees(
        "com.microsoft::DynamicQuantizeLSTM", inputs, {"y": F32, "yh": F32, "yc": F32},
        constants=["w", "r", "ws", "wz", "rs", "rz"], expected=onnxruntime_run(model, **given),
        atol=1e-5, hidden_size=hidden, direction=direction,
    )  # fmt: skip


def numbers_of(data, bits, count):
    """The first numbers of streams of bits, the lowest first."""
    stream = np.unpackbits(data, axis=-1, bitorder="little")[..., : count * bits]
    return stream.reshape(*data.shape[:-1], count, bits) @ (1 << np.arange(bits))


#: bits, terms, type of zero points, how terms are grouped; whether ONNX Runtime is right on a CPU.
PACKED = {
    "4 bits": (4, 64, None, None, True),
    "packed zero points": (4, 64, "uint8", None, True),
    "terms that fill no block": (4, 40, "uint8", None, True),
    "zero points in floats": (4, 48, F32, None, True),
    "8 bits": (8, 64, "uint8", None, True),
    "2 bits": (2, 64, "uint8", None, True),
    "2 bits, zero points in floats": (2, 40, F32, None, True),
    "3 bits": (3, 64, "uint8", None, False),
    "5 bits": (5, 40, "uint8", None, False),
    "6 bits": (6, 64, F32, None, False),
    "ordered by activation": (4, 64, None, "whole", True),
    "ordered, packed zero points": (4, 64, "uint8", "whole", False),
    "3 bits, ordered": (3, 64, "uint8", "whole", False),
    "blocks of any size": (4, 64, F32, "any", True),
    "blocks of any size, packed": (8, 40, "uint8", "any", False),
    "in order already": (4, 64, None, "plain", True),
}


def packed_inputs(rng, bits, terms, zeros, grouping):
    """Inputs of MatMulNBits, and its product in float64."""
    size, columns = 16, 7
    blocks = -(-terms // size)
    inputs = {"x": rng.standard_normal((3, terms), F32)}
    inputs["q"] = rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype("uint8")
    inputs["s"] = rng.uniform(0.1, 1, (columns, blocks)).astype(F32)
    offsets = np.full((columns, blocks), 1 << (bits - 1))
    if zeros == "uint8":
        inputs["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("uint8")
        offsets = numbers_of(inputs["z"], bits, blocks)
    elif zeros is not None:
        inputs["z"] = offsets = rng.uniform(0, 15, (columns, blocks)).astype(F32)
    groups = np.arange(terms) // size
    if grouping is not None:
        if zeros is None:
            inputs["_z"] = np.zeros(0)  # left out
        if grouping == "whole":
            groups = rng.permutation(groups)
        elif grouping == "any":
            groups = rng.integers(0, blocks, terms)
        inputs["g"] = groups.astype("int32")
    numbers = numbers_of(inputs["q"], bits, size).reshape(columns, -1)[:, :terms]
    weights = (numbers - offsets[:, groups]) * inputs["s"][:, groups].astype("float64")
    attrs = {"bits": bits, "K": terms, "N": columns, "block_size": size}
    return inputs, attrs, inputs["x"] @ weights.T


@pytest.mark.slow_beyond(5)
@pytest.mark.parametrize("case", PACKED)
def test_packed_weights(agrees, rng, case):
    *form, has_reference = PACKED[case]
    inputs, attrs, wanted = packed_inputs(rng, *form)
    agrees(
        "com.microsoft::MatMulNBits", inputs, {"y": F32},
        constants=[name for name in "qszg" if name in inputs], rtol=1e-4, atol=1e-3,
        expected=None if has_reference else [wanted.astype(F32)], **attrs,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [3, 4])
def test_packed_weights_are_stored_packed(onnx_model, rng, bits):
    """The artifact holds the bits of the file, and scales in half precision.

    Numbers whose bits lie in several bytes, as those of three do, CPUs have in a byte each.
    """
    rows, terms, size = 96, 1024, 32
    blocks = terms // size
    weights = {
        "q": rng.integers(0, 256, (rows, blocks, size * bits // 8)).astype("uint8"),
        "s": rng.uniform(0.1, 1, (rows, blocks)).astype("float16"),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft",
        bits=bits, K=terms, N=rows, block_size=size,
    )  # fmt: skip
    model = onnx_model(
        [node], {"x": ("float16", [1, terms])}, {"y": ("float16", None)}, weights,
        domains=["com.microsoft"],
    )  # fmt: skip
    stored = tvm_fusion.compile(model, target="cpu").weights
    numbers = rows * terms if bits == 3 else weights["q"].nbytes
    assert sum(a.nbytes for a in stored.values()) == numbers + weights["s"].nbytes


def test_streams_of_computed_weights_are_refused(onnx_model):
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft",
        bits=3, K=32, N=4, block_size=32,
    )  # fmt: skip
    inputs = {"x": (F32, [1, 32]), "q": ("uint8", [4, 1, 12]), "s": (F32, [4, 1])}
    model = onnx_model([node], inputs, {"y": (F32, None)}, domains=["com.microsoft"])
    with pytest.raises(UserError, match=r"of 3 bits that are computed.*make the weights constants"):
        import_model(model)


def test_activations_of_int8(agrees, rng):
    """As ONNX Runtime rounds them at accuracy level 4: a scale for each block of a row."""
    size, terms, columns = 32, 96, 7
    inputs = {"x": rng.standard_normal((3, terms), F32)}
    inputs["x"][0, :size] = 0
    inputs["q"] = rng.integers(0, 256, (columns, terms // size, size // 2)).astype("uint8")
    inputs["s"] = rng.uniform(0.1, 1, (columns, terms // size)).astype(F32)
    (got,) = agrees("com.microsoft::MatMulNBits", inputs, {"y": F32}, constants=["q", "s"],
                    rtol=1e-4, atol=1e-3, bits=4, K=terms, N=columns, block_size=size,
                    accuracy_level=4)  # fmt: skip
    q = np.stack([inputs["q"] & 15, inputs["q"] >> 4], -1).reshape(columns, -1, size) - 8.0
    exact = inputs["x"] @ (q * inputs["s"][..., None]).reshape(columns, terms).T
    assert np.abs(got - exact).max() > 1e-3
