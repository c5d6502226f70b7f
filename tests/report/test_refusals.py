"""Every refusal code: a graph that provokes it, and the sentence that comes out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from group_kernels import CPU, CUDA, group, tensor
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.core.template import Refusal, Template
from tvm_fusion.program.stage import Unstructured
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.norm_gemm_template import NormGemm
from tvm_fusion.schedule.contraction.template_cpu import CpuContraction
from tvm_fusion.schedule.contraction.template_gpu import GpuContraction
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.rows.template import Rows
from tvm_fusion.schedule.scan.template import PrefixSum
from tvm_fusion.schedule.single.template import Single

op = relax.op
N = tirx.Var("n", "int64")


@dataclass(frozen=True)
class Case:
    """A group that a template refuses, and what its sentence must say."""

    code: str
    template: Template
    params: list
    body: Callable
    says: tuple[str, ...]
    on_gpu: bool = field(default=False)

    @property
    def spec(self):
        return CUDA if self.on_gpu else CPU


def norm_then(last, axis=-1):
    def body(emit, x, w):
        return last(emit, emit(op.nn.softmax(x, axis)), w)

    return body


def product(emit, rows, w):
    return op.matmul(rows, w)


def chain(times, function):
    def body(emit, x):
        for _ in range(times):
            x = emit(function(x))
        return x

    return body


def doubling(emit, x):
    for _ in range(11):
        x = emit(op.multiply(op.add(x, x), x))
    return x


def attention(score=None, weigh=None, norm=None, second=None):
    def body(emit, q, k, v):
        s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
        s = emit(score(s)) if score else s
        p = norm(emit, s) if norm else emit(op.nn.softmax(s, -1))
        p = emit(weigh(p)) if weigh else p
        return second(emit, p, v) if second else op.matmul(p, v)

    return body


def two_maxima(emit, s):
    shifted = emit(op.subtract(s, emit(op.max(s, -1, True))))
    return emit(op.divide(shifted, emit(op.max(shifted, -1, True))))


def softmax_of_both_axes(emit, s):
    exponentials = emit(op.exp(emit(op.subtract(s, emit(op.max(s, [1, 2], True))))))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, [1, 2], True))))


def shifted_rows(emit, s):
    """Each row's exponentials are summed over the rows of another order."""
    other = emit(op.flip(s, 1))
    exponentials = emit(op.exp(emit(op.subtract(s, emit(op.max(other, -1, True))))))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, -1, True))))


def scores_and_more(emit, q, k, v):
    s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
    return [op.matmul(emit(op.nn.softmax(s, -1)), v), op.nn.relu(s)]


QKV = [tensor("q", 2, 9, 8), tensor("k", 2, 7, 8), tensor("v", 2, 7, 6)]
QKV64 = [tensor(n, 2, 7, 8, dtype="float64") for n in "qkv"]
LARGE = [tensor("q", 2, 9, 600), tensor("k", 2, 7, 600), tensor("v", 2, 7, 6)]
SYMBOLIC = [tensor("q", 2, 9, N), tensor("k", 2, 7, N), tensor("v", 2, 7, 6)]
XW = [tensor("x", 33, 64), tensor("w", 64, 48)]


def both_sides(emit, x, w):
    rows = emit(op.nn.softmax(x, -1))
    return op.matmul(rows, emit(op.nn.softmax(w, -1)))


def centred(emit, x, w):
    mean = emit(op.mean(x, [-1], keepdims=True))
    return op.matmul(emit(op.subtract(x, mean)), w)


def rms(emit, x, g, w):
    return op.matmul(emit(op.nn.rms_norm(x, g, [-1], 1e-5)), w, "float32")


def two_results(emit, x, w):
    return [op.matmul(x, w), op.exp(x)]


def summed_prefix(emit, x, w):
    return op.matmul(emit(op.nn.relu(x)), w)


