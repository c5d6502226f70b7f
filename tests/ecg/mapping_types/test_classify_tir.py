"""TensorIR, written by hand where te.compute cannot say it: every class, and what hides it."""

import pytest
from tvm import te, tirx
from tvm.script import tirx as T

from tvm_fusion.ecg.mapping_types.classify import classify
from tvm_fusion.ecg.mapping_types.table import MappingType

OTO, REO, SHU = MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE
OTM, MTM = MappingType.ONE_TO_MANY, MappingType.MANY_TO_MANY


def types(func):
    result = classify(func)
    assert not result.reason, result.reason
    return {key: pair.type for key, pair in result.pairs.items()}


def computed(shape, element, *inputs):
    """One block, an element at a time; inputs are shapes, or shapes with a type."""
    typed = [i if isinstance(i[-1], str) else (i, "float32") for i in inputs]
    reads = [te.placeholder(i, dtype, f"A{n}") for n, (i, dtype) in enumerate(typed)]
    result = te.compute(shape, lambda *at: element(*reads, *at), "C")
    return te.create_prim_func([*reads, result])


N = tirx.Var("n", "int64")
INDEX = (5,), "int32"
strided = computed((5, 7), lambda A, i, j: A[i * 2 + 1, j], (10, 7))
reversed_ = computed((5, 7), lambda A, i, j: A[4 - i, j], (5, 7))
roll = computed((N,), lambda A, i: A[(i + 2) % N], (N,))
diagonal = computed((7,), lambda A, i: A[i, i], (7, 7))
split_with_div_mod = computed(
    (N, 2, 3), lambda A, i, j, k: A[(i * 6 + j * 3 + k) // 6, (j * 3 + k) % 6], (N, 6)
)
unaligned_reshape = computed(
    (42, 10), lambda A, i, j: A[(i * 10 + j) // 7, (i * 10 + j) % 7], (60, 7)
)
stencil = computed((7,), lambda A, i: A[i] + A[i + 1] + A[i + 2], (9,))
repeat = computed((21,), lambda A, i: A[i // 3], (7,))
chosen_by_data = computed(
    (9,), lambda A, M, i: te.if_then_else(M[i], A[i], A[8 - i]), (9,), ((9,), "bool")
)
gather = computed((5, 4), lambda A, index, i, j: A[index[i], j], (9, 4), INDEX)
wrapping_gather = computed(
    (5,), lambda A, k, i: te.if_then_else(k[i] < 0, A[k[i] + 9], A[k[i]]), (9,), INDEX
)
gathered_differences = computed((5,), lambda A, k, i: A[k[i] + 1] - A[k[i]], (9,), INDEX)
symmetric = computed((5, 5), lambda A, i, j: A[i, j] + A[j, i], (5, 5))
depends_on_the_extent = computed((N,), lambda A, i: A[i * 5 % N], (N,))
square_too_large = computed((2000001,), lambda A, i: A[(i * i) % 4000000], (4000000,))
fill = computed((5, 7), lambda i, j: tirx.const(1.0, "float32"))


@T.prim_func(s_tir=True)
def reversed_write(A: T.Buffer((5, 7)), C: T.Buffer((5, 7))):
    for i, j in T.grid(5, 7):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[4 - vi, vj] = A[vi, vj]


@T.prim_func(s_tir=True)
def diagonal_write(A: T.Buffer((7,)), C: T.Buffer((7, 7))):
    for i in range(7):
        with T.sblock("b"):
            vi = T.axis.spatial(7, i)
            C[vi, vi] = A[vi]


@T.prim_func(s_tir=True)
def unit_reduction(A: T.Buffer((7, 1)), C: T.Buffer((7,))):
    for i, k in T.grid(7, 1):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def blocked_bindings(A: T.Buffer((10, 7)), C: T.Buffer((7, 10))):
    for i, j, k in T.grid(3, 4, 7):
        with T.sblock("b"):
            vi = T.axis.spatial(10, i * 4 + j)
            vk = T.axis.spatial(7, k)
            T.where(i * 4 + j < 10)
            C[vk, vi] = A[vi, vk]


@T.prim_func(s_tir=True)
def let_value(A: T.Buffer((5, 7)), C: T.Buffer((7, 5))):
    for i, j in T.grid(7, 5):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            row = T.bind(vj)
            C[vi, vj] = A[row, vi] * T.float32(2)


@T.prim_func(s_tir=True)
def let_expression(A: T.Buffer((5, 7)), C: T.Buffer((7, 5))):
    for i, j in T.grid(7, 5):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vj, vi])
            T.writes(C[vi, vj])
            row = T.int32()
            C[vi, vj] = T.Let(A[row, vi] + T.float32(1), where={row: vj})


@T.prim_func(s_tir=True)
def under_attributes(A: T.Buffer((5, 7)), C: T.Buffer((5, 7))):
    with T.attr({"pragma_scope": "seq"}):
        for i, j in T.grid(5, 7):
            C[i, j] = T.exp(A[i, j])


@T.prim_func(s_tir=True)
def loop_in_block(A: T.Buffer((5, 7)), C: T.Buffer((7, 5))):
    for i in range(7):
        with T.sblock("b"):
            vi = T.axis.spatial(7, i)
            for j in range(5):
                C[vi, j] = A[j, vi]


@T.prim_func(s_tir=True)
def reduction_without_block(A: T.Buffer((5, 7)), C: T.Buffer((5,))):
    for i in range(5):
        C[i] = T.float32(0)
        for k in range(7):
            C[i] = C[i] + A[i, k]


@T.prim_func(s_tir=True)
def linear_loop(A: T.Buffer((5, 7)), C: T.Buffer((5, 7))):
    for v in range(35):
        C[v // 7, v % 7] = A[v // 7, v % 7]


@T.prim_func(s_tir=True)
def branch(A: T.Buffer((9,)), B: T.Buffer((9,)), C: T.Buffer((9,))):
    for i in range(9):
        with T.sblock("b"):
            vi = T.axis.spatial(9, i)
            if vi < 4:
                C[vi] = A[vi]
            else:
                C[vi] = B[12 - vi]


@T.prim_func(s_tir=True)
def two_nests(A: T.Buffer((4,)), B: T.Buffer((5,)), C: T.Buffer((9,))):
    for i in range(4):
        with T.sblock("a"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi]
    for i in range(5):
        with T.sblock("b"):
            vi = T.axis.spatial(5, i)
            C[vi + 4] = B[vi]


@T.prim_func(s_tir=True)
def twice(A: T.Buffer((4,)), C: T.Buffer((8,))):
    for i in range(4):
        with T.sblock("a"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi]
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(4, i)
            C[vi + 4] = A[vi]


@T.prim_func(s_tir=True)
def round_trip(A: T.Buffer((5, 7)), C: T.Buffer((5, 7))):
    B = T.sblock_alloc_buffer((7, 5))
    for i, j in T.grid(7, 5):
        with T.sblock("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
    for i, j in T.grid(5, 7):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.exp(B[vj, vi])


@T.prim_func(s_tir=True)
def softmax_sum(a: T.handle, c: T.handle):
    n = T.int64()
    A, C = T.match_buffer(a, (n, T.int64(7))), T.match_buffer(c, (n, T.int64(7)))
    S = T.sblock_alloc_buffer((n,))
    for i, k in T.grid(n, T.int64(7)):
        with T.sblock("a"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
    for i, j in T.grid(n, T.int64(7)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] / S[vi]


@T.prim_func(s_tir=True)
def in_place(A: T.Buffer((5, 7)), C: T.Buffer((5, 7))):
    for i, j in T.grid(5, 7):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = C[vi, vj] + A[vi, vj]


@T.prim_func(s_tir=True)
def offset_loops(A: T.Buffer((9,)), C: T.Buffer((9,))):
    for i in range(2, 9):
        with T.sblock("b"):
            vi = T.axis.spatial((2, 9), i)
            C[vi] = A[vi - 2]


@T.prim_func(s_tir=True)
def gather_by_way_of_a_copy(
    A: T.Buffer((9,)), index: T.Buffer((5,), "int32"), C: T.Buffer((5,)), D: T.Buffer((5,))
):
    B = T.sblock_alloc_buffer((9,))
    for i in range(9):
        with T.sblock("b"):
            vi = T.axis.spatial(9, i)
            B[vi] = A[vi]
    for i in range(5):
        with T.sblock("c"):
            vi = T.axis.spatial(5, i)
            C[vi] = B[index[vi]]
    for i in range(5):
        with T.sblock("d"):
            vi = T.axis.spatial(5, i)
            D[vi] = T.exp(C[vi])


@T.prim_func(s_tir=True)
def half_of_a_tiling(A: T.Buffer((4,)), C: T.Buffer((8,))):
    B = T.sblock_alloc_buffer((8,))
    for i in range(8):
        with T.sblock("b"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.if_then_else(vi < 4, A[vi], A[vi - 4])
    for i in range(8):
        with T.sblock("c"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.if_then_else(vi < 4, B[vi], T.float32(0))


@T.prim_func(s_tir=True)
def masked_reduction(A: T.Buffer((9,)), B: T.Buffer((5,)), C: T.Buffer((9,))):
    for i, k in T.grid(9, 5):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + T.if_then_else(vk < vi, A[vi] * B[vk], T.float32(0))


@T.prim_func(s_tir=True)
def swapped_neighbours(A: T.Buffer((10,)), C: T.Buffer((10,))):
    for i in range(5):
        with T.sblock("b"):
            vi = T.axis.spatial(5, i)
            C[vi * 2] = A[vi * 2 + 1]
            C[vi * 2 + 1] = A[vi * 2]


@T.prim_func(s_tir=True)
def two_outputs(A: T.Buffer((5, 7)), C: T.Buffer((7, 5)), D: T.Buffer((5,))):
    for i, j in T.grid(7, 5):
        with T.sblock("c"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vj, vi]
    for i, k in T.grid(5, 7):
        with T.sblock("d"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = T.float32(0)
            D[vi] = D[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def reduced_together(
    A: T.Buffer((5, 7)), B: T.Buffer((5, 7)), C: T.Buffer((5,)), D: T.Buffer((5,))
):
    for i, k in T.grid(5, 7):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
                D[vi] = T.float32(0)
            C[vi] = C[vi] + D[vi] * A[vi, vk]
            D[vi] = D[vi] + B[vi, vk]


CASES = {
    "strided": {(0, 1): OTO},
    "reversed_": {(0, 1): SHU},
    "reversed_write": {(0, 1): SHU},
    "roll": {(0, 1): SHU},
    "diagonal": {(0, 1): OTO},
    "diagonal_write": {(0, 1): OTO},
    "split_with_div_mod": {(0, 1): REO},
    "unaligned_reshape": {(0, 1): REO},
    "stencil": {(0, 1): MTM},
    "repeat": {(0, 1): OTM},
    "unit_reduction": {(0, 1): REO},
    "blocked_bindings": {(0, 1): SHU},
    "let_value": {(0, 1): SHU},
    "let_expression": {(0, 1): SHU},
    "under_attributes": {(0, 1): OTO},
    "loop_in_block": {(0, 1): SHU},
    "reduction_without_block": {(0, 1): MTM},
    "linear_loop": {(0, 1): OTO},
    "branch": {(0, 2): OTO, (1, 2): OTO},
    "two_nests": {(0, 2): OTO, (1, 2): OTO},
    "twice": {(0, 1): OTM},
    "round_trip": {(0, 1): OTO},
    "softmax_sum": {(0, 1): MTM},
    "in_place": {(0, 1): OTO, (1, 1): OTO},
    "offset_loops": {(0, 1): OTO},
    "chosen_by_data": {(0, 2): OTM, (1, 2): OTO},
    "gather": {(0, 2): OTM, (1, 2): OTM},
    "wrapping_gather": {(0, 2): OTM, (1, 2): OTO},
    "gathered_differences": {(0, 2): MTM, (1, 2): OTO},
    "gather_by_way_of_a_copy": {(0, 2): OTM, (1, 2): OTO, (0, 3): OTM, (1, 3): OTO},
    "half_of_a_tiling": {(0, 1): OTO},
    "symmetric": {(0, 1): MTM},
    "masked_reduction": {(0, 2): OTO, (1, 2): MTM},
    "swapped_neighbours": {(0, 1): SHU},
    "depends_on_the_extent": {(0, 1): MTM},
    "square_too_large": {(0, 1): MTM},
    "two_outputs": {(0, 1): SHU, (0, 2): MTM},
    "reduced_together": {(0, 2): MTM, (1, 2): MTM, (1, 3): MTM},
    "fill": {},
}


@pytest.mark.parametrize("name", CASES)
def test_pairs(name):
    assert types(globals()[name]) == CASES[name]


def test_operands_take_their_most_complex_output():
    assert classify(two_outputs).operand(0) is MTM
    assert classify(two_outputs).operand(1) is None
    assert classify(two_outputs).type is MTM
    assert classify(fill).type is OTO


def test_verdicts_say_how_they_were_found():
    (pair,) = classify(square_too_large).pairs.values()
    assert (pair.how, pair.note) == ("conservative", "too large to enumerate")
    (pair,) = classify(depends_on_the_extent).pairs.values()
    assert (pair.how, "symbolic" in pair.note) == ("conservative", True)
    (pair,) = classify(symmetric).pairs.values()
    assert (pair.how, pair.note) == ("enumeration", "")
    assert classify(masked_reduction).pairs[0, 2].how == "identity"
    (pair,) = classify(softmax_sum).pairs.values()
    assert pair.how == "reduction iterator"
