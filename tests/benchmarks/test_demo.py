"""The demonstration's output fits a screen."""

import numpy as np
import tiny_models
from onnx import TensorProto as T

from benchmarks import demo

LAYERS = 30


def many_products():
    """Products that the mapping table does not fuse, so that there is much to be said."""
    weights = {f"w{n}": np.eye(64, dtype="float32")[::-1].copy() for n in range(LAYERS)}
    return tiny_models.onnx_model(
        [("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(LAYERS)],
        [("x0", T.FLOAT, [64, 64])],
        [(f"x{LAYERS}", T.FLOAT, [64, 64])],
        weights,
    )


def test_the_output_is_short_and_says_where_the_reasons_are(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert demo.demo(many_products, "products") == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert "  29 pairs of operators not fused; reasons: tvm-fusion explain build/products.onnx" in (
        lines
    )
    assert any(line.startswith("passed against ONNX Runtime") for line in lines)
    assert any(line.startswith("latency of 20 runs") for line in lines)
