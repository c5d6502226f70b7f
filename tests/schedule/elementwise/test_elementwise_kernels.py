"""Maps in one launch: right on both targets, written once, in vectors where that can be."""

import re
from collections import Counter

import numpy as np
import pytest
import tvm
from device_code import unguarded_barriers
from group_kernels import (
    CPU,
    CUDA,
    check,
    compiles_for_cuda,
    cuda_kernel,
    group,
    kernel,
    tensor,
)
from nvcc import machine_code, needs_nvcc
from tvm import ir, relax, tirx

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.tir.loops import find, index, simplified, substitute
from tvm_fusion.deploy.toolchain import rocm, toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.elementwise.gpu.config import OPERATIONS_A_STRIDED_LOAD
from tvm_fusion.schedule.elementwise.template import Elementwise

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
SPECS = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])


def template(spec):
    return Elementwise(spec is CUDA)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _diamond(emit, x):
    for _ in range(11):
        x = emit(op.add(x, x))
    return op.add(x, x)


CASES = {
    "bias and activation": (
        [tensor("x", 7, 129), tensor("b", 129)],
        lambda emit, x, b: op.nn.relu(emit(op.add(x, b))),
        lambda x, b: [np.maximum(x + b, 0)],
    ),
    "per channel": (
        [tensor("x", 2, 33, 7, 7), tensor("s", 33, 1, 1)],
        lambda emit, x, s: op.multiply(x, s),
        lambda x, s: [x * s],
    ),
    "siblings": (
        [tensor("x", 7, 1001)],
        lambda emit, x: [op.exp(x), op.tanh(x)],
        lambda x: [np.exp(x), np.tanh(x)],
    ),
    "symbolic siblings": (
        [tensor("x", n, 129)],
        lambda emit, x: [op.exp(x), op.sigmoid(x)],
        lambda x: [np.exp(x), sigmoid(x)],
    ),
    "symbolic rows of symbolic length": (
        [tensor("x", n, m), tensor("y", m)],
        lambda emit, x, y: op.add(emit(op.exp(x)), y),
        lambda x, y: [np.exp(x) + y],
    ),
    "halves of a split": (
        [tensor("x", 64, 96)],
        lambda emit, x: (lambda s: [op.exp(s[0]), op.nn.relu(s[1])])(emit(op.split(x, 2, 1))),
        lambda x: [np.exp(x[:, :48]), np.maximum(x[:, 48:], 0)],
    ),
    "unequal extents": (
        [tensor("x", 3, 5), tensor("y", 1000)],
        lambda emit, x, y: [op.exp(x), op.tanh(y)],
        lambda x, y: [np.exp(x), np.tanh(y)],
    ),
    "unequal symbolic extents": (
        [tensor("x", n, 5), tensor("y", n, 700)],
        lambda emit, x, y: [op.exp(x), op.tanh(y)],
        lambda x, y: [np.exp(x), np.tanh(y)],
    ),
    "value used inside and outside": (
        [tensor("x", 37, 96), tensor("r", 37, 96)],
        lambda emit, x, r: (lambda s: [s, op.nn.relu(s)])(emit(op.add(x, r))),
        lambda x, r: [x + r, np.maximum(x + r, 0)],
    ),
    "heads": (
        [tensor("x", 2, 37, 12, 16)],
        lambda emit, x: op.permute_dims(x, [0, 2, 3, 1]),
        lambda x: [x.transpose(0, 2, 3, 1)],
    ),
    "reversed axes": (
        [tensor("x", 33, 17, 41)],
        lambda emit, x: op.exp(emit(op.permute_dims(x))),
        lambda x: [np.exp(x.transpose())],
    ),
    "symbolic transpose": (
        [tensor("x", n, 130, 64)],
        lambda emit, x: op.permute_dims(x, [0, 2, 1]),
        lambda x: [x.transpose(0, 2, 1)],
    ),
    "transpose of symbolic sides": (
        [tensor("x", n, m)],
        lambda emit, x: op.permute_dims(x),
        lambda x: [x.transpose()],
    ),
    "concatenation": (
        [tensor("x", 33, 5), tensor("y", 33, 7)],
        lambda emit, x, y: op.nn.relu(emit(op.concat([x, y], 1))),
        lambda x, y: [np.maximum(np.concatenate([x, y], 1), 0)],
    ),
    "padding": (
        [tensor("x", 2, 3, 5, 6)],
        lambda emit, x: op.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 1]),
        lambda x: [np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 1)))],
    ),
    "strided slice": (
        [tensor("x", 9, 31)],
        lambda emit, x: op.exp(emit(op.strided_slice(x, [1], [2], [30], [3]))),
        lambda x: [np.exp(x[:, 2:30:3])],
    ),
    "gather": (
        [tensor("t", 50, 64), tensor("i", 7, dtype="int64")],
        lambda emit, t, i: op.nn.relu(emit(op.take(t, i, 0))),
        lambda t, i: [np.maximum(t[i], 0)],
    ),
    "selection": (
        [tensor("x", 11, 13), tensor("y", 13)],
        lambda emit, x, y: op.where(emit(op.greater(x, y)), x, y),
        lambda x, y: [np.where(x > y, x, y)],
    ),
    "scalar": ([tensor("x")], lambda emit, x: op.exp(x), lambda x: [np.exp(x)]),
    "compound extents": (
        [tensor("x", n * 2, 3)],
        lambda emit, x: op.exp(x),
        lambda x: [np.exp(x)],
    ),
    "wide": (
        [tensor("x", 512, 1024), tensor("b", 1024)],
        lambda emit, x, b: op.nn.relu(emit(op.add(x, b))),
        lambda x, b: [np.maximum(x + b, 0)],
    ),
    "rows that are no whole vectors": (
        [tensor("x", 129, 1001, dtype="float16"), tensor("b", 1001, dtype="float16")],
        lambda emit, x, b: op.nn.relu(emit(op.add(x, b))),
        lambda x, b: [np.maximum(x + b, 0).astype("float16")],
    ),
    "a long row and its last elements": (
        [tensor("x", 70003)], lambda emit, x: op.nn.relu(x), lambda x: [np.maximum(x, 0)],
    ),
    "symbolic rows that are no whole vectors": (
        [tensor("x", n, 129), tensor("y", n, 1)],
        lambda emit, x, y: op.add(x, y),
        lambda x, y: [x + y],
    ),
    "wider results": (
        [tensor("x", 127, 1000, dtype="float16")],
        lambda emit, x: [op.astype(x, "float32"), op.nn.relu(x)],
        lambda x: [x, np.maximum(x, 0)],
    ),
    "narrower results": (
        [tensor("x", 129, 1001), tensor("y", 129, 1)],
        lambda emit, x, y: op.astype(emit(op.maximum(x, y)), "float16"),
        lambda x, y: [np.maximum(x, y).astype("float16")],
    ),
    "concatenated vectors": (
        [tensor("x", 500, 64), tensor("y", 500, 24), tensor("z", 500, 112)],
        lambda emit, x, y, z: op.add(emit(op.concat([x, y, z], 1)), emit(op.concat([z, y, x], 1))),
        lambda x, y, z: [np.concatenate([x, y, z], 1) + np.concatenate([z, y, x], 1)],
    ),
    "concatenation across vectors": (
        [tensor("x", 500, 61), tensor("y", 500, 99)],
        lambda emit, x, y: op.nn.relu(emit(op.concat([x, y], 1))),
        lambda x, y: [np.maximum(np.concatenate([x, y], 1), 0)],
    ),
    "shifted slice": (
        [tensor("x", 300, 259), tensor("y", 300, 256)],
        lambda emit, x, y: op.add(emit(op.strided_slice(x, [1], [3], [259])), y),
        lambda x, y: [x[:, 3:] + y],
    ),
    "padded rows": (
        [tensor("x", 257, 272)],
        lambda emit, x: op.nn.pad(x, [0, 0, 16, 32]),
        lambda x: [np.pad(x, ((0, 0), (16, 32)))],
    ),
    "tiles that overhang": (
        [tensor("x", 129, 127, dtype="float16")],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), "float32"),
        lambda x: [x.transpose()],
    ),
    "tiles of narrower results": (
        [tensor("x", 2, 136, 1000)],
        lambda emit, x: op.nn.relu(emit(op.astype(emit(op.permute_dims(x, [0, 2, 1])), "float16"))),
        lambda x: [np.maximum(x.transpose(0, 2, 1), 0).astype("float16")],
    ),
    "tiles in groups, some beyond the end": (
        [tensor("x", 70, 2476, dtype="float16")],
        lambda emit, x: op.permute_dims(x),
        lambda x: [x.T],
    ),
    "tiles and vectors": (
        [tensor("x", 136, 200, dtype="float16"), tensor("y", 200, 136, dtype="float16"),
         tensor("b", 136, dtype="float16"), tensor("c", 200, 1, dtype="float16")],
        lambda emit, x, y, b, c: op.maximum(
            emit(op.maximum(emit(op.permute_dims(x)), y)), emit(op.maximum(b, c))),
        lambda x, y, b, c: [np.maximum(np.maximum(x.T, y), np.maximum(b, c))],
    ),
    "tiles of two sources of unequal types": (
        [tensor("x", 68, 100, dtype="float16"), tensor("y", 68, 100)],
        lambda emit, x, y: [
            op.maximum(emit(op.astype(emit(op.permute_dims(x)), "float32")),
                       emit(op.permute_dims(y))),
            op.nn.relu(emit(op.permute_dims(y)))],
        lambda x, y: [np.maximum(x.T, y.T), np.maximum(y.T, 0)],
    ),
    "an unaligned transposed slice": (
        [tensor("x", 130, 200, dtype="float16")],
        lambda emit, x: op.permute_dims(emit(op.strided_slice(x, [0, 1], [3, 1], [131, 193]))),
        lambda x: [x[3:131, 1:193].T],
    ),
    "unaligned rows of results": (
        [tensor("x", 301, 132, dtype="float16")],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), "float32"),
        lambda x: [x.T],
    ),
    "unaligned rows on both sides": (
        [tensor("x", 3, 421, 131, dtype="bfloat16"), tensor("y", 3, 131, 421, dtype="bfloat16"),
         tensor("b", 421, dtype="bfloat16")],
        lambda emit, x, y, b: op.maximum(
            emit(op.maximum(emit(op.permute_dims(x, [0, 2, 1])), y)), b),
        lambda x, y, b: [np.maximum(np.maximum(x.transpose(0, 2, 1), y), b)],
    ),
    "unaligned rows of the source": (
        [tensor("x", 512, 131, dtype="float16")],
        lambda emit, x: op.nn.relu(emit(op.permute_dims(x))),
        lambda x: [np.maximum(x.T, 0)],
    ),
    "shifted rows of two results": (
        [tensor("x", 333, 70), tensor("y", 70, 1)],
        lambda emit, x, y: (lambda s: [s, op.astype(s, "float16")])(
            emit(op.maximum(emit(op.permute_dims(x)), y))),
        lambda x, y: [np.maximum(x.T, y), np.maximum(x.T, y).astype("float16")],
    ),
    "a shifted part of rows": (
        [tensor("x", 300, 140, dtype="float16")],
        lambda emit, x: op.permute_dims(emit(op.strided_slice(x, [0, 1], [1, 3], [290, 132]))),
        lambda x: [x[1:290, 3:132].T],
    ),
    "a column": (
        [tensor("x", 127, 1), tensor("y", 1, 127)],
        lambda emit, x, y: op.add(emit(op.permute_dims(x)), y),
        lambda x, y: [x.T + y],
    ),
    "narrow and transposed": (
        [tensor("x", 3, 1000)], lambda emit, x: op.permute_dims(x), lambda x: [x.T],
    ),
    "channels last": (
        [tensor("x", 3, 3, 71, 73)],
        lambda emit, x: op.permute_dims(x, [0, 2, 3, 1]),
        lambda x: [x.transpose(0, 2, 3, 1)],
    ),
    "many images' channels last": (
        [tensor("x", 16, 3, 40, 40, dtype="float16")],
        lambda emit, x: op.permute_dims(x, [0, 2, 3, 1]),
        lambda x: [x.transpose(0, 2, 3, 1)],
    ),
    "tiles of few columns": (
        [tensor("x", 5, 24, 400, dtype="float16")],
        lambda emit, x: op.permute_dims(x, [0, 2, 1]),
        lambda x: [x.transpose(0, 2, 1)],
    ),
    "tiles of few rows": (
        [tensor("x", 3, 530, 16, dtype="float16"), tensor("y", 3, 530, 16)],
        lambda emit, x, y: [op.permute_dims(x, [0, 2, 1]), op.permute_dims(y, [0, 2, 1])],
        lambda x, y: [x.transpose(0, 2, 1), y.transpose(0, 2, 1)],
    ),
    "tiles of hardly more rows": (
        [tensor("x", 3, 530, 30, dtype="bfloat16")],
        lambda emit, x: op.astype(emit(op.permute_dims(x, [0, 2, 1])), "float32"),
        lambda x: [x.transpose(0, 2, 1)],
    ),
    "transposed next to something else": (
        [tensor("x", 40, 50), tensor("y", 70)],
        lambda emit, x, y: [op.permute_dims(x), op.exp(y)],
        lambda x, y: [x.T, np.exp(y)],
    ),
    "two transposes of unequal extents": (
        [tensor("q", 2, 70, 8, 33), tensor("k", 2, 70, 2, 33, dtype="float16")],
        lambda emit, q, k: [op.permute_dims(q, [0, 2, 3, 1]), op.permute_dims(k, [0, 2, 3, 1])],
        lambda q, k: [q.transpose(0, 2, 3, 1), k.transpose(0, 2, 3, 1)],
    ),
    "more tiles than shared memory holds": (
        [tensor(f"x{i}", 40 + i, 50) for i in range(7)],
        lambda emit, *xs: [op.permute_dims(x) for x in xs],
        lambda *xs: [x.T for x in xs],
    ),
    "transposed and concatenated": (
        [tensor("x", 40, 64), tensor("y", 56, 64)],
        lambda emit, x, y: op.permute_dims(emit(op.concat([x, y], 0))),
        lambda x, y: [np.concatenate([x, y], 0).T],
    ),
    "transposed and padded": (
        [tensor("x", 40, 50)],
        lambda emit, x: op.permute_dims(emit(op.nn.pad(x, [0, 3, 2, 0]))),
        lambda x: [np.pad(x, ((0, 3), (2, 0))).T],
    ),
    "doublings": ([tensor("x", 257)], _diamond, lambda x: [x * 2.0**12]),
}  # fmt: skip


