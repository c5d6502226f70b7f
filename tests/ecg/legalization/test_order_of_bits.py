"""Numbers compared as integers: code that CUDA has for vectors of them, too."""

from nvcc import cuda_source
from tvm import tirx
from tvm.script import tirx as T

from tvm_fusion.ecg.legalization.operators.extrema import ordered


def test_tvm_writes_the_complement_of_a_vector_as_one_operator():
    """Fails where TVM writes it lane by lane: then ``ordered`` may use ``bitwise_not``."""

    @T.prim_func(s_tir=True)
    def complement(a: T.Buffer((64, 2), "int32"), out: T.Buffer((64, 2), "int32")):
        for i in T.thread_binding(64, "threadIdx.x"):
            for lane in T.vectorized(2):
                out[i, lane] = T.bitwise_not(a[i, lane])

    assert "~*(int2*)" in cuda_source(complement).replace(" ", "").replace("(*", "*")


def test_vectors_are_ordered_without_complements():
    @T.prim_func(s_tir=True)
    def places(a: T.Buffer((64, 2), "float32"), out: T.Buffer((64, 2), "int32")):
        for i in T.thread_binding(64, "threadIdx.x"):
            for lane in T.vectorized(2):
                out[i, lane] = ordered(a[i, lane], tirx.max_value)

    text = cuda_source(places)
    assert "~" not in text[text.rindex("__global__") :]
