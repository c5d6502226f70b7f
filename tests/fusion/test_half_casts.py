"""Between kernels, tensors of half types stay half: they are rounded early and widened late."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion.report.planned import plan_model

op = relax.op
ROWS, WIDTH, HEADS = 96, 128, 2
TARGET = "cuda:sm_90a"


def weight(*shape, dtype="float16"):
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return relax.const(values.astype(dtype), dtype)


def planned(body):
    """Plans of a function of one half tensor."""
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float16"))
    (plan,) = plan_model(main_module([x], body(x)), TARGET).plans.values()
    return plan


def crossing(plan):
    """Types of the tensors that go from one kernel to another."""
    return {v.dtype for claim in plan.claims for v in claim.group.outputs if not v.leaves}


def norm(x):
    gamma, beta = weight(WIDTH, dtype="float32"), weight(WIDTH, dtype="float32")
    wide = op.nn.layer_norm(op.astype(x, "float32"), gamma, beta, [-1], 1e-5)
    return op.astype(wide, "float16")


def linear(x):
    product = op.matmul(x, weight(WIDTH, WIDTH), "float32")
    return op.add(product, weight(WIDTH, dtype="float32"))


def residual_behind_the_norm(x):
    x = norm(x)
    return norm(op.astype(op.add(linear(x), op.astype(x, "float32")), "float16"))


def residual_before_the_norm(x):
    x = op.astype(op.add(linear(x), op.astype(x, "float32")), "float16")
    wide = op.astype(x, "float32")
    return op.astype(
        op.add(linear(op.astype(op.nn.gelu(linear(norm(x))), "float16")), wide), "float16"
    )


@pytest.mark.parametrize("body", [residual_behind_the_norm, residual_before_the_norm])
def test_a_residual_is_widened_where_it_is_added(body):
    assert crossing(planned(body)) == {"float16"}


def test_what_is_rounded_and_widened_again_is_an_epilogue():
    """An activation joins the product in front of it, not the mean behind it, which reads it."""

    def body(x):
        rounded = op.astype(linear(x), "float16")
        active = op.astype(op.nn.silu(op.astype(rounded, "float32")), "float16")
        return op.multiply(active, op.mean(active, [0], keepdims=True))

    titles = [claim.group.title for claim in planned(body).claims]
    assert ["silu" in title for title in titles] == ["matmul" in title for title in titles]
    assert not any("mean" in title for title in titles if "silu" in title)


@pytest.mark.slow
@pytest.mark.parametrize("is_scaled", [False, True])
def test_operands_of_attention_are_rounded_where_they_are_written(is_scaled):
    """Also where the cast is behind movements and a factor."""

    def body(x):
        heads = [op.reshape(linear(x), (ROWS, HEADS, WIDTH // HEADS)) for _ in range(3)]
        q, k, v = (op.permute_dims(h, a) for h, a in zip(heads, AXES, strict=True))
        if is_scaled:
            q, k = (op.multiply(h, relax.const(0.5)) for h in (q, k))
        q, k, v = (op.astype(h, "float16") for h in (q, k, v))
        weights = op.nn.softmax(op.matmul(q, k, "float32"), -1)
        found = op.matmul(op.astype(weights, "float16"), v, "float32")
        return op.astype(op.permute_dims(found, [1, 0, 2]), "float16")

    plan = planned(body)
    assert crossing(plan) == {"float16"}
    assert "attention" in {claim.template.name for claim in plan.claims}
    assert sum(claim.launches for claim in plan.claims) <= 4


AXES = ([1, 0, 2], [1, 2, 0], [1, 0, 2])  # of queries, keys and values