def moved(emit, x):
    return emit(op.permute_dims(x, [0, 2, 1]))


SQUARES = {
    "exponentials of one": (
        [tensor("x", 3, 48, 32), tensor("b", 48)],
        lambda emit, x, b: op.add(emit(op.exp(moved(emit, x))), b),
        lambda x, b: [np.exp(x.transpose(0, 2, 1)) + b],
    ),
    "sum of two": (
        [tensor("x", 2, 16, 80), tensor("y", 2, 16, 80)],
        lambda emit, x, y: op.add(moved(emit, x), moved(emit, y)),
        lambda x, y: [(x + y).transpose(0, 2, 1)],
    ),
    "next to a copy": (
        [tensor("x", 2, 32, 48), tensor("y", 1, 48, 32)],
        lambda emit, x, y: op.concat([moved(emit, x), y], 0),
        lambda x, y: [np.concatenate([x.transpose(0, 2, 1), y], 0)],
    ),
    "of integers": (
        [tensor("x", 1, 64, 16, dtype="int32")],
        lambda emit, x: op.add(moved(emit, x), relax.const(3, "int32")),
        lambda x: [x.transpose(0, 2, 1) + 3],
    ),
}


@pytest.mark.parametrize("case", SQUARES)
def test_a_cpu_transposes_squares_by_shuffles(case):
    params, body, reference = SQUARES[case]
    _, func = check(Elementwise(False), params, body, reference, CPU)
    assert find(func.body, tirx.Shuffle)
    # No vector gathers: every lane is the last index of a load.
    loops = [f for f in find(func.body, tirx.For) if f.kind == tirx.ForKind.VECTORIZED]
    for loop in loops:
        for one in find(loop.body, ir.TensorLoad):
            outer = {v for i in one.indices[:-1] for v in tirx.analysis.undefined_vars(i)}
            assert loop.loop_var not in outer


