"""Marks of TOPI that LLVM's code generator warns of."""

import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion


@pytest.mark.parametrize("target", ["cpu", "rocm:gfx942"])
def test_no_warning_of_an_unknown_pragma(target, capfd):
    places = {"places": np.array([[2], [0]])}
    nodes = [("ScatterElements", ["x", "places", "y"], ["z"], {"axis": 1})]
    inputs = [("x", T.FLOAT, [2, 3]), ("y", T.FLOAT, [2, 1])]
    tvm_fusion.compile(onnx_model(nodes, inputs, [("z", T.FLOAT, [2, 3])], places), target)
    assert "pragma" not in capfd.readouterr().err
