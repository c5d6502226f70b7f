"""Skinny GEMM with int4 and int8 weights, and with K-contiguous weights."""

import pytest
from group_kernels import CUDA, close, compiles_for_cuda, group, kernel, run
from quantised_products import along, inputs_of, int4, int8
from tvm import DataType, ir, tirx

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.gpu.dlight import check_gpu
from tvm_fusion.schedule.gpu.memory.streaming import STREAMED, STREAMED_BYTES

pytestmark = pytest.mark.slow_beyond(4)

TEMPLATE = GpuContraction()


QUANTISED = {
    "int4_pairs_of_terms": int4(1, 512, 128, 0, False),
    "int4_pairs_of_columns": int4(1, 512, 256, 1, False),
    "int4_along_terms": int4(1, 1024, 36, 1, True),
    "int4_along_terms_pairs_of_columns": int4(1, 512, 64, 0, True),
    "int4_few_columns": int4(1, 2048, 3, 1, True),
    "int4_rows": int4(5, 512, 129, 1, True),
    "int4_many_rows": int4(16, 512, 24, 1, True),
    "int4_rows_across": int4(7, 256, 64, 0, False),
    "int4_fraction": int4(1, 512, 128, 0, False, zero=7.5),
    "int4_bfloat16": int4(1, 512, 64, 1, True, "bfloat16"),
    "int8": int8(1, 300, 144, False),
    "int8_along_terms": int8(3, 512, 33, True),
    "int8_along_terms_bfloat16": int8(1, 1040, 8, True, "bfloat16"),
}
ALONG = {
    "half": along(1, 1000, 129),
    "rows": along(7, 1024, 12),
    "most_rows": along(8, 512, 33),
    "bfloat16": along(1, 4096, 8, "bfloat16"),
    "float32": along(2, 1000, 17, "float32"),
    "short": along(1, 64, 1000),
}


@pytest.mark.parametrize("example", (QUANTISED | ALONG).values(), ids=QUANTISED | ALONG)
def test_computes_the_product(example):
    params, body, reference = example
    members = group(params, body, CUDA)
    _, func = kernel(TEMPLATE, members, CUDA)
    assert check_gpu(func, CUDA.tvm_target()) is None
    inputs = inputs_of(params)
    wide = [x if x.dtype.kind in "iu" else x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), reference(*wide), 2e-6)


def vectors(func, name):
    """Widths of the vectors in which a parameter is read."""
    loops = [x for x in find(func.body, tirx.For) if x.kind == tirx.ForKind.VECTORIZED]
    stores = [(x, s) for x in loops for s in find(x.body, tirx.BufferStore)]
    found = {int(x.extent) for x, s in stores if s.value.source.name == name}
    calls = [x for x in find(func.body, ir.Call) if call_name(x) == "func_call"]
    read = [x.args[2].args[0] for x in calls if x.args[0].value == STREAMED]
    return found | {
        STREAMED_BYTES // DataType(str(x.ty.dtype)).itemsize for x in read if x.source.name == name
    }


@pytest.mark.parametrize(
    ("example", "width"),
    [
        (along(1, 1024, 129), 8),
        (along(1, 1004, 129), 4),
        (along(8, 1024, 129), 8),
        (along(1, 1024, 129, "float32"), 4),
    ],
)
def test_vectors_lie_along_k(example, width):
    params, body, _ = example
    _, func = kernel(TEMPLATE, group(params, body, CUDA), CUDA)
    assert vectors(func, "w") == {width}
    assert vectors(func, "x") == {width}


@pytest.mark.parametrize("example", QUANTISED.values(), ids=QUANTISED)
def test_integers_are_never_converted(example):
    params, body, _ = example
    _, func = kernel(TEMPLATE, group(params, body, CUDA), CUDA)
    assert min(vectors(func, "q")) >= 4
    casts = find(func.body, tirx.Cast)
    assert not [x for x in casts if "int" in str(x.value.ty.dtype) and "float" in str(x.ty.dtype)]
    assert any(call_name(c) == "reinterpret" for c in find(func.body, ir.Call))


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, QUANTISED | ALONG)