def test_a_padded_transpose_reads_nothing_outside():
    """A choice that changes within a square guards its loads."""
    params = [tensor("x", 1, 32, 30)]

    def body(emit, x):
        return op.nn.pad(moved(emit, x), [0, 0, 1, 1, 0, 0])

    expected = lambda x: [np.pad(x.transpose(0, 2, 1), ((0, 0), (1, 1), (0, 0)))]  # noqa: E731
    _, func = check(Elementwise(False), params, body, expected, CPU)
    assert not find(func.body, tirx.Shuffle)


@SPECS
@pytest.mark.parametrize("case", CASES)
def test_one_launch(case, spec):
    params, body, reference = CASES[case]
    claim, _ = check(template(spec), params, body, reference, spec)
    assert claim.launches == 1


@SPECS
def test_half_precision(spec):
    params = [tensor("x", 64, 4096, dtype="float16")]
    check(template(spec), params, lambda emit, x: op.exp(x), lambda x: [np.exp(x)], spec, 2e-3)


def test_claim_counts_what_is_touched():
    """A gather reads its rows of the table, not the table."""
    members = group(
        [tensor("t", 5000, 64), tensor("i", 7, dtype="int64")],
        lambda emit, t, i: op.take(t, i, 0),
    )
    claim = Elementwise(False).claim(members, CPU.device)
    assert claim.bytes < 3 * 7 * 64 * 4
    assert claim.flops == 0


