"""What the tests of FlashAttention on NVIDIA's and AMD's matrix units share."""

import numpy as np
import pytest
from group_kernels import CUDA, group, tensor
from tvm import relax

from tests.schedule.attention import attention_graphs
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
