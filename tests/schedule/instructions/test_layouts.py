"""Every row's layouts beside what manuals say of the registers, and what instructions compute.

An interpreter here knows an instruction as its manual tells it: which lane and which of its
registers hold an element of A, of B and of C. The table says the same from the other end.
"""

import ml_dtypes
import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA
from tvm import tirx
from tvm.script import tirx as T

from tvm_fusion.schedule.gpu.mma_sync import mma_fragments
from tvm_fusion.schedule.instructions.amd import AMD
from tvm_fusion.schedule.instructions.nvidia import NVIDIA
from tvm_fusion.schedule.instructions.table import INSTRUCTIONS
from tvm_fusion.schedule.instructions.x86 import X86

SHORTER = next(r for r in NVIDIA if r.family == "mma.sync" and r.kind == "float16" and r.k == 8)


def np_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def name_of(row):
    return row.text


def basis(rows, columns):
    """Numbers that differ everywhere: a layout that mixes two of them up is seen."""
    return np.arange(1, rows * columns + 1).reshape(rows, columns)


def held(layout_, matrix):
    """The registers ``[lane, register]`` that hold a matrix."""
    lane, register = np.indices((layout_.lane_count, layout_.per_lane))
    return matrix[layout_.place(lane, register)]


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=name_of)
def test_every_element_is_held(row):
    for layout_ in filter(None, (row.a, row.b, row.c)):
        rows, columns = layout_.shape
        places = {layout_.find(i, j) for i in range(rows) for j in range(columns)}
        assert len(places) == rows * columns
        copies = 2 if row.family == "wmma" and layout_ is not row.c else 1
        assert layout_.lane_count * layout_.per_lane == copies * rows * columns
        for i in (0, rows - 1):
            for j in (0, columns - 1):
                assert layout_.place(*layout_.find(i, j)) == (i, j)


def amd_registers(row, matrix):
    """What AMD's guides say of A, or of B transposed: from an element to its lane and item."""
    size, count = row.m, row.a.per_lane
    found = np.full((row.lanes, count), -1)
    for i, k in np.ndindex(*matrix.shape):
        if row.family == "mfma":
            found[i + size * (k // count), k % count] = matrix[i, k]
        else:
            found[[i, i + 16], k] = matrix[i, k]
    return found


def amd_sums(row, matrix):
    found = np.full((row.lanes, row.c.per_lane), -1)
    for i, j in np.ndindex(*matrix.shape):
        if row.family == "wmma":
            found[j + 16 * (i % 2), i // 2] = matrix[i, j]
        elif row.m == 16:
            found[j + 16 * (i // 4), i % 4] = matrix[i, j]
        else:
            found[j + 32 * (i // 4 % 2), i % 4 + 4 * (i // 8)] = matrix[i, j]
    return found


@pytest.mark.parametrize("row", AMD, ids=name_of)
def test_registers_of_matrix_cores(row):
    a, b, c = basis(row.m, row.k), basis(row.k, row.n), basis(row.m, row.n)
    np.testing.assert_array_equal(held(row.a, a), amd_registers(row, a))
    np.testing.assert_array_equal(held(row.b, b), amd_registers(row, b.T))
    np.testing.assert_array_equal(held(row.c, c), amd_sums(row, c))


def words_multiplied(row, a, b):
    """Sums of x86's instructions: for each word of A's row, of B's row of words, lane by lane."""
    group = row.k if row.family == "dot" else row.k // 16
    a, b = a.reshape(row.m, -1, group), b.reshape(-1, row.n, group)
    sums = np.zeros((row.m, row.n), "int64")
    for m, n, word, byte in np.ndindex(row.m, row.n, a.shape[1], group):
        sums[m, n] += a[m, word, byte] * b[word, n, byte]
    return sums.reshape(1, -1)


@pytest.mark.parametrize("row", X86, ids=name_of)
def test_memory_of_tiles_and_vectors(row):
    a, b = basis(row.m, row.k), basis(row.k, row.n)
    sums = words_multiplied(row, held(row.a, a), held(row.b, b))
    np.testing.assert_array_equal(held(row.c, a @ b), sums)


@pytest.mark.parametrize("row", [r for r in NVIDIA if r.family == "mma.sync"], ids=name_of)
def test_registers_of_warps(row):
    """PTX's figures: from an element to groupID and threadID_in_group."""
    a, c = basis(row.m, row.k), basis(row.m, row.n)
    count = {"float32": 1, "float16": 2, "bfloat16": 2}.get(row.a_types[0], 4)
    found = np.full((32, row.a.per_lane), -1)
    for i, k in np.ndindex(*a.shape):
        thread, upper = k // count % 4, k // (4 * count)
        found[4 * (i % 8) + thread, k % count + count * (i // 8) + 2 * count * upper] = a[i, k]
    np.testing.assert_array_equal(held(row.a, a), found)
    b = basis(row.k, row.n)
    found = np.full((32, row.b.per_lane), -1)
    for k, j in np.ndindex(*b.shape):
        found[4 * j + k // count % 4, k % count + count * (k // (4 * count))] = b[k, j]
    np.testing.assert_array_equal(held(row.b, b), found)
    found = np.full((32, 4), -1)
    for i, j in np.ndindex(*c.shape):
        found[4 * (i % 8) + j // 2, j % 2 + 2 * (i // 8)] = c[i, j]
    np.testing.assert_array_equal(held(row.c, c), found)


def product_of(row, a_dtype, b_dtype):
    """A kernel that puts two matrices into a warp's registers, multiplies and stores."""

    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (row.m, row.k), a_dtype)
        B = T.match_buffer(b, (row.k, row.n), b_dtype)
        C = T.match_buffer(c, (row.m, row.n), row.sums)
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("all"):
                    T.reads(A[0 : row.m, 0 : row.k], B[0 : row.k, 0 : row.n])
                    T.writes(C[0 : row.m, 0 : row.n])
                    a_frag = T.sblock_alloc_buffer((row.a.per_lane,), a_dtype, scope="local")
                    b_frag = T.sblock_alloc_buffer((row.b.per_lane,), b_dtype, scope="local")
                    acc = T.sblock_alloc_buffer((row.c.per_lane,), row.sums, scope="local")
                    for i in T.unroll(row.a.per_lane):
                        a_frag[i] = A[row.a.place(t, i)]
                    for i in T.unroll(row.b.per_lane):
                        b_frag[i] = B[row.b.place(t, i)]
                    for i in T.unroll(row.c.per_lane):
                        acc[i] = tirx.const(0, row.sums)
                    T.evaluate(mma_fragments(a_dtype, b_dtype, acc[0], a_frag[0], b_frag[0]).value)
                    for i in T.unroll(row.c.per_lane):
                        C[row.c.place(t, i)] = acc[i]

    return kernel


@pytest.mark.parametrize(
    ("row", "a_dtype", "b_dtype"),
    [
        (row, a, b)
        for row in NVIDIA
        if row.family == "mma.sync" and row is not SHORTER
        for a in row.a_types
        for b in row.b_types
    ],
    ids=str,
)
def test_a_warp_multiplies(row, a_dtype, b_dtype):
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(0 if dtype == "uint8" else -3, 4, shape).astype(np_dtype(dtype))
        for dtype, shape in ((a_dtype, (row.m, row.k)), (b_dtype, (row.k, row.n)))
    )
    c = np.empty((row.m, row.n), row.sums)
    launch(product_of(row, a_dtype, b_dtype), [a, b, c], CUDA.tvm_target())
    np.testing.assert_array_equal(c, a.astype("float64") @ b.astype("float64"))