def test_gpu_claims_count_loads_with_a_cache_line_for_each_lane():
    """Of both readings the bytes are the same; no tile covers what is read by half an index."""
    image = tensor("x", 1, 64, 24, 24, dtype="float16")

    def first(emit, x):
        size = relax.ShapeExpr([48, 48])
        return emit(op.image.resize2d(x, size, method="nearest_neighbor"))

    def last(emit, x):
        return emit(op.permute_dims(first(emit, x), [0, 2, 3, 1]))

    straight, strided = (
        Elementwise(True).claim(group([image], body), CUDA.device) for body in (first, last)
    )
    assert straight.bytes == strided.bytes
    assert straight.flops == 0
    assert strided.flops == OPERATIONS_A_STRIDED_LOAD * 64 * 48 * 48


def test_gpu_claims_of_rows_whose_distance_is_symbolic():
    """Of a type that no tile transposes, rows of concatenated images turned into columns."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    params = [tensor(name, 2, rows, m, dtype="int64") for name, rows in (("x", 3), ("y", n))]

    def body(emit, x, y):
        return relax.op.permute_dims(emit(relax.op.concat([x, y], 1)), [0, 2, 1])

    claim = Elementwise(True).claim(group(params, body, CUDA), CUDA.device)
    assert claim.launches == 1


def test_reductions_are_refused():
    members = group([tensor("x", 8, 16)], lambda emit, x: op.sum(x, 1))
    refusal = Elementwise(False).claim(members, CPU.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "not_mine"


def test_too_many_parameters_are_refused():
    params = [tensor(f"x{i}", 8) for i in range(130)]

    def total(emit, first, *rest):
        for x in rest:
            first = emit(op.add(first, x))
        return op.nn.relu(first)

    refusal = Elementwise(True).claim(group(params, total, CUDA), CUDA.device)
    assert refusal.code == "too_many_parameters"


def test_cpu_works_in_vectors_and_in_parallel():
    members = group([tensor("x", 512, 1000)], lambda emit, x: op.nn.relu(x))
    _, func = kernel(Elementwise(False), members, CPU)
    text = func.script()
    assert "T.parallel" in text
    assert "T.vectorized" in text
    small = group([tensor("x", 5, 100)], lambda emit, x: op.nn.relu(x))
    assert "T.parallel" not in kernel(Elementwise(False), small, CPU)[1].script()


def test_gpu_moves_sixteen_bytes_a_thread():
    for dtype, lanes in (("float32", 4), ("float16", 8)):
        members = group([tensor("x", 512, 1024, dtype=dtype)], lambda emit, x: op.nn.relu(x), CUDA)
        _, func = kernel(Elementwise(True), members, CUDA)
        assert f"T.vectorized(T.int64({lanes}))" in func.script()


def accesses(params, body, count):
    """Number of vectors that a map's CUDA source copies, and its text."""
    _, func = kernel(Elementwise(True), group(params, body, CUDA), CUDA)
    text = cuda_kernel(func)
    assert text.count("uint4*)(") + text.count("float4*)(") == 2 * count, text
    return text


