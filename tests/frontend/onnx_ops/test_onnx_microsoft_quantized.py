"""GatherBlockQuantized and DynamicQuantizeLSTM, as ONNX Runtime's quantizers write them."""

import numpy as np
import pytest
from onnx import helper

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
