"""Activations of int8 with packed weights: where the user allows it, once for all products."""

import numpy as np
import pytest
import tvm
from quantised_products import nibbles
from relax_modules import main_module
from tvm import relax

from tvm_fusion.core.flags import APPROXIMATE
from tvm_fusion.device import parse
from tvm_fusion.frontend.operators.rounded_rows import rounded_rows, widened_rows
from tvm_fusion.rewrite.bytes.rounded_activations import RoundedActivations

op = relax.op
VNNI, PLAIN = parse("cpu:cascadelake"), parse("cpu:cortex-a53")
ROWS, K, N = 3, 96, 8


def products(is_rounded=False):
    """Two products of one left operand, with weights of 4 bits."""
    rng = np.random.default_rng()
    x = relax.Var("x", relax.TensorType((ROWS, K), "float32"))
    packed = [rng.integers(0, 256, (N, K // 2)).astype("uint8") for _ in range(2)]

    def body(emit, x):
        left = widened_rows(emit, *rounded_rows(emit, x, 32), x) if is_rounded else x
        found = []
        for q in packed:
            w = emit(op.astype(nibbles(emit, relax.const(q), 1), "float32"))
            w = emit(op.subtract(w, relax.const(8.0)))
            found.append(emit(op.matmul(left, emit(op.permute_dims(w)))))
        return op.add(*found)

    return main_module([x], body)


def calls(mod, name):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == f"relax.{name}":
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def rewritten(mod, spec):
    with spec.tvm_target():
        return RoundedActivations()(mod)


def result(mod, x):
    run = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    return run(tvm.runtime.tensor(x)).numpy()


def test_rounds_once_where_it_is_allowed():
    mod = products()
    found = rewritten(mod, VNNI.permitting([APPROXIMATE]))
    lefts = [call.args[0] for call in calls(found, "matmul")]
    assert len(calls(found, "round")) == 1
    assert not lefts[0].same_as(lefts[1])
    x = np.random.default_rng().standard_normal((ROWS, K)).astype("float32")
    x[0, :32] = 0
    exact, got = result(mod, x), result(found, x)
    error = np.abs(got - exact).max()
    assert 0 < error <= 2 * np.abs(x).max() / 254 * 15 * K
    again = rewritten(found, VNNI.permitting([APPROXIMATE]))
    tvm.ir.assert_structural_equal(again, found)


@pytest.mark.parametrize("spec", [VNNI, PLAIN.permitting([APPROXIMATE])], ids=["exact", "no dot"])
def test_leaves_activations(spec):
    mod = products()
    tvm.ir.assert_structural_equal(rewritten(mod, spec), mod)


def test_scales_back_at_each_product():
    """Rounding that the model has itself is computed once; its bytes are read by both."""
    mod = products(is_rounded=True)
    assert calls(mod, "matmul")[0].args[0].same_as(calls(mod, "matmul")[1].args[0])
    found = rewritten(mod, VNNI)
    lefts = [call.args[0] for call in calls(found, "matmul")]
    assert len(calls(found, "round")) == 1
    assert not lefts[0].same_as(lefts[1])
    x = np.random.default_rng().standard_normal((ROWS, K)).astype("float32")
    np.testing.assert_array_equal(result(found, x), result(mod, x))