def relu_of_sum(emit, x, y):
    return op.nn.relu(emit(op.add(x, y)))


def test_gpu_moves_sixteen_bytes_where_rows_are_no_whole_vectors():
    half = {"dtype": "float16"}
    accesses([tensor("x", 511, 1023)], lambda emit, x: op.nn.relu(x), 2)
    accesses([tensor("x", n, m, **half)], lambda emit, x: op.nn.relu(x), 2)
    accesses([tensor("x", 511, 1023, **half), tensor("y", 1023, **half)], relu_of_sum, 2)
    accesses([tensor("x", 511, 1023, **half), tensor("y", 511, 1, **half)], relu_of_sum, 2)
    accesses([tensor("x", n, 1023), tensor("y", 1023)], relu_of_sum, 2)


def test_gpu_moves_vectors_of_pieces_and_of_rows_that_are_looked_up():
    def both(emit, x, y):
        return op.nn.relu(emit(op.concat([x, y], 1)))

    accesses([tensor("x", 500, 64), tensor("y", 500, 96)], both, 3)
    # Only what is written: a vector of the result can be of both.
    accesses([tensor("x", 500, 62), tensor("y", 500, 98)], both, 1)
    table, rows = tensor("x", 900, 512), tensor("i", 400, dtype="int64")
    accesses([table, rows], lambda emit, x, i: op.take(x, i, 0), 2)


