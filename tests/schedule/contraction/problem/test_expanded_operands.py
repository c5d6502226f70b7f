"""Scales and shifts of channels in front of a product are computed inside of it."""

import numpy as np
import pytest
from group_kernels import CPU, CUDA, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.fusion.estimate import Estimator

op = relax.op
TYPES = {CPU: "float32", CUDA: "float16"}
SPECS = pytest.mark.parametrize("spec", TYPES, ids=["cpu", "cuda"])
ROWS, K, N = 128, 256, 64


def kernels(spec, *params, body):
    with spec.tvm_target():
        return Estimator(spec.tvm_target()).module(main_module(params, body)).kernels


def drawn(dtype, *shape):
    return relax.const(np.random.default_rng().standard_normal(shape).astype(dtype))


@SPECS
def test_an_affine_map_and_its_activation(spec):
    dtype = TYPES[spec]

    def body(emit, x):
        y = emit(op.add(emit(op.multiply(x, drawn(dtype, K))), drawn(dtype, K)))
        return op.matmul(emit(op.nn.relu(y)), drawn(dtype, K, N))

    assert kernels(spec, tensor("x", ROWS, K, dtype=dtype), body=body) == 1


def test_gates_between_conversions():
    """As squeeze-and-excitation of half types is imported: products in float32, rounded once."""

    def body(emit, x, gates):
        wide = [emit(op.astype(y, "float32")) for y in (x, gates)]
        y = emit(op.astype(emit(op.multiply(*wide)), "float16"))
        return op.matmul(y, drawn("float16", K, N))

    given = [tensor(n, r, K, dtype="float16") for n, r in (("x", ROWS), ("gates", 1))]
    assert kernels(CUDA, *given, body=body) == 1


@SPECS
def test_what_others_read_is_stored(spec):
    dtype = TYPES[spec]

    def body(emit, x):
        y = emit(op.multiply(x, drawn(dtype, K)))
        return [y, op.matmul(y, drawn(dtype, K, N))]

    assert kernels(spec, tensor("x", ROWS, K, dtype=dtype), body=body) == 2
