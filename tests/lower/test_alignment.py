"""What LLVM is told about the memory of parameters on a CPU."""

import re

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.pipeline import tir_pipeline  # noqa: F401  (registers the pipeline)

TARGET = parse("cpu:x86-64-v3").tvm_target()


@T.prim_func(s_tir=True)
def twice(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    with T.sblock("root"):
        own = T.sblock_alloc_buffer((64,), "float32")
        for i in T.vectorized(64):
            own[i] = x[63 - i] + x[i]
        for i in T.vectorized(64):
            y[i] = own[i] + x[i]


def alignments(pipeline):
    """List the alignments of vector accesses, and what is assumed of pointers."""
    func = twice.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    ir = tvm.tirx.build(tvm.IRModule({"main": func}), TARGET, pipeline=pipeline)
    source = ir.inspect_source("ll")
    vectors = re.findall(r"(?:load|store) <\d+ x float>.* align (\d+)", source)
    assumed = re.findall(r'"align"\(ptr %[\w.]+, i64 (\d+)\)', source)
    params = re.findall(r"noalias[^,)]* align (\d+)", source)
    return {*map(int, vectors)}, {*map(int, (*assumed, *params))}


def test_vectors_of_parameters_are_aligned_to_an_element():
    vectors, assumed = alignments("tvm_fusion")
    assert 4 in vectors
    assert assumed <= {4}


def test_tvm_promises_more():
    """When this fails, `lower.alignment` can go."""
    vectors, assumed = alignments("s_tir")
    assert 4 not in vectors
    assert 64 in assumed


def test_a_kernel_takes_memory_that_begins_anywhere():
    func = twice.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    built = tvm.tirx.build(
        tvm.IRModule({"main": func}), parse("cpu").tvm_target(), pipeline="tvm_fusion"
    )
    for start in range(17):
        x = np.arange(start + 64, dtype="float32")[start:]
        y = np.zeros(start + 64, "float32")[start:]
        built["main"](x, y)
        np.testing.assert_array_equal(y, x[::-1] + 2 * x)
