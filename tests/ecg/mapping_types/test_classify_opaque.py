"""TensorIR whose accesses cannot be read is Opaque, and says truly why."""

import pytest
from tvm.script import tirx as T

from tvm_fusion.ecg.mapping_types.classify import classify
from tvm_fusion.ecg.mapping_types.table import MappingType


@T.prim_func(s_tir=True)
def scatter(A: T.Buffer((5,)), index: T.Buffer((5,), "int32"), C: T.Buffer((9,))):
    for i in range(5):
        with T.sblock("b"):
            vi = T.axis.spatial(5, i)
            C[index[vi]] = A[vi]


@T.prim_func(s_tir=True)
def scan(A: T.Buffer((9,)), C: T.Buffer((9,))):
    for i in range(9):
        with T.sblock("b"):
            vi = T.axis.spatial(9, i)
            C[vi] = T.if_then_else(vi > 0, C[vi - 1], T.float32(0)) + A[vi]


@T.prim_func(s_tir=True)
def overlapping_writes(A: T.Buffer((4, 3)), C: T.Buffer((6,))):
    for i, j in T.grid(4, 3):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi + vj] = A[vi, vj]


@T.prim_func(s_tir=True)
def overwritten(A: T.Buffer((4, 3)), C: T.Buffer((4,))):
    for i, j in T.grid(4, 3):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi] = A[vi, vj]


@T.prim_func(s_tir=True)
def external_call(A: T.Buffer((4,)), C: T.Buffer((4,))):
    with T.sblock("b"):
        T.reads()
        T.writes()
        T.evaluate(T.call_packed("sort", A.data, C.data))


@T.prim_func(s_tir=True)
def searching(A: T.Buffer((4,)), C: T.Buffer((1,), "int32")):
    with T.sblock("b"):
        C[0] = 0
        while A[C[0]] < T.float32(0):
            C[0] = C[0] + 1


@T.prim_func(s_tir=True)
def half_of_the_domain(A: T.Buffer((8,)), C: T.Buffer((8,))):
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(8, i * 2)
            C[vi] = A[vi]


@T.prim_func(s_tir=True)
def region_as_buffer(A: T.Buffer((4, 4)), C: T.Buffer((4, 4))):
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(4, i)
            row = T.match_buffer(A[vi, 0:4], (4,), offset_factor=1)
            for j in range(4):
                C[vi, j] = row[j]


@T.prim_func(s_tir=True)
def uninitialised(C: T.Buffer((4,))):
    B = T.sblock_alloc_buffer((4,))
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi]


@T.prim_func(s_tir=True)
def shifted_in_place(A: T.Buffer((5,)), C: T.Buffer((4,))):
    for i in range(4):
        C[i] = A[i]
        A[i + 1] = C[i]


@T.prim_func(s_tir=True)
def unknown_function(A: T.Buffer((9,)), C: T.Buffer((3,))):
    for i in range(3):
        with T.sblock("b"):
            vi = T.axis.spatial(3, i)
            C[vi] = A[T.Cast("int32", T.sqrt(T.Cast("float32", vi)))]


OPAQUES = [
    (scatter, "an index that depends on data"),
    (scan, "a recurrence"),
    (overlapping_writes, "not an invertible map"),
    (overwritten, "overwrites elements of C in the loop"),
    (external_call, "calls tvm_call_packed"),
    (searching, "While statement"),
    (half_of_the_domain, "reach their whole domain"),
    (region_as_buffer, "uses a region of A"),
    (uninitialised, "reads B before writing it"),
    (shifted_in_place, "overwrites its input A"),
    (unknown_function, "a function that cannot be evaluated"),
]


@pytest.mark.parametrize(("func", "reason"), OPAQUES, ids=lambda x: getattr(x, "__name__", ""))
def test_opaque(func, reason):
    result = classify(func)
    assert result.type is MappingType.OPAQUE
    assert result.operand(0) is MappingType.OPAQUE
    assert reason in result.reason
    assert result.reason.endswith(".")