def test_gpu_has_several_vectors_on_their_way():
    """All are read before the first is used."""
    x = tensor("x", 4096, 4096, dtype="float16")
    text = accesses([x], lambda emit, x: op.nn.relu(x), 4)
    assert text.rindex("(x_ptr +") < text.index("max_float16(x_vector_ptr[0]")
    accesses([x, tensor("y", 4096, 4096, dtype="float16")], relu_of_sum, 3)


TYPES = ("float16", "float32")


@pytest.mark.parametrize("result", TYPES)
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("rows", [4096, 4098, 4095])
def test_tiles_have_no_bank_conflicts(source, result, rows):
    """A warp's threads access different banks, or the same word, in every instruction.

    A few conflict where rows of results are shifted by unequal numbers of elements.
    """
    members = group(
        [tensor("x", rows, 2 * rows, dtype=source)],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), result),
        CUDA,
    )
    _, func = kernel(Elementwise(True), members, CUDA)
    accesses = shared_accesses(func)
    assert {is_write for is_write, _ in accesses} == {True, False}
    per_word = 2 if source == "float16" else 1
    for _, places in accesses:
        banks = Counter(word % 32 for word in {int(place) // per_word for place in places})
        most = 1 if rows % 16 == 0 else 4
        assert max(banks.values()) <= most


def shared_accesses(func):
    """Places that the threads of every fourth warp access in shared memory, for each access."""
    found = []
    for bound in find(func.body, tirx.For):
        if bound.thread_binding is None or bound.thread_binding.thread_tag != "threadIdx.x":
            continue
        accesses = [(True, s.indices[0]) for s in find(bound.body, tirx.BufferStore)
                    if s.buffer.scope() == "shared"]  # fmt: skip
        accesses += [(False, x.indices[0]) for x in find(bound.body, ir.TensorLoad)
                     if x.source.scope() == "shared"]  # fmt: skip
        for is_write, place in accesses:
            others = {v: index(0) for v in tirx.analysis.undefined_vars(place)}
            for warp in range(0, 256, 128):
                places = [
                    simplified(substitute(place, {**others, bound.loop_var: index(warp + lane)}))
                    for lane in range(32)
                ]
                found.append((is_write, places))
    return found


def test_transposes_move_vectors_on_both_sides():
    def transposed(result):
        return lambda emit, x: op.astype(emit(op.permute_dims(x)), result)

    for source, result, bytes_read in (
        ("float16", "float32", "uint4"),
        ("float32", "float16", "float4"),
        ("float16", "float16", "uint4"),
    ):
        _, func = kernel(
            Elementwise(True),
            group([tensor("x", 4096, 4096, dtype=source)], transposed(result), CUDA),
            CUDA,
        )
        text = cuda_kernel(func)
        assert text.count(f"*({bytes_read}*)(x_ptr +") == 2
        written = "float4" if result == "float32" else "uint4"
        assert f"*({written}*)(compute_ptr +" in text or f"*({written}*)(T_transpose_ptr +" in text
        assert text.count("__syncthreads()") == 1
        first, last = text.index("x_tile[") if "x_tile[" in text else 0, text.rindex("x_tile")
        assert first < text.index("__syncthreads()") < last


@pytest.mark.parametrize("result", TYPES)
@pytest.mark.parametrize("shape", [(1001, 999), (1028, 513)])
def test_odd_rows_move_in_vectors_on_both_sides(shape, result):
    """Where a vector begins differs from line to line, and every one is aligned."""
    members = group(
        [tensor("x", *shape, dtype="float16")],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), result),
        CUDA,
    )
    text = cuda_kernel(kernel(Elementwise(True), members, CUDA)[1])
    assert re.search(r"\*\(uint4\*\)\(x_part_ptr.*= \*\(uint4\*\)\(x_ptr", text)
    assert ("*(float4*)(" if result == "float32" else "*(uint4*)(") + "compute_ptr +" in text


