"""Operands that tasks of a GEMM on a CPU compute before they multiply."""

import math

import numpy as np
import pytest
from group_kernels import CPU, check, group, kernel, tensor
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction

op = relax.op
m, k = (tirx.Var(name, "int64") for name in "mk")


def summed(emit, x, y, w):
    return op.matmul(emit(op.nn.relu(emit(op.add(x, y)))), w)


def joined(emit, x, y, w):
    return op.matmul(emit(op.concat([x, y], -1)), w)


def gated(emit, x, y, w):
    return op.matmul(w, emit(op.multiply(x, y)))


def relu(x):
    return np.maximum(x, 0)


def concat(x, y):
    return np.concatenate([x, y], -1)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(100, 300, 96), (23, 2600, 130), (m, 50, 77), (19, k, 50)]
)
def test_a_is_computed_by_tasks(rows, terms, columns):
    params = [tensor(name, rows, terms) for name in "xy"] + [tensor("w", terms, columns)]
    check(CpuContraction(), params, summed, lambda x, y, w: [relu(x + y) @ w], CPU)


@pytest.mark.parametrize("terms", [(64, 192), (37, 90), (1500, 1100)])
def test_parts_of_a_concatenation_are_cut(terms):
    params = [tensor(name, 41, own) for name, own in zip("xy", terms, strict=True)]
    params.append(tensor("w", sum(terms), 70))
    claim, func = check(CpuContraction(), params, joined, lambda x, y, w: [concat(x, y) @ w], CPU)
    assert claim.launches == 1
    assert "if_then_else" not in func.script()


def test_b_is_computed_as_it_is_copied():
    params = [tensor("x", 70, 130), tensor("y", 70, 1), tensor("w", 33, 70)]
    check(CpuContraction(), params, gated, lambda x, y, w: [w @ (x * y)], CPU)


@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:neoverse-n1"])
def test_operations_on_an_operand_count_once_for_a_task(name):
    """Not for every term: a sum before a product costs what it costs alone, at most a few times."""
    spec = parse(name)
    params = [tensor("x", 128, 256), tensor("y", 128, 256), tensor("w", 256, 256)]
    fused, _ = kernel(CpuContraction(), group(params, summed, spec), spec)
    alone = group([params[0], params[2]], lambda emit, x, w: op.matmul(x, w), spec)
    plain, _ = kernel(CpuContraction(), alone, spec)
    assert isinstance(fused, Claim)
    assert 0 < fused.flops - plain.flops <= 16 * math.prod((128, 256, 2))