CASES = [
    Case("not_mine", Elementwise(False), XW, product, ("matmul is a reduction",)),
    Case(
        "one_operator_only",
        Single(False),
        [tensor("x", 4)],
        chain(2, op.exp),
        ("one operator alone",),
    ),
    Case(
        "unstructured",
        Elementwise(False),
        [tensor("x", 5, 7)],
        lambda emit, x: op.cumsum(emit(op.exp(x)), 1),
        ("cumsum is not maps and reductions",),
    ),
    Case(
        "too_many_parameters",
        Elementwise(False),
        [tensor(f"x{i}", 4) for i in range(121)],
        lambda emit, *xs: [op.exp(x) for x in xs],
        ("242 parameters", "120"),
    ),
    Case(
        "large_contraction",
        Rows(),
        [tensor("x", 64, 64), tensor("w", 64, 64)],
        norm_then(product),
        ("matmul is larger or has more rows", "4 rows"),
    ),
    Case(
        "strided_contraction",
        Rows(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        norm_then(product),
        ("An operand of matmul is not contiguous along its reduction",),
    ),
    Case(
        "several_reductions",
        CpuContraction(),
        XW,
        lambda emit, x, w: op.nn.softmax(emit(op.matmul(x, w)), -1),
        ("one reduction; there are 3 (matmul, softmax)",),
    ),
    Case(
        "several_reductions",
        GpuContraction(),
        XW,
        lambda emit, x, w: op.sum(emit(op.matmul(x, w)), -1),
        ("(matmul, sum)", "norm prologue"),
        True,
    ),
    Case(
        "no_norm_scale",
        GpuContraction(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        centred,
        ("matmul is not fused behind mean",),
        True,
    ),
    Case(
        "not_skinny",
        GpuContraction(),
        [tensor("x", 33, 256), tensor("g", 256), tensor("w", 256, 128)],
        rms,
        ("GEMV and skinny GEMM only", "matmul has"),
        True,
    ),
    Case(
        "epilogue_elsewhere",
        CpuContraction(),
        XW,
        lambda emit, x, w: (lambda y: op.add(y, emit(op.flip(y, 0))))(emit(op.matmul(x, w))),
        ("An element of", "result of matmul"),
    ),
    Case(
        "unrelated_output",
        CpuContraction(),
        XW,
        two_results,
        ("exp does not read what matmul computes",),
    ),
    Case("norm_not_operand_a", NormGemm(), XW, both_sides, ("just one operand of matmul",)),
    Case(
        "symbolic_k",
        NormGemm(),
        [tensor("x", 33, N), tensor("w", N, 48)],
        norm_then(product),
        ("reduction extent (K) of matmul is not known",),
    ),
    Case(
        "no_constant_weight",
        NormGemm(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        norm_then(product),
        ("matmul has a single row",),
    ),
    Case(
        "not_along_rows",
        PrefixSum(True),
        [tensor("x", 5, 7)],
        lambda emit, x: op.cumsum(x, 0),
        ("cumsum does not scan the last axis",),
        True,
    ),
    Case("several_axes", Attention(False), QKV, attention(norm=softmax_of_both_axes), ("max",)),
    Case("no_softmax", Attention(False), QKV, attention(norm=two_maxima), ("behind matmul (max)",)),
    Case(
        "second_product",
        Attention(False),
        [QKV[0], tensor("k", 2, 9, 8), tensor("v", 2, 9, 9)],
        attention(second=lambda emit, p, v: op.matmul(v, p)),
        ("matmul does not reduce the axis of the softmax",),
    ),
    Case("scores_used_elsewhere", Attention(False), QKV, scores_and_more, ("Scores",)),
    Case("unsupported_dtype", Attention(False), QKV64, attention(), ("float64", "float32")),
    Case("scores_elsewhere", Attention(False), QKV, attention(norm=shifted_rows), ("own row",)),
    Case("weights_changed", Attention(False), QKV, attention(weigh=op.square), ("not linear",)),
    Case("symbolic_head", Attention(False), SYMBOLIC, attention(), ("symbolic",)),
    Case("head_too_large", Attention(False), LARGE, attention(), ("600, at most 512",)),
    Case(
        "row_too_long",
        Rows(),
        [tensor("x", 2, 100000)],
        lambda emit, x: op.sort(x, -1),
        ("shared memory",),
        True,
    ),
    Case("expression_too_large", Elementwise(False), [tensor("x", 4)], doubling, ("2000 nodes",)),
]


def _name(case):
    return f"{case.code}-{case.template.name}" + ("-gpu" if case.on_gpu else "")


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_template_says_why_not(case):
    refusal = case.template.claim(group(case.params, case.body, case.spec), case.spec.device)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.code == case.code, refusal
    assert all(words in refusal.sentence for words in case.says), refusal.sentence
    assert refusal.sentence.endswith(".")