def test_barriers_stand_under_no_condition():
    """Not even where only some blocks have tiles."""
    for case in ("transposed next to something else", "two transposes of unequal extents"):
        params, body, _ = CASES[case]
        _, func = kernel(Elementwise(True), group(params, body, CUDA), CUDA)
        text = cuda_kernel(func)
        assert text.count("__syncthreads()") == 1
        assert text.count("\n  __syncthreads();\n") == 1


@pytest.mark.cuda_toolchain
def test_cuda_compiles():
    assert compiles_for_cuda(Elementwise(True), CASES)


LARGE = {
    "activation": (
        [tensor("x", 8192, 8192, dtype="float16")],
        lambda emit, x: op.multiply(emit(op.tanh(x)), emit(op.sigmoid(x))),
    ),
    "activation of odd rows": (
        [tensor("x", 8191, 8193, dtype="bfloat16"), tensor("b", 8193, dtype="bfloat16")],
        lambda emit, x, b: op.nn.gelu(emit(op.add(x, b))),
    ),
    "wider transpose": (
        [tensor("x", 8192, 8192, dtype="float16")],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), "float32"),
    ),
    "narrower transpose": (
        [tensor("x", 8192, 8192)],
        lambda emit, x: op.astype(emit(op.permute_dims(x)), "float16"),
    ),
    "transpose of odd sides": (
        [tensor("x", 4097, 8191, dtype="float16")],
        lambda emit, x: op.permute_dims(x),
    ),
}  # fmt: skip


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_registers_leave_room_for_all_threads_of_a_multiprocessor():
    groups = [group(*graph, CUDA) for graph in LARGE.values()]
    functions = {f"case{i}": kernel(Elementwise(True), g, CUDA)[1] for i, g in enumerate(groups)}
    for one in machine_code(functions).values():
        assert one.spilled_bytes == 0
        assert one.registers <= 32


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_rocm_compiles(arch):
    """Shared memory is written before barriers, not while they are waited at."""
    spec = parse(f"rocm:{arch}")
    functions = {}
    for number, (params, body, *_) in enumerate(CASES.values()):
        func = kernel(Elementwise(True), group(params, body, spec), spec)[1]
        functions[f"kernel{number}"] = func.with_attr("global_symbol", f"kernel{number}")
    with toolchain(spec), spec.tvm_target() as target:
        built = tvm.compile(tvm.IRModule(functions), target, tir_pipeline="tvm_fusion")
    assembly = built.mod.imports[0].inspect_source("asm")
    assert assembly.count("s_barrier") >= 8
    assert unguarded_barriers(assembly) == 0
