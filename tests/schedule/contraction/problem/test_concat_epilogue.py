"""Concatenations of products with other tensors, written in place on CPUs."""

import numpy as np
import pytest
from group_kernels import (
    CPU,
    SIZE,
    arrays,
    close,
    group,
    kernel,
    module,
    run,
    tensor,
    tvm_variables,
)
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.deploy.count import count
from tvm_fusion.program.stage import Axis
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.problem.epilogue.cut_axis import cuts_of

op = relax.op
n = tirx.Var("n", "int64")


def relu(x):
    return np.maximum(x, 0)


def check(params, body, reference):
    """Compare with float64: one loop nest writes the product's part, another one the others."""
    members = group(params, body)
    claim, func = kernel(CpuContraction(), members, CPU)
    assert claim.launches == 2
    target = CPU.tvm_target()
    names = {v.name for value in members.inputs for v in tvm_variables(value)}
    counted = count(module(func, members), target, dims=dict.fromkeys(names, SIZE))
    assert counted.kernels == 2
    assert counted.intermediate_bytes == 0
    inputs = arrays(params)
    wide = [x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), reference(*wide))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rows", [33, n])
def test_a_product_beside_another_tensor(first, rows):
    params = [tensor("x", rows, 65), tensor("w", 65, 17), tensor("y", rows, 7)]

    def body(emit, x, w, y):
        parts = [emit(op.nn.relu(emit(op.matmul(x, w)))), emit(op.tanh(y))]
        return op.concat(parts if first else parts[::-1], 1)

    def reference(x, w, y):
        parts = [relu(x @ w), np.tanh(y)]
        return [np.concatenate(parts if first else parts[::-1], 1)]

    check(params, body, reference)


def test_in_the_middle_of_others():
    params = [tensor("x", 20, 30), tensor("w", 30, 40), tensor("a", 5, 40), tensor("b", 3, 40)]

    def body(emit, x, w, a, b):
        return op.nn.relu(emit(op.concat([a, emit(op.matmul(x, w)), b], 0)))

    def reference(x, w, a, b):
        return [relu(np.concatenate([a, x @ w, b], 0))]

    check(params, body, reference)


def test_padding_behind_a_product():
    params = [tensor("x", 20, 30), tensor("w", 30, 40)]

    def body(emit, x, w):
        return op.nn.pad(emit(op.matmul(x, w)), [1, 2, 3, 0])

    def reference(x, w):
        return [np.pad(x @ w, ((1, 2), (3, 0)))]

    members = group(params, body)
    claim = CpuContraction().claim(members, CPU.device)
    assert isinstance(claim, Refusal)  # of two axes
    assert claim.code == "epilogue_elsewhere"


def test_where_conditions_cut():
    i, j = (Axis(tirx.Var(name, "int64"), tirx.IntImm("int64", 10)) for name in "ij")
    four = tirx.const(4, "int64")
    cases = {
        4: [i.var < four, i.var >= four, tirx.Not(four <= i.var)],
        5: [i.var <= four, i.var > four, four < i.var, four >= i.var],
    }
    for place, conditions in cases.items():
        for condition in conditions:
            value = tirx.if_then_else(condition, tirx.const(1.0), tirx.const(2.0))
            assert cuts_of(value, [i, j]) == {i.var: [place]}
    outside = tirx.if_then_else(i.var < 10, tirx.const(1.0), tirx.const(2.0))
    assert cuts_of(outside, [i, j]) == {}
