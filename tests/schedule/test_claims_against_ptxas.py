"""Registers and shared memory that templates without matrix instructions claim, against ptxas."""

import pytest
from group_kernels import CUDA, group, kernel, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax

from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.rows.template import Rows
from tvm_fusion.schedule.scan.template import PrefixSum
from tvm_fusion.schedule.sort.template import RankSort

op = relax.op


def tensors(names, *shape, dtype="float32"):
    return [tensor(name, *shape, dtype=dtype) for name in names]


def gelu(emit, x, b):
    return op.nn.gelu(emit(op.add(x, b)))


def transposed_sum(emit, x, y):
    return op.add(emit(op.permute_dims(x, [1, 0])), y)


def row_sums(emit, x):
    return op.cumsum(x, axis=-1)


def attend(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(scores)), v)


def norm(emit, x, gamma, beta):
    return op.nn.layer_norm(x, gamma, beta, axes=[-1])


def of_rows(rows, elements, dtype="float32"):
    return [
        tensor("x", rows, elements, dtype=dtype),
        *tensors(("gamma", "beta"), elements, dtype=dtype),
    ]


def heads(depth, count=3):
    return tensors("qkv", 2, count, 100, depth)


WIDE = (4096, 4096)
CASES = {
    "vectors": (Elementwise, tensors("x", *WIDE), lambda emit, x: op.nn.relu(x)),
    "halves": (Elementwise, tensors("xy", *WIDE, dtype="float16"), lambda emit, x, y: op.add(x, y)),
    "bias": (Elementwise, [tensor("x", *WIDE), tensor("b", WIDE[1])], gelu),
    "points": (Elementwise, tensors("xyz", 77, 35), lambda e, x, y, z: x * y + z),
    "transpose": (Elementwise, tensors("xy", *WIDE), transposed_sum),
    "halves_of_odd_rows": (
        Elementwise,
        tensors("x", 1023, 2049, dtype="float16"),
        lambda emit, x: op.permute_dims(x, [1, 0]),
    ),
    "long_rows": (PrefixSum, tensors("x", 64, 4096, dtype="float16"), row_sums),
    "masked_rows": (PrefixSum, tensors("x", 64, 5001), row_sums),
    "short_rows": (PrefixSum, tensors("x", 64, 100), row_sums),
    "heads_8": (Attention, heads(8), attend),
    "heads_32": (Attention, heads(32), attend),
    "heads_64": (Attention, heads(64), attend),
    "heads_128": (Attention, heads(128), attend),
    "many_heads_32": (Attention, heads(32, 100), attend),
    "many_heads_64": (Attention, heads(64, 100), attend),
    "many_heads_80": (Attention, heads(80, 100), attend),
    "norm": (Rows, of_rows(4096, 768), norm),
    "norm_of_halves": (Rows, of_rows(8192, 4096, "float16"), norm),
    "norm_of_odd_rows": (Rows, of_rows(300, 1709, "float16"), norm),
    "sorted": (RankSort, tensors("x", 8192, dtype="int64"), lambda emit, x: op.argsort(x)),
    "first": (RankSort, tensors("x", 1024, 64, dtype="int32"), lambda emit, x: op.topk(x, 8)),
    "long_integers": (PrefixSum, tensors("x", 64, 4096, dtype="int64"), row_sums),
}


@pytest.fixture(scope="module")
def compiled():
    """Each case's claim and machine code."""
    claims, functions = {}, {}
    for name, (template, params, body) in CASES.items():
        members = group(params, body, CUDA)
        made = template() if template is Rows else template(is_gpu=True)
        claims[name], functions[name] = kernel(made, members, CUDA)
    codes = machine_code(functions)
    return {name: (claims[name], codes[name]) for name in CASES}


@needs_nvcc
@pytest.mark.cuda_toolchain
@pytest.mark.parametrize("name", CASES)
def test_within_a_quarter_of_ptxas(name, compiled):
    """Shared memory is claimed with the last row's padding, and without words of a few warps."""
    claim, code = compiled[name]
    assert code.spilled_bytes == 0
    assert abs(claim.registers - code.registers) <= code.registers / 4
    if claim.template.name == "rows":
        assert code.shared_bytes - claim.shared_bytes < 256
    else:
        assert 0 <= claim.shared_bytes - code.shared_bytes <= code.shared_bytes / 16
