"""Truth values in vectors: what TVM cannot do with them, and how kernels avoid it."""

import pytest
import tvm
from tvm import sym, tirx
from tvm.ir.transform import Sequential
from tvm.script import tirx as T

from tvm_fusion._tvm_bool import BytesForBooleans, InlineVectorConditions
from tvm_fusion.device import parse


@T.prim_func(s_tir=True)
def in_registers(a: T.Buffer((8,), "float32"), out: T.Buffer((8,), "bool")):
    kept = T.sblock_alloc_buffer((4,), "bool")
    for i in T.vectorized(4):
        kept[i] = a[i] < T.float32(0)
    for i in T.vectorized(4):
        out[i] = kept[i]
    for i in T.vectorized(4):
        kept[i] = a[4 + i] < T.float32(0)
    for i in T.vectorized(4):
        out[4 + i] = kept[i]


@T.prim_func(s_tir=True)
def without_booleans(a: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    for i in T.vectorized(8):
        out[i] = a[i] + T.float32(1)


def module(func):
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def build(mod):
    return tvm.tirx.build(mod, target=parse("cpu").tvm_target())


def test_registers_of_booleans_compile():
    executable = build(Sequential([BytesForBooleans()])(module(in_registers)))
    a = tvm.runtime.tensor([1.0, -1, 2, -2, -3, 3, -4, 4])
    out = tvm.runtime.empty((8,), "bool")
    executable["main"](tvm.runtime.tensor(a.numpy().astype("float32")), out)
    assert out.numpy().tolist() == [False, True, False, True, True, False, True, False]


def test_other_kernels_stay():
    for rewrite in (BytesForBooleans(), InlineVectorConditions()):
        before = module(without_booleans)
        assert Sequential([rewrite])(before)["main"].same_as(before["main"])


def test_bound_comparisons_of_vectors_go_back():
    n, low = tirx.Var("n", "int32"), tirx.Var("low", "boolx4")
    buffer = tirx.decl_buffer((4,), "int64", layout=None)
    lanes = tirx.Ramp(n, 1, 4)
    value = tirx.Cast("int64x4", low)
    stores = [
        tirx.Bind(low, lanes < tirx.Broadcast(tirx.IntImm("int32", 3), 4)),
        tirx.BufferStore(buffer, value, [tirx.Ramp(0, 1, 4)]),
    ]
    func = tirx.PrimFunc([n, buffer], tirx.SeqStmt(stores))
    body = Sequential([InlineVectorConditions()])(module(func))["main"].body
    assert isinstance(body, tirx.BufferStore)
    assert not any(v.same_as(low) for v in tirx.analysis.undefined_vars(body, []))


def test_tvm_still_cannot_compile_vectors_of_booleans_in_registers():
    """Fails when TVM can: then BytesForBooleans can go."""
    with pytest.raises(TypeError, match="dtype mismatch on BufferStore"):
        build(module(in_registers))


def test_tvm_still_cannot_bind_comparisons_of_vectors():
    """Fails when TVM can: then InlineVectorConditions can go."""
    lanes = tirx.Ramp(tirx.Var("n", "int32"), 1, 4)
    with pytest.raises(ValueError, match="IntImm can only take scalar"):
        sym.Analyzer().bind(tirx.Var("v", "boolx4"), lanes < tirx.Broadcast(lanes.base * 0 + 3, 4))
