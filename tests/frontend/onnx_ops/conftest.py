"""Comparing an imported operator with ONNX Runtime."""

import re

import numpy as np
import pytest
from onnx import helper

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.normalize import IntegerPower


@pytest.fixture
def agrees(onnx_model, run, onnxruntime_run):
    """Import one operator, run it, and compare with ONNX Runtime; returns the results.

    Operators of other domains are named ``domain::Name``. Inputs are arrays by name; those named in
    ``constants`` become initializers.
    """

    def check(
        op, inputs, outputs, *, constants=(), opset=18, rtol=1e-5, atol=1e-6, expected=None, **attrs
    ):
        names = [name or "" for name in inputs]
        fed = {n: a for n, a in inputs.items() if n not in constants and not n.startswith("_")}
        domain, _, name = op.rpartition("::")
        given = ["" if n.startswith("_") else n for n in names]
        outs = ["" if n.startswith("_") else n for n in outputs]
        node = helper.make_node(name, given, outs, domain=domain, **attrs)
        model = onnx_model(
            [node],
            {name: (array.dtype.name, list(array.shape)) for name, array in fed.items()},
            {n: (dtype, None) for n, dtype in outputs.items() if not n.startswith("_")},
            {name: inputs[name] for name in constants},
            opset=opset,
            domains=[domain] if domain else [],
        )
        mod = IntegerPower()(import_model(model, FusionConfig()).mod)  # as legalization does
        results = run(mod, *fed.values())
        results = results if isinstance(results, list) else [results]
        wanted = onnxruntime_run(model, **fed) if expected is None else expected
        assert len(results) == len(wanted)
        for one, other in zip(results, wanted, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
        return results

    return check


@pytest.fixture
def refuses(onnx_model):
    """Return the sentence with which one operator is refused, without the list of its inputs."""
    from tvm_fusion.errors import UserError

    def sentence(op, inputs, outputs, weights=None, opset=18, **attrs):
        model = onnx_model(
            [helper.make_node(op, [*inputs, *(weights or {})], list(outputs), **attrs)],
            inputs,
            outputs,
            weights,
            opset=opset,
        )
        with pytest.raises(UserError) as error:
            import_model(model)
        assert "\n" not in str(error.value)
        return re.sub(r" \(its inputs: [^;()]*\)", "", str(error.value))

    return sentence
