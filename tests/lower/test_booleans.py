"""Truth values in vectors: what TVM cannot do with them, and how kernels avoid it."""

import pytest
import tvm
from tvm.ir.transform import Sequential
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.lower.narrow_types import BytesForBooleans


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
    before = module(without_booleans)
    assert Sequential([BytesForBooleans()])(before)["main"].same_as(before["main"])


def test_tvm_still_cannot_compile_vectors_of_booleans_in_registers():
    """Fails when TVM can: then BytesForBooleans can go."""
    with pytest.raises(TypeError, match="dtype mismatch on BufferStore"):
        build(module(in_registers))
