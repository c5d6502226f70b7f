"""Attention of heads that are too wide for its template: two products and a softmax."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

op = relax.op
CUDA, CPU = parse("cuda:sm_90a"), parse("cpu")
TOKENS, WIDE = 64, 512


def widened(width, dtype="float16", tokens=TOKENS):
    """As PyTorch exports it: operands of a half type are widened, both sides are scaled."""
    factor = relax.const(np.float32(width**-0.25))
    params = [relax.Var(n, relax.TensorType((1, 1, tokens, width), dtype)) for n in ("q", "k", "v")]

    def body(emit, q, k, v):
        q, k, v = (emit(op.astype(x, "float32")) for x in (q, k, v))
        q, k = (emit(op.multiply(x, factor)) for x in (q, k))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        dead = emit(op.equal(scores, relax.const(-np.inf, "float32")))
        alive = emit(op.astype(emit(op.logical_not(dead)), "int8"))
        rows = emit(op.astype(emit(op.max(alive, axis=-1, keepdims=True)), "bool"))
        weights = emit(op.nn.softmax(scores, -1))
        zeros = emit(op.full_like(weights, relax.const(0.0, "float32")))
        weights = emit(op.where(emit(op.logical_not(rows)), zeros, weights))
        return op.astype(emit(op.matmul(weights, v)), dtype)

    return main_module(params, body)


def recomposed(mod, spec=CUDA):
    with spec.tvm_target(), recording() as log:
        after = transform.Recompose()(mod)
    relax.analysis.well_formed(after)  # raises
    return after, [d for d in log if d.consumer == "attention"]


def products(mod):
    bindings = (b for block in mod["main"].body.blocks for b in block.bindings)
    calls = (b.value for b in bindings if isinstance(b.value, relax.Call))
    return [c for c in calls if c.op.name == "relax.matmul"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.slow
def test_wide_heads_are_products_of_half_types(dtype):
    after, (decision,) = recomposed(widened(WIDE, dtype))
    assert (decision.verdict, decision.code) == ("accepted", "recomposed")
    assert "in kernels of its parts" in decision.sentence
    for call in products(after):
        assert [str(a.ty.dtype.dtype) for a in call.args] == [dtype] * 2
        assert str(call.ty.dtype.dtype) == "float32"
    again, (second,) = recomposed(after)
    tvm.ir.assert_structural_equal(again, after)
    assert (second.verdict, second.code) == ("accepted", "recognised")


@pytest.mark.slow
def test_heads_of_the_template_are_its():
    _, (decision,) = recomposed(widened(64))
    assert "in kernels of its parts" not in decision.sentence
    assert decision.verdict == "accepted"


@pytest.mark.slow
def test_float32_keeps_its_precision():
    mod = widened(600, "float32")
    after, (decision,) = recomposed(mod)
    tvm.ir.assert_structural_equal(after, mod)
    assert (decision.verdict, decision.code) == ("refused", "no_template")


@pytest.mark.slow
def test_it_computes_the_same():
    """Weights are rounded once: their roundings add up to a unit of the values at most."""
    mod = widened(WIDE, tokens=67)
    after, _ = recomposed(mod)
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal((1, 1, 67, WIDE)).astype("float16") for _ in range(3))
    executable = tvm.compile(after, "llvm")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, (q, k, v)))
    wide = [x.astype("float64") for x in (q, k, v)]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) / np.sqrt(WIDE)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    exact = weights @ wide[2]
    unit = 2.0**-11
    # Of float32: 512 terms of a score, whose exponential is as far off relatively.
    score_error = WIDE * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]).swapaxes(-1, -2)).max()
    size = weights @ np.abs(wide[2])
    allowed = size * (2 * unit + 2 * score_error / np.sqrt(WIDE) + 67 * 2.0**-23)
    allowed += 67 * 2.0**-25 * np.abs(wide[2]).max()  # subnormal weights
    assert (np.abs(found.numpy() - exact) <= allowed).all()
