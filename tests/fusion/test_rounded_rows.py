"""Rows that are rounded in blocks: magnitudes are no tensor between kernels."""

import numpy as np
from relax_modules import main_module
from tvm import relax

from tvm_fusion.report.planned import plan_model

op = relax.op
ROWS, WIDTH, BLOCK = 24, 256, 32


def rounded(emit, x):
    """The magnitudes of a product's results scale the results themselves."""
    weight = np.random.default_rng().standard_normal((WIDTH, WIDTH)).astype("float32")
    active = emit(op.nn.silu(emit(op.matmul(x, relax.const(weight)))))
    blocks = emit(op.reshape(active, [ROWS, WIDTH // BLOCK, BLOCK]))
    largest = emit(op.max(emit(op.abs(blocks)), -1, keepdims=True))
    steps = emit(op.divide(blocks, emit(op.maximum(largest, relax.const(1e-30, "float32")))))
    numbers = emit(op.round(emit(op.multiply(steps, relax.const(127.0, "float32")))))
    return op.astype(numbers, "int8")


def test_magnitudes_are_computed_by_what_reads_them():
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float32"))
    model = main_module([x], rounded)
    plans = plan_model(model, "cpu:x86-64-v3", {"rewrite": "none"}).plans
    (plan,) = plans.values()
    groups = [[o.title for o in group.members] for group in plan.groups]
    (product,) = (titles for titles in groups if "matmul" in titles)
    assert "silu" in product
    assert "abs" not in product
    assert sum(v.bytes for g in plan.groups for v in g.outputs if not v.leaves) == ROWS * WIDTH * 4
