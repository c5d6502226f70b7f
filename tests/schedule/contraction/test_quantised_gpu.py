"""Products of few rows with weights that are small integers, and with weights along the terms."""

import numpy as np
import pytest
from group_kernels import CPU, CUDA, close, compiles_for_cuda, extents, group, kernel, run, serial
from group_kernels import tensor as tensor_of
from tvm import ir, relax, tirx

from tvm_fusion.ecg.intrinsic import call_name
from tvm_fusion.schedule.contraction.template import Contraction
from tvm_fusion.schedule.gpu import check_gpu
from tvm_fusion.schedule.loops import find

op = relax.op
TEMPLATE = Contraction(True)
GROUP = 16


def const(value, dtype):
    return relax.const(value, dtype)


def nibbles(emit, q, axis):
    """Two numbers of each byte, side by side along an axis."""
    low = emit(op.bitwise_and(q, const(15, str(q.ty.dtype.dtype))))
    high = emit(op.right_shift(q, const(4, str(q.ty.dtype.dtype))))
    parts = [emit(op.expand_dims(x, axis + 1)) for x in (low, high)]
    rows, columns = (int(d) for d in q.ty.shape)
    wide = (rows, 2 * columns) if axis else (2 * rows, columns)
    return emit(op.reshape(emit(op.concat(parts, axis + 1)), wide))


def unpacked(q, axis):
    shape = list(q.shape)
    shape[axis] *= 2
    return np.stack([q & 15, q >> 4], axis + 1).reshape(shape).astype("float64")


def int4(rows, terms, columns, axis, is_transposed, dtype="float16", zero=8.0):
    """A product with groups of terms that share a scale.

    Parameters
    ----------
    axis : int
        Of the weights, along which bytes hold two.
    is_transposed : bool
        Whether the weights lie along the terms.
    """
    shape = [columns, terms] if is_transposed else [terms, columns]
    along = 1 if is_transposed else 0
    packed, scales = list(shape), list(shape)
    packed[axis] //= 2
    scales[along] //= GROUP
    split = [*shape[:along], shape[along] // GROUP, GROUP, *shape[along + 1 :]]
    given = [
        tensor_of("x", rows, terms, dtype=dtype),
        tensor_of("q", *packed, dtype="uint8"),
        tensor_of("s", *scales, dtype=dtype),
    ]

    def body(emit, x, q, s):
        w = emit(op.subtract(emit(op.astype(nibbles(emit, q, axis), dtype)), const(zero, dtype)))
        w = emit(op.multiply(emit(op.reshape(w, split)), emit(op.expand_dims(s, along + 1))))
        w = emit(op.reshape(w, shape))
        return op.matmul(x, emit(op.permute_dims(w)) if is_transposed else w, "float32")

    def reference(x, q, s):
        w = (unpacked(q, axis) - zero) * np.repeat(s, GROUP, along)
        return [x @ (w.T if is_transposed else w)]

    return given, body, reference


def int8(rows, terms, columns, is_transposed, dtype="float16"):
    shape = (columns, terms) if is_transposed else (terms, columns)
    given = [
        tensor_of("x", rows, terms, dtype=dtype),
        tensor_of("q", *shape, dtype="int8"),
        tensor_of("s", *((columns, 1) if is_transposed else (columns,)), dtype=dtype),
    ]

    def body(emit, x, q, s):
        w = emit(op.multiply(emit(op.astype(q, dtype)), s))
        return op.matmul(x, emit(op.permute_dims(w)) if is_transposed else w, "float32")

    def reference(x, q, s):
        w = q.astype("float64") * s
        return [x @ (w.T if is_transposed else w)]

    return given, body, reference


def along(rows, terms, columns, dtype="float16"):
    """Weights of half types, of which nobody can change the order."""
    given = [tensor_of("x", rows, terms, dtype=dtype), tensor_of("w", columns, terms, dtype=dtype)]

    def body(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w)), "float32")

    return given, body, lambda x, w: [x @ w.T]


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
    "most_rows": along(16, 512, 33),
    "bfloat16": along(1, 4096, 8, "bfloat16"),
    "float32": along(2, 1000, 17, "float32"),
    "short": along(1, 64, 1000),
}


def inputs_of(params):
    rng = np.random.default_rng()

    def make(param):
        dtype = str(param.ty.dtype)
        if "int" in dtype:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, extents(param.ty), dtype, endpoint=True)
        return rng.standard_normal(extents(param.ty)).astype(dtype)

    return {p.name: make(p) for p in params}


@pytest.mark.parametrize("example", (QUANTISED | ALONG).values(), ids=QUANTISED | ALONG)
def test_computes_the_product(example):
    params, body, reference = example
    members = group(params, body, CUDA)
    _, func = kernel(TEMPLATE, members, CUDA)
    assert check_gpu(func, CUDA.tvm_target()) is None
    inputs = inputs_of(params)
    wide = [x if x.dtype.kind in "iu" else x.astype("float64") for x in inputs.values()]
    close(run(serial(func), members, inputs, CPU), reference(*wide), 2e-6)


def vectors(func, name):
    """Widths of the vectors in which a parameter is read."""
    loops = [x for x in find(func.body, tirx.For) if x.kind == tirx.ForKind.VECTORIZED]
    stores = [(x, s) for x in loops for s in find(x.body, tirx.BufferStore)]
    return {int(x.extent) for x, s in stores if s.value.source.name == name}


@pytest.mark.parametrize(
    ("example", "width"),
    [
        (along(1, 1024, 129), 8),
        (along(1, 1004, 129), 4),
        (along(16, 1024, 129), 8),
        (along(1, 1024, 129, "float32"), 4),
    ],
)
def test_vectors_lie_along_the_terms(example, width):
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
