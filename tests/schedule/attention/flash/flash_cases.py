"""What the tests of FlashAttention on NVIDIA's and AMD's matrix units share."""

import numpy as np
import pytest
from group_kernels import CUDA, group, tensor
from tvm import relax

from tests.schedule.attention import attention_graphs
from tests.schedule.attention.attention_graphs import PLAIN, attention, op, reference, tensors
from tvm_fusion.schedule.attention.flash.problem import flash_problem
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.problem.match import FLOATS

HALF = "float16"
# Of one row; in float16 another program; tested by themselves; long.
OTHERS = {"one query", "softmax written out", "causal", "many keys", "many queries"}
SHARED = sorted(set(attention_graphs.CASES) - OTHERS)


def halves(params):
    return [tensor(p.name, *p.ty.shape, dtype=HALF) for p in params]


def problem_of(params, body, spec=CUDA):
    """Group the operators for a target, and read the problem."""
    members = group(params, body, spec)
    return members, flash_problem(read_group(members, (*FLOATS, "bfloat16")))


@pytest.fixture
def numbers_are_halves(monkeypatch):
    def number(value, dtype=HALF):
        return relax.const(np.array(value, dtype))

    monkeypatch.setattr(attention_graphs, "number", number)


def float32_operands(body):
    def wrapped(emit, q, k, v, *rest):
        return body(emit, *(emit(op.astype(x, "float32")) for x in (q, k, v)), *rest)

    return wrapped


def guarded_weights(masked_weight):
    """Weights of NaN are replaced: of the row that a mask hides whole."""
    params = [*tensors(1, 2, 40, 40, 32, dtype=HALF), tensor("mask", 1, 1, 40, 40, dtype=HALF)]
    instead = relax.const(np.array(masked_weight, HALF))

    def weigh(emit, p, mask):
        return emit(op.where(emit(op.isnan(p)), instead, p))

    def hide(inputs):
        inputs["mask"][:] = np.where(inputs["mask"] > 0, 0, -np.inf)
        inputs["mask"][..., 3, :] = -np.inf

    body = attention(score=lambda emit, s, mask: emit(op.add(s, mask)), weigh=weigh)
    expected = reference(
        lambda s, mask: s + mask, lambda p, mask: np.where(np.isnan(p), masked_weight, p)
    )
    return params, body, expected, hide


def appended():
    """Keys and values that are stored, and new ones behind them."""

    def body(emit, q, keys, values, key, value):
        k, v = emit(op.concat([keys, key], 2)), emit(op.concat([values, value], 2))
        return attention()(emit, q, k, v)

    def expected(q, keys, values, key, value):
        k, v = np.concatenate([keys, key], 2), np.concatenate([values, value], 2)
        return PLAIN[1](q, k, v)

    params = [tensor("q", 1, 2, 40, 64, dtype=HALF)]
    params += [tensor(name, 1, 2, 50, 64, dtype=HALF) for name in ("keys", "values")]
    params += [tensor(name, 1, 2, 40, 64, dtype=HALF) for name in ("key", "value")]
    return params, body, expected
