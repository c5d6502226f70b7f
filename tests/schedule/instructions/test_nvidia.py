"""NVIDIA's rows against PTX's figures, and run in the emulator, which knows these figures too."""

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA
from tvm import tirx
from tvm.script import tirx as T

from tests.schedule.instructions.registers import basis, drawn, held, name_of
from tvm_fusion.device import parse
from tvm_fusion.schedule.gpu.matrix import wgmma
from tvm_fusion.schedule.gpu.matrix.mma_sync import mma_fragments
from tvm_fusion.schedule.gpu.memory.shared_tiles import block_barrier
from tvm_fusion.schedule.instructions.nvidia import NVIDIA, ptx

MMA = [row for row in NVIDIA if row.family == "mma.sync"]
WGMMA = [row for row in NVIDIA if row.family == "wgmma"]
SHORTER = next(row for row in MMA if row.kind == "float16" and row.k == 8)
COLUMNS = 24  # of the wgmma that runs here
ROW_BYTES, CHUNK_BYTES = 128, 16  # of swizzled shared memory


def item_bytes(row):
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(row.a_types[0], 1)


@pytest.mark.parametrize("row", MMA, ids=name_of)
def test_registers_of_warps(row):
    """PTX's figures: from an element to groupID and threadID_in_group."""
    count = 4 // item_bytes(row)
    a, b, c = basis(row.m, row.k), basis(row.k, row.n), basis(row.m, row.n)
    found = np.full((32, row.a.per_lane), -1)
    for i, k in np.ndindex(*a.shape):
        thread, upper = k // count % 4, k // (4 * count)
        found[4 * (i % 8) + thread, k % count + count * (i // 8) + 2 * count * upper] = a[i, k]
    np.testing.assert_array_equal(held(row.a, a), found)
    found = np.full((32, row.b.per_lane), -1)
    for k, j in np.ndindex(*b.shape):
        found[4 * j + k // count % 4, k % count + count * (k // (4 * count))] = b[k, j]
    np.testing.assert_array_equal(held(row.b, b), found)
    found = np.full((32, 4), -1)
    for i, j in np.ndindex(*c.shape):
        found[4 * (i % 8) + j // 2, j % 2 + 2 * (i // 8)] = c[i, j]
    np.testing.assert_array_equal(held(row.c, c), found)


@pytest.mark.parametrize("row", WGMMA, ids=name_of)
def test_a_warpgroup_is_four_warps(row):
    """Kernels that take their part of C as a warp's rely on it."""
    warp = next(x for x in MMA if x.kind == row.kind)
    for number in range(4):
        lanes = np.arange(32)[:, None]
        for own, whole, tiles in ((warp.a, row.a, 1), (warp.c, row.c, row.n // 8)):
            registers = np.arange(own.per_lane)
            for tile in range(tiles):
                i, j = own.place(lanes, registers)
                found = whole.place(lanes + 32 * number, registers + own.per_lane * tile)
                np.testing.assert_array_equal(found[0], i + 16 * number)
                np.testing.assert_array_equal(found[1], j + 8 * tile)


def test_a_shorter_instruction_takes_half_of_the_fragments():
    """Two of them multiply what one of the longer takes."""
    longer = MMA[0]
    for own, whole in ((SHORTER.a, longer.a), (SHORTER.b, longer.b)):
        lanes, registers = np.arange(32)[:, None], np.arange(own.per_lane)
        for found, expected in zip(*(x.place(lanes, registers) for x in (own, whole)), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert SHORTER.c == longer.c


@pytest.mark.parametrize(
    ("row", "types", "n", "text"),
    [
        (MMA[0], ("float16",) * 2, None, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        (SHORTER, ("float16",) * 2, None, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"),
        (MMA[3], ("int8", "uint8"), None, "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32"),
        (WGMMA[0], ("float16",) * 2, 64, "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"),
        (WGMMA[4], ("float32",) * 2, None, "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32"),
    ],
    ids=["mma", "shorter", "signs", "columns", "all columns"],
)
def test_text(row, types, n, text):
    assert ptx(row, *types, n) == text


def mma_kernel(row, a_dtype, b_dtype):
    """Put two matrices into a warp's registers, multiply and store."""

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


def pairs_of_types(rows):
    return [(row, a, b) for row in rows for a in row.a_types for b in row.b_types]


def id_of(value):
    return value if isinstance(value, str) else value.family


def check(kernel, row, a_dtype, b_dtype, n, target, as_bytes=False):
    rng = np.random.default_rng()
    a, b = drawn(rng, a_dtype, (row.m, row.k)), drawn(rng, b_dtype, (row.k, n))
    c = np.full((row.m, n), 99, row.sums)
    launch(kernel, [x.view("uint8") if as_bytes else x for x in (a, b)] + [c], target)
    np.testing.assert_array_equal(c, a.astype("float64") @ b.astype("float64"))


@pytest.mark.parametrize(
    ("row", "a_dtype", "b_dtype"), pairs_of_types(r for r in MMA if r is not SHORTER), ids=id_of
)
def test_a_warp_multiplies(row, a_dtype, b_dtype):
    check(mma_kernel(row, a_dtype, b_dtype), row, a_dtype, b_dtype, row.n, CUDA.tvm_target())


def swizzled(row, line, k):
    """The place of an element of shared memory in lines of 128 bytes, of K."""
    chunk = CHUNK_BYTES // item_bytes(row)
    of_line = ROW_BYTES // item_bytes(row)
    return line * of_line + (k // chunk ^ line % 8) * chunk + k % chunk


def wgmma_kernel(row, a_dtype, b_dtype, is_a_shared):
    """Put B, and A or not, into shared memory, multiply and store what the registers have."""
    n, lanes, operand = COLUMNS, row.lanes, wgmma.Operand(True, 0)
    of_line = ROW_BYTES // item_bytes(row)
    count = n // 2
    # Bytes of both kinds lie in one buffer.
    held_dtype = a_dtype if item_bytes(row) > 1 else "uint8"

    def product(acc, tile, a_frag):
        a_tile, b_tile = tile[0], tile[row.m * of_line]
        if not is_a_shared:
            b = operand, b_tile
            return wgmma.multiply_fragments(a_dtype, n, row.k, acc[0], a_frag[0], b, False)
        a, b = ((operand, operand.descriptor(x)) for x in (a_tile, b_tile))
        return wgmma.multiply((a_dtype, b_dtype), n, acc[0], a, b, tirx.const(False))

    def register(i):
        """The register of the instruction that multiply_fragments has at a place: rows first."""
        return i if is_a_shared else (i // 4 + i // 2 % 2 * 2) * 2 + i % 2

    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (row.m, row.k), held_dtype)
        B = T.match_buffer(b, (row.k, n), held_dtype)
        C = T.match_buffer(c, (row.m, n), row.sums)
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for t in T.thread_binding(lanes, thread="threadIdx.x"):
                with T.sblock("all"):
                    T.reads(A[0 : row.m, 0 : row.k], B[0 : row.k, 0:n])
                    T.writes(C[0 : row.m, 0:n])
                    tile = T.sblock_alloc_buffer(
                        ((row.m + n) * of_line,), held_dtype, scope="shared.dyn", align=1024
                    )
                    a_frag = T.sblock_alloc_buffer((row.a.per_lane,), held_dtype, scope="local")
                    acc = T.sblock_alloc_buffer((count,), row.sums, scope="local")
                    if t < row.m:
                        for k in T.unroll(row.k):
                            tile[swizzled(row, t, k)] = A[t, k]
                    if t < n:
                        for k in T.unroll(row.k):
                            tile[swizzled(row, row.m + t, k)] = B[k, t]
                    for i in range(row.a.per_lane):
                        a_frag[i] = A[row.a.place(t, register(i))]
                    T.evaluate(wgmma.fence_proxy().value)
                    T.evaluate(block_barrier().value)
                    T.evaluate(wgmma.fence().value)
                    T.evaluate(product(acc, tile, a_frag).value)
                    T.evaluate(wgmma.commit().value)
                    T.evaluate(wgmma.wait(0).value)
                    for i in T.unroll(count):
                        C[row.c.place(t, i)] = acc[i]

    return kernel


HOPPER = parse("cuda:sm_90a")


@pytest.mark.parametrize(("row", "a_dtype", "b_dtype"), pairs_of_types(WGMMA), ids=id_of)
def test_a_warpgroup_multiplies_what_is_shared(row, a_dtype, b_dtype):
    kernel = wgmma_kernel(row, a_dtype, b_dtype, is_a_shared=True)
    check(kernel, row, a_dtype, b_dtype, COLUMNS, HOPPER.tvm_target(), item_bytes(row) == 1)


@pytest.mark.parametrize("row", [r for r in WGMMA if r.is_mn_major], ids=name_of)
def test_a_warpgroup_multiplies_registers(row):
    (dtype,) = row.a_types
    kernel = wgmma_kernel(row, dtype, dtype, is_a_shared=False)
    check(kernel, row, dtype, dtype, COLUMNS, HOPPER.tvm_target())
