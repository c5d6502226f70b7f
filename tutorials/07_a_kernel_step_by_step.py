# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A kernel, step by step
#
# How does a matrix product get from three loops to the tensor cores of a Hopper GPU? In seven
# steps, each a kernel that runs:
#
# | step | what is new | what it saves |
# |---|---|---|
# | 1 | one thread for each element | |
# | 2 | tiles in shared memory | bytes of global memory |
# | 3 | a tile of sums in the registers of a thread | loads from shared memory |
# | 4 | a ring of stages, filled by `cp.async` | waiting for global memory, a barrier |
# | 5 | `mma.sync` on fragments | instructions |
# | 6 | `wgmma`, TMA, mbarriers, warp-specialized roles | registers, instructions, barriers |
# | 7 | an epilogue in vectors | a kernel, and bytes |
#
# The first four we write ourselves, out of parts of this package; the last three are kernels that
# it generates, which we read. No GPU is needed: an emulator runs all threads of a kernel on the
# CPU. It knows what barriers and waits order, and fails on a race that a GPU might show once in a
# thousand runs. At the end CUDA source is generated for `sm_90a` (an H100), and compiled where
# there is an `nvcc`.
#
# You should know what blocks, threads and shared memory are. What the text says about numbers is
# checked by an `assert` in the cell below it.
#
# Run it from a checkout, since the emulator is part of the tests: as a notebook, or as the program
# `python tutorials/07_a_kernel_step_by_step.py`.

# %%
import dataclasses
import difflib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
from tvm import ir, relax, s_tir, tirx
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion.device import parse

sys.path.append(str(Path(tvm_fusion.__file__).parents[1] / "tests"))
from emulator.launch import launch
from emulator.memory import EmulationError
from nvcc import cuda_source, machine_code

SPEC = parse("cuda:sm_90a")
DEVICE, TARGET = SPEC.device, SPEC.tvm_target()

# %% [markdown]
# The problem is that of a linear layer, `C = A @ B.T`: activations `A[m, k]` and weights `B[n, k]`
# of float16, sums of float32. We run a small one, and do the arithmetic of a large one.
#
# `check` runs a kernel and compares it with numpy. Products of two float16 are exact in float32, so
# a sum of K of them, in any order, is off by at most K roundings of the sum of magnitudes.

# %%
M, N, K = 128, 192, 256
LARGE = 4096  # rows, columns and terms of the large one

rng = np.random.default_rng(0)
A = rng.standard_normal((M, K)).astype("float16")
B = rng.standard_normal((N, K)).astype("float16")
EXACT = A.astype("float64") @ B.astype("float64").T
BOUND = K * 2.0**-24 * (abs(A.astype("float64")) @ abs(B.astype("float64")).T)
kernels = {}


def run(kernel, dtype="float32", **inputs):
    """Run a kernel in the emulator, with A, B and other inputs by the names of its parameters."""
    result = np.full((M, N), np.nan, dtype)
    inputs |= {"a": A, "b": B}
    launch(kernel, [inputs.get(p.name, result) for p in kernel.params], TARGET)
    return result


def check(name, kernel):
    """Run a kernel, compare its result with numpy's, and remember the kernel for the end."""
    error = abs(run(kernel) - EXACT)
    assert (error <= BOUND).all()
    kernels[name] = kernel
    print(f"{name}: right, the largest error is {error.max():.1e}")


# %% [markdown]
# How fast can it be at all? Either arithmetic takes longest, or memory does.

# %%
FLOPS = 2 * LARGE**3


def limits(global_bytes, dtype):
    """Print how long memory and arithmetic take at least, for the large problem."""
    memory = global_bytes / DEVICE.memory_bandwidth
    arithmetic = FLOPS / DEVICE.peak_flops[dtype]
    print(
        f"{global_bytes / 1e9:.2f} GB take {memory * 1e6:,.0f} us,"
        f" arithmetic of {dtype} {arithmetic * 1e6:,.0f} us"
    )
    return memory, arithmetic


once = (2 * 2 + 4) * LARGE**2  # bytes, if each element is read or written once
memory, arithmetic = limits(once, "float16")
assert memory < arithmetic / 2

# %% [markdown]
# So the large product is limited by tensor cores, if only every element is read about once. The
# rest of this page is about feeding them.
#
# ## 1. One thread for each element
#
# Written in TVMScript: a grid of blocks of 256 threads; each adds up one element.


# %%
@T.prim_func(s_tir=True)
def plain(
    a: T.Buffer((M, K), "float16"),
    b: T.Buffer((N, K), "float16"),
    c: T.Buffer((M, N), "float32"),
):
    for number in T.thread_binding(M * N // 256, thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("element"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                i: T.let[T.int64] = T.int64(number * 256 + t) // N
                j: T.let[T.int64] = T.int64(number * 256 + t) % N
                c[i, j] = T.float32(0)
                for k in range(K):
                    c[i, j] = c[i, j] + T.float32(a[i, k]) * T.float32(b[j, k])


check("plain", plain)

# %% [markdown]
# Each product asks for two elements of two bytes. Caches catch many of them, but nobody promises
# it, and a cache answers a warp's loads no faster than shared memory does.

# %%
memory, arithmetic = limits(2 * 2 * LARGE**3, "float32")
assert memory > 30 * arithmetic

# %% [markdown]
# ## 2. Tiles in shared memory
#
# A block computes a tile of 16 by 16 elements. Its threads copy 16 terms of the tile's rows of A
# and B to shared memory together, and read them there. Each element that comes from global memory
# is used 16 times.
#
# Between writing a tile and reading it, and between reading it and writing the next, all threads
# must wait for each other. TVM sees the accesses and places both barriers.

# %%
TILE = 16


@T.prim_func(s_tir=True)
def tiled(
    a: T.Buffer((M, K), "float16"),
    b: T.Buffer((N, K), "float16"),
    c: T.Buffer((M, N), "float32"),
):
    for number in T.thread_binding(M * N // (TILE * TILE), thread="blockIdx.x"):
        for t in T.thread_binding(TILE * TILE, thread="threadIdx.x"):
            with T.sblock("tile"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                a_tile = T.sblock_alloc_buffer((TILE, TILE), "float16", scope="shared")
                b_tile = T.sblock_alloc_buffer((TILE, TILE), "float16", scope="shared")
                total = T.sblock_alloc_buffer((2,), "float32", scope="local")
                row: T.let[T.int64] = T.int64(number) // (N // TILE) * TILE
                column: T.let[T.int64] = T.int64(number) % (N // TILE) * TILE
                total[0] = T.float32(0)
                for k_tile in range(K // TILE):
                    a_tile[t // TILE, t % TILE] = a[row + t // TILE, k_tile * TILE + t % TILE]
                    b_tile[t // TILE, t % TILE] = b[column + t // TILE, k_tile * TILE + t % TILE]
                    for k in range(TILE):
                        total[0] = total[0] + T.float32(a_tile[t // TILE, k]) * T.float32(
                            b_tile[t % TILE, k]
                        )
                c[row + t // TILE, column + t % TILE] = total[0]


check("tiles", tiled)
source = cuda_source(tiled)
print(source[source.index("for (int k_tile") :])
assert source.count("__syncthreads();") == 2

# %% [markdown]
# What global memory has to deliver, by the size of a tile:


# %%
def tile_bytes(rows, columns):
    """Count the bytes that blocks read for the large problem, a tile of C each."""
    return 2 * LARGE**3 * (rows + columns) // (rows * columns)


for size in (1, TILE, 64, 128):
    print(f"{size:3} x {size:3}: ", end="")
    memory, arithmetic = limits(tile_bytes(size, size), "float32")
assert tile_bytes(1, 1) == 2 * 2 * LARGE**3
assert memory < arithmetic

# %% [markdown]
# ## 3. A tile of sums in registers
#
# With tiles of 16, shared memory is the limit: each multiply-add still loads two elements, now from
# there. A multiprocessor issues four warps' multiply-adds in a clock and one warp's loads, so two
# loads for each leave an eighth of its arithmetic.
#
# If a thread has 4 by 4 sums, 8 loads serve 16 multiply-adds; and 256 threads have a tile of 64 by
# 64, so that fewer bytes come from global memory, too.

# %%
REGISTERS, BLOCK, TERMS = 4, 64, 32  # of a thread, of a block, of a tile along K


def share_of_arithmetic(rows, columns):
    """Tell how much of its arithmetic a multiprocessor reaches, by its loads from shared memory."""
    loads = (rows + columns) / (rows * columns)
    return min(1, 1 / (4 * loads))


for size in (1, 2, 4, 8):
    print(f"{size} x {size} sums of a thread: {share_of_arithmetic(size, size):.0%}")
assert share_of_arithmetic(1, 1) == 1 / 8
memory, arithmetic = limits(tile_bytes(TILE, TILE), "float32")
assert memory < arithmetic / share_of_arithmetic(1, 1)
assert share_of_arithmetic(REGISTERS, REGISTERS) == 1 / 2


# %%
@T.prim_func(s_tir=True)
def in_registers(
    a: T.Buffer((M, K), "float16"),
    b: T.Buffer((N, K), "float16"),
    c: T.Buffer((M, N), "float32"),
):
    for number in T.thread_binding(M * N // (BLOCK * BLOCK), thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("tile"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                a_tile = T.sblock_alloc_buffer((BLOCK, TERMS), "float16", scope="shared")
                b_tile = T.sblock_alloc_buffer((BLOCK, TERMS), "float16", scope="shared")
                a_own = T.sblock_alloc_buffer((REGISTERS,), "float32", scope="local")
                b_own = T.sblock_alloc_buffer((REGISTERS,), "float32", scope="local")
                total = T.sblock_alloc_buffer((REGISTERS, REGISTERS), "float32", scope="local")
                row: T.let[T.int64] = T.int64(number) // (N // BLOCK) * BLOCK
                column: T.let[T.int64] = T.int64(number) % (N // BLOCK) * BLOCK
                for i, j in T.grid(REGISTERS, REGISTERS):
                    total[i, j] = T.float32(0)
                for k_tile in range(K // TERMS):
                    for i in range(BLOCK * TERMS // 256):
                        a_tile[i * 8 + t // TERMS, t % TERMS] = a[
                            row + i * 8 + t // TERMS, k_tile * TERMS + t % TERMS
                        ]
                        b_tile[i * 8 + t // TERMS, t % TERMS] = b[
                            column + i * 8 + t // TERMS, k_tile * TERMS + t % TERMS
                        ]
                    for k in range(TERMS):
                        for i in T.unroll(REGISTERS):
                            a_own[i] = T.float32(a_tile[t // 16 + i * 16, k])
                            b_own[i] = T.float32(b_tile[t % 16 + i * 16, k])
                        for i in T.unroll(REGISTERS):
                            for j in T.unroll(REGISTERS):
                                total[i, j] = total[i, j] + a_own[i] * b_own[j]
                for i, j in T.grid(REGISTERS, REGISTERS):
                    c[row + t // 16 + i * 16, column + t % 16 + j * 16] = total[i, j]


check("registers", in_registers)

# %% [markdown]
# The next tile is copied element by element, through registers, and only once all threads have used
# the tile before. Meanwhile the arithmetic stands still.
#
# ## 4. A ring of stages, filled by `cp.async`
#
# `cp.async` copies 16 bytes from global to shared memory without registers, and does not wait. A
# *ring* of four stages has room for three tiles on their way while one is multiplied. Copies are
# closed into groups by `commit`, and `wait_group 2` waits for all but the last two groups.
#
# How much must be on its way? As many bytes as arrive during the latency of memory, some 600 ns.

# %%
LATENCY = 600e-9  # seconds, of a load from global memory of a GPU like this
needed = DEVICE.memory_bandwidth * LATENCY / DEVICE.sm_count
stage_bytes = 2 * BLOCK * TERMS * 2  # of A and B
print(f"{needed:,.0f} bytes on their way to each multiprocessor; {stage_bytes:,} bytes of a stage")
assert stage_bytes < needed < 2 * stage_bytes

# %% [markdown]
# From here on kernels are built out of functions that return statements, as in
# `tutorials/04_write_a_template`: `loop`, `threads` and `sequence` build the nest, and
# `schedule/gpu/memory/cp_async.py` has the copies, `pipeline.py` the ring; its page is the pattern.
#
# One barrier for each tile is left, behind the wait. It says two things: everybody's copies of this
# tile are there, and everybody is done with the tile before, whose stage is filled next.

# %%
from tvm_fusion.core.tir.expressions import call_name, load
from tvm_fusion.core.tir.loops import (
    block,
    find,
    index,
    local,
    loop,
    sequence,
    threads,
    unrolled,
    when,
)
from tvm_fusion.schedule.gpu.memory import cp_async, pipeline
from tvm_fusion.schedule.gpu.memory.shared_tiles import wait_and_barrier

VECTOR = 8  # elements of 16 bytes
VECTORS = TERMS // VECTOR  # of a row of a tile


def matrix(name, rows, columns, dtype="float16"):
    """Declare a parameter."""
    return tirx.decl_buffer([index(rows), index(columns)], dtype, name, layout=None)


def kernel_of(params, blocks, count, body):
    """Make a PrimFunc of what each thread of each block does."""
    grid = threads(
        "blockIdx.x", blocks, lambda i: threads("threadIdx.x", count, lambda t: body(i, t))
    )
    func = tirx.PrimFunc(params, block("root", grid))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True})


def ring_kernel(stages, pending):
    """Make the kernel with a ring of stages, which lets some groups of copies be pending."""
    a, b, c = matrix("a", M, K), matrix("b", N, K), matrix("c", M, N, "float32")
    tiles = K // TERMS

    def of_thread(number, t):
        ring = pipeline.StageRing.declare((stages, 2 * BLOCK, VECTORS, VECTOR), "float16")
        total = local("total", [REGISTERS, REGISTERS], "float32")
        own = local("own", [2, REGISTERS], "float32")
        row, column = number // (N // BLOCK) * BLOCK, number % (N // BLOCK) * BLOCK
        y, x = t // 16, t % 16

        def issue(tile):  # 64 rows of A and of B, four vectors each: one of A, one of B a thread
            i, vector = t // VECTORS, t % VECTORS
            k = tile * TERMS + vector * VECTOR
            copies = [
                ring.copy(tile, [i, vector], load(a, [row + i, k])),
                ring.copy(tile, [i + BLOCK, vector], load(b, [column + i, k])),
            ]
            return sequence([when(tile < tiles, sequence(copies)), cp_async.commit()])

        def multiply(tile):
            def term(k):
                def read(i, operand, place):
                    place = operand * BLOCK + place + i * 16
                    element = ring.element(tile, place, k // VECTOR, k % VECTOR)
                    value = tirx.Cast("float32", element)
                    return tirx.BufferStore(own, value, [index(operand), i])

                def add(i, j):
                    product = load(own, [index(0), i]) * load(own, [index(1), j])
                    return tirx.BufferStore(total, load(total, [i, j]) + product, [i, j])

                return sequence(
                    [
                        unrolled("i", REGISTERS, lambda i: read(i, 0, y)),
                        unrolled("j", REGISTERS, lambda j: read(j, 1, x)),
                        each_sum(add),
                    ]
                )

            return loop("k", TERMS, term)

        def each_sum(body):
            return unrolled(
                "i", REGISTERS, lambda i: unrolled("j", REGISTERS, lambda j: body(i, j))
            )

        def step(tile):
            return sequence([wait_and_barrier(pending), issue(tile + (stages - 1)), multiply(tile)])

        def store(i, j):
            return tirx.BufferStore(c, load(total, [i, j]), [row + i * 16 + y, column + j * 16 + x])

        zero = tirx.const(0, "float32")
        stmts = [
            each_sum(lambda i, j: tirx.BufferStore(total, zero, [i, j])),
            *(issue(index(s)) for s in range(stages - 1)),
            loop("k_tile", tiles, step),
            each_sum(store),
        ]
        return block("tile", sequence(stmts), [ring.buffer, total, own])

    return kernel_of([a, b, c], M * N // BLOCK**2, 256, of_thread)


STAGES = 4
ring = ring_kernel(STAGES, pending=STAGES - 2)
check("ring", ring)

# %% [markdown]
# `outline` prints a kernel's loops and what is in them: the CUDA functions that wrap instructions,
# and the buffers that are stored to. Compare it with the page of `pipeline.py`.


# %%
def short(text):
    """Leave out what all names have, and the types of numbers."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", text.replace("tvm_fusion_", ""))


def outline(kernel):
    """Print the loops of a kernel, its instructions, and the buffers that it stores to."""
    before = None
    for line in lines(kernel.body, 0):
        if line != before:
            print(line)
        before = line


def lines(stmt, depth):
    """List what a statement does."""
    indent = "  " * depth
    if isinstance(stmt, tirx.SeqStmt):
        return [line for part in stmt.seq for line in lines(part, depth)]
    if isinstance(stmt, s_tir.SBlockRealize):
        return lines(stmt.block.body, depth)
    if isinstance(stmt, tirx.AttrStmt):
        return lines(stmt.body, depth)
    if isinstance(stmt, tirx.For):
        if stmt.kind == tirx.ForKind.VECTORIZED:
            return [f"{line} {stmt.extent.value} elements" for line in lines(stmt.body, depth)]
        head = f"for {stmt.loop_var.name} in {stmt.extent}:"
        return [indent + short(head), *lines(stmt.body, depth + 1)]
    if isinstance(stmt, tirx.IfThenElse):
        then = lines(stmt.then_case, depth + 1)
        made = [indent + short(f"if {stmt.condition}:"), *then] if then else []
        if stmt.else_case is not None:
            made += [f"{indent}else:", *lines(stmt.else_case, depth + 1)]
        return made
    if isinstance(stmt, tirx.BufferStore):
        return [f"{indent}{stmt.buffer.name}[] = .."]
    if isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
        name = call_name(stmt.value)
        if name == "func_call":
            return [indent + short(stmt.value.args[0].value)]
        return [] if name == "address_of" else [indent + name]
    return []


outline(ring)

# %% [markdown]
# What if one group too many may be pending? On a GPU the copy would nearly always have arrived. The
# emulator does not guess: what nobody waited for is not there.

# %%
try:
    run(ring_kernel(STAGES, pending=STAGES - 1))
except EmulationError as error:
    mistake = str(error)
print(mistake)
assert "read before its copy was waited for" in mistake

# %% [markdown]
# ## 5. Tensor cores: `mma.sync`
#
# We are at half of what float32 arithmetic can do, and tensor cores do 15 times as much. Their
# instructions are rows of a table, `schedule/instructions`. A row says which matrices it
# multiplies, and where the elements lie: in registers of the 32 lanes of a warp, together.

# %%
from tvm_fusion.schedule.instructions.table import newest

row = newest("mma.sync", "float16", "float16")
print(row.name)
print(f"A is {row.m} x {row.k}, B is {row.k} x {row.n}, C is {row.m} x {row.n}; {row.lanes} lanes")


def holders(layout):
    """Tell which lane holds each element of a matrix."""
    found = np.full(layout.shape, -1)
    found[layout.place(np.arange(layout.lane_count)[:, None], np.arange(layout.per_lane))] = (
        np.arange(layout.lane_count)[:, None]
    )
    return found


print(holders(row.c))
assert (np.bincount(holders(row.c).ravel()) == row.c.per_lane).all()
ratio = DEVICE.peak_flops["float16"] / DEVICE.peak_flops["float32"]
assert 14 < ratio < 16

# %% [markdown]
# Numbers of lanes may be expressions of a kernel as well, so the row places the fragments of the
# smallest kernel: one warp, one instruction. In B's layout rows are of K, and our B has them along
# its columns.

# %%
from tvm_fusion.schedule.gpu.matrix.mma_sync import mma_fragments


def one_instruction():
    """Make a kernel of one warp that multiplies 16 x 16 by 16 x 8."""
    a, b = matrix("a", row.m, row.k), matrix("b", row.n, row.k)
    c = matrix("c", row.m, row.n, "float32")

    def of_lane(_, lane):
        a_frag = local("a_frag", [row.a.per_lane], "float16")
        b_frag = local("b_frag", [row.b.per_lane], "float16")
        acc = local("acc", [row.c.per_lane], "float32")

        def read(fragment, matrix, layout):
            return unrolled(
                "i",
                layout.per_lane,
                lambda i: tirx.BufferStore(fragment, load(matrix, [*layout.place(lane, i)]), [i]),
            )

        first = [load(x, [index(0)]) for x in (acc, a_frag, b_frag)]
        zero = tirx.const(0, "float32")
        stmts = [
            read(a_frag, a, row.a),
            read(b_frag, b, row.b.transposed),
            unrolled("i", row.c.per_lane, lambda i: tirx.BufferStore(acc, zero, [i])),
            mma_fragments("float16", "float16", *first),
            unrolled(
                "i",
                row.c.per_lane,
                lambda i: tirx.BufferStore(c, load(acc, [i]), [*row.c.place(lane, i)]),
            ),
        ]
        return block("warp", sequence(stmts), [a_frag, b_frag, acc])

    return kernel_of([a, b, c], 1, row.lanes, of_lane)


single = one_instruction()
outline(single)
x, w = A[: row.m, : row.k], B[: row.n, : row.k]
y = np.empty((row.m, row.n), "float32")
launch(single, [np.ascontiguousarray(x), np.ascontiguousarray(w), y], TARGET)
assert (abs(y - x.astype("float64") @ w.astype("float64").T) <= BOUND[: row.m, : row.n]).all()
print(f"{row.m * row.n * row.k} multiply-adds in one instruction of a warp, instead of {row.lanes}")

# %% [markdown]
# The whole GEMM with these is what the package generates, `schedule/contraction/mma`. It takes the
# product from a graph, so here is ours in Relax. `analyse` reads the group as one sum of products.

# %%
from tvm_fusion import transform
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.index.inline import inlined


def linear(m, n, k, has_epilogue=False):
    """Make a linear layer; with an epilogue it has a bias and a ReLU, and results of float16."""
    builder = relax.BlockBuilder()
    shapes = {"a": (m, k), "b": (n, k), "bias": (n,)}
    a, b, bias = (relax.Var(x, relax.TensorType(s, "float16")) for x, s in shapes.items())
    with builder.function("main", [a, b, bias] if has_epilogue else [a, b]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(b))
            result = relax.op.matmul(a, turned, "float16" if has_epilogue else "float32")
            if has_epilogue:
                biased = builder.emit(relax.op.add(builder.emit(result), bias))
                result = relax.op.nn.relu(biased)
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def read_product(module):
    """Read a module of one group as a sum of products."""
    with TARGET:
        module = transform.Legalize()(module)
    graph = Graph(module, module["main"], module["main"].body.blocks[0])
    program = Group(graph.operators).program
    return program, analyse(program, inlined(program))


program, product = read_product(linear(M, N, K))
print(f"{product.left} * {product.right}, sums of {product.dtype}")

# %% [markdown]
# A *configuration* is plain numbers: tile, warps, stages. `tile_gemm_configs` lists all that fit
# the device, for a tuner; the first is the one that a model of the clocks prefers. We take one with
# the tile that we had.

# %%
from tvm_fusion.schedule.contraction.gpu.space import KERNELS
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.mma.space import tile_gemm_configs


def chosen(configs, **numbers):
    """Find the first configuration with some numbers."""
    return next(c for c in configs if numbers.items() <= KERNELS.plain(c).items())


tile = {"block_m": BLOCK, "block_n": BLOCK, "block_k": TERMS, "stages": STAGES}
warps = {"warps_m": 2, "warps_n": 2, "warps_k": 1}
config = chosen(tile_gemm_configs(product, DEVICE), **tile, **warps, split_k=1)
mma = tile_gemm_gpu(program, config)
check("mma", mma)
outline(mma)

# %% [markdown]
# The ring is the one of step 4, 128 threads instead of 256, and the sums of a thread are its
# registers of eight C's. What is new:
#
# * `ldmatrix` loads four 8 x 8 matrices at once, as the row above places them. Four of them serve
#   eight products. While a warp multiplies 16 terms, it loads the next 16.
# * Eight lanes read 16 bytes of eight rows, which must lie in different banks. Rows of 64 bytes do
#   not, so that vectors of a row are exchanged by an XOR swizzle (`gpu/memory/swizzle.py`).
# * Behind the loop, sums go through shared memory, to be stored in vectors: that is step 7.

# %%
from tvm_fusion.schedule.gpu.memory.swizzle import BANKS, swizzle


def conflicts(vectors, is_swizzled):
    """Tell how often the fullest bank is read when eight rows are read at one vector."""
    places = [
        vectors * r + (int(swizzle(index(r), vectors)) if is_swizzled else 0) for r in range(8)
    ]
    return max(np.bincount([place % BANKS for place in places]))


print(f"rows as they are: {conflicts(4, False)} reads of a bank, swizzled: {conflicts(4, True)}")
assert (conflicts(4, False), conflicts(4, True)) == (4, 1)

assert config.threads == 128
assert config.accumulators == 8 * row.c.per_lane
warp_m, warp_n = config.tile.warp_m // row.m, config.tile.warp_n // row.n
loads = warp_m + warp_n // 2  # ldmatrix, for 16 terms
products = warp_m * warp_n
print(f"{products} mma and {loads} ldmatrix: ", end="")
print(f"{products * row.m * row.n * row.k // (products + loads)} multiply-adds an instruction")
print(f"16 multiply-adds and 8 loads: {16 * 32 // (16 + 8)} an instruction")

# %% [markdown]
# ## 6. Hopper: `wgmma`, TMA, and roles
#
# Fragments pass through registers, and each warp loads its own: the smaller its tile, the more
# often shared memory is read. How much of the tensor cores' arithmetic do its 128 bytes a clock
# feed? The clock follows from the peak of float32, 128 multiply-adds a clock.

# %%
clock = DEVICE.peak_flops["float32"] / DEVICE.sm_count / (2 * 128)
multiply_adds = DEVICE.peak_flops["float16"] / DEVICE.sm_count / 2 / clock


def share_of_tensor_cores(rows, columns):
    """Tell how much tensor cores reach if operands of such tiles come from shared memory."""
    bytes_each = 2 * (rows + columns) / (rows * columns)
    return min(1, 128 / (bytes_each * multiply_adds))


print(f"{clock / 1e9:.2f} GHz, {multiply_adds:,.0f} multiply-adds a clock and multiprocessor")
for rows, columns in ((32, 32), (64, 32), (64, 64), (64, 256)):
    print(f"tiles of {rows} x {columns}: {share_of_tensor_cores(rows, columns):.0%}")
assert share_of_tensor_cores(32, 32) < 0.6
assert share_of_tensor_cores(64, 256) == 1

# %% [markdown]
# `wgmma` is an instruction of a *warpgroup*: four warps, 64 rows, up to 256 columns. It reads both
# operands from shared memory by itself, and it is asynchronous: its groups are committed and waited
# for like those of `cp.async`. Its row has no layout of B, which never lies in registers.

# %%
wide = newest("wgmma", "float16", "float16")
print(
    f"{wide.m} x {wide.n} x {wide.k} of {wide.lanes} lanes; from shared memory: {wide.from_shared}"
)
assert wide.b is None
assert (holders(wide.c)[: row.m, : row.n] == holders(row.c)).all()  # C of a warp is that of mma
print(f"{wide.m * wide.n * wide.k // 4:,} multiply-adds for each of four warps' instructions")

# %% [markdown]
# Three more things come with it:
#
# * **TMA**: one thread asks for a whole box of a matrix, by a *tensor map* that the host encoded.
#   Addresses, edges and the swizzle are the hardware's work.
# * **mbarriers**: barriers in shared memory which also count bytes. `full[stage]` ends a phase when
#   a stage's bytes have arrived, `empty[stage]` when all warps that read it have said so.
# * **Roles**: a *producer* warpgroup copies and the *consumers* multiply. No barrier of the whole
#   block is left in the loop, and the producer gives registers that it does not need away.
#
# The grid is *persistent*: as many blocks as the device runs at once, each with several tiles, so
# the producer copies the next tile while consumers store results. Let our device have two
# multiprocessors, so that a block has more than one.

# %%
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs

SMALL_DEVICE = dataclasses.replace(DEVICE, sm_count=2)
TILE_OF_TWO = {"block_m": 128, "block_n": 64, "consumers": 2, "is_ping_pong": False}
config = chosen(wgmma_configs(product, SMALL_DEVICE), **TILE_OF_TWO)
hopper = wgmma_gemm_gpu(program, config)
check("wgmma", hopper)
outline(hopper)

# %% [markdown]
# Read it with the page at the top of `schedule/contraction/wgmma/roles.py`. In `ring[]` a role
# keeps its stage and the parity of its phase; the `if` behind it starts the next round.
#
# What a stage takes, and what the registers of a block are:

# %%
boxes = cuda_source(hopper).count("tvm_fusion_tma_load_2d(") - 1  # where it is defined
print(
    f"{config.tile.stage_bytes:,} bytes of a stage: {config.tile.stage_bytes // 16:,} cp.async,",
    end=" ",
)
print(f"or {boxes} boxes")
print(f"{config.tile.stages} stages: {config.shared_bytes:,} bytes of shared memory")
gives, takes = config.moved_registers
consumers, producers = config.consumers * wide.lanes, wide.lanes
whole = DEVICE.registers_per_block // (consumers + producers) // 8 * 8
print(f"{whole} registers for each thread, or {gives} of the producer and {takes} of a consumer")
assert gives * producers + takes * consumers <= DEVICE.registers_per_block
assert boxes == 2
assert int(config.blocks) == SMALL_DEVICE.sm_count < int(config.grid.tiles)
assert config.threads == 12 * DEVICE.warp_size
assert DEVICE.max_threads_per_sm == 64 * DEVICE.warp_size
assert config.tile.stages * config.tile.stage_bytes > 10 * needed

# %% [markdown]
# Only one block runs on a multiprocessor, 12 warps of 64: *occupancy* is low, and it does not
# matter. Warps are many to hide latency; here copies and products are asynchronous, and the bytes
# on their way are ten times those that memory needs.
#
# Such pipelines fail in other ways than by wrong results. `tests/emulator/wgmma_gemm.py` is a small
# one, to read in one go, with mistakes to plant. If consumers never say that a stage is empty:

# %%
from emulator.wgmma_gemm import Gemm

for mistake in ("", "no arrive", "no wait for full"):
    gemm = Gemm(M, N, K, mistake=mistake)
    try:
        print(mistake or "as it is", "->", end=" ")
        assert (abs(run(gemm.kernel()) - EXACT) <= BOUND).all()
        print("right")
    except EmulationError as error:
        print(error)
        assert mistake

# %% [markdown]
# ## 7. An epilogue
#
# A layer adds a bias and has an activation. As kernels of their own these read and write every
# element once more; with results of float16 that is


# %%
saved = 2 * 2 * LARGE**2 / DEVICE.memory_bandwidth
print(f"{saved * 1e6:.0f} us, of {FLOPS / DEVICE.peak_flops['float16'] * 1e6:.0f} us of products")

# %% [markdown]
# A thread has the sums in registers, so the rest is computed there. But which thread stores what?
# By the row, four lanes hold eight columns of a row of C, two each. Memory moves sectors of 32
# bytes, and a warp that stored its fragment as it is would fill half of each.
#
# So the four lanes exchange what they have of four C's, after which each has eight columns of one:
# a vector of 16 bytes, and the four have two whole sectors.

# %%
SECTOR = 32
run_bytes = row.c.lanes_per_row * row.c.run * 2
print(f"a fragment of C has {run_bytes} bytes of a row, four of them {4 * run_bytes}")
assert run_bytes == SECTOR // 2
assert 4 * run_bytes % SECTOR == 0

program, product = read_product(linear(M, N, K, has_epilogue=True))
config = chosen(wgmma_configs(product, SMALL_DEVICE), **TILE_OF_TWO)
fused = wgmma_gemm_gpu(program, config)
changes = difflib.unified_diff(lines(hopper.body, 0), lines(fused.body, 0), lineterm="", n=1)
print(*list(changes)[2:], sep="\n")

# %% [markdown]
# That is all that differs: the main loop is the same, and `transpose_quad`, the exchange among four
# lanes, was there before. A consumer loads the first vectors of the bias *before* its main loop, so
# that they have arrived when the sums are there. Results are rounded twice on their way, to float16
# as the graph has it: the product, and what the bias makes of it.

# %%
bias = rng.standard_normal(N).astype("float16")
result = run(fused, "float16", bias=bias)
expected = np.maximum(EXACT + bias.astype("float64"), 0)
error = abs(result - expected)
assert (error <= 2 * BOUND + 2.0**-11 * (abs(EXACT) + expected)).all()
kernels["epilogue"] = fused
print(f"right, the largest error is {error.max():.1e}")

source = cuda_source(fused)
stores = re.findall(r"\*\((\w+)\*\)\(compute_ptr", source)
assert stores
assert set(stores) == {"uint4"}  # 16 bytes each
print(f"{len(stores)} stores of 16 bytes in the code of a thread")

# %% [markdown]
# ## What the compiler makes of them
#
# With `nvcc` (or the `cuda` extra, which cannot tell registers), all of them become machine code.
# Registers, threads and shared memory say how many blocks fit a multiprocessor, and so how many of
# its 64 warps there are.

# %%
from tvm_fusion.deploy.toolchain.nvrtc import compile_with_nvrtc, nvrtc_lacks


def shared_bytes(kernel):
    """Add up the shared memory of a block."""
    owned = [b for o in find(kernel.body, s_tir.SBlock) for b in o.alloc_buffers]
    shared = [b for b in owned if b.scope().startswith("shared")]
    return sum(
        int(np.prod([int(d) for d in b.shape])) * np.dtype(str(b.dtype)).itemsize for b in shared
    )


def report(name, kernel, machine):
    """Print what a block takes, and how many warps are resident."""
    loops = [x for x in find(kernel.body, tirx.For) if x.thread_binding is not None]
    (count,) = {int(x.extent) for x in loops if x.thread_binding.thread_tag == "threadIdx.x"}
    room = {
        "threads": DEVICE.max_threads_per_sm // count,
        "registers": DEVICE.registers_per_block // (-(-machine.registers // 8) * 8 * count),
        "shared memory": DEVICE.shared_memory_per_sm // (shared_bytes(kernel) + 1024),
    }
    limit = min(room, key=room.get)
    print(
        f"{name:10}{count:4} threads of {machine.registers:3} registers,"
        f" {shared_bytes(kernel):7,} bytes: {room[limit] * count // 32:2} warps, by {limit}"
    )
    assert machine.spilled_bytes == 0


if shutil.which("nvcc"):
    machines = machine_code(kernels)
    for name, kernel in kernels.items():
        report(name, kernel, machines[name])
elif not nvrtc_lacks():
    cubin = compile_with_nvrtc(cuda_source(kernels), ["sm_90a"])
    print(f"{len(cubin):,} bytes of machine code")
else:
    print("neither nvcc nor the cuda extra is installed")
    assert "wgmma.mma_async" in cuda_source(kernels)

# %% [markdown]
# ## Which one is taken?
#
# All of these are right, and which is best depends on the shape: `mma.sync` has smaller tiles and
# takes operands that TMA cannot copy. The package estimates the clocks of every candidate of both
# spaces and takes the least; a tuner measures them. For the large layer:

# %%
from tvm_fusion.schedule.contraction.gpu.space import clocks

_, product = read_product(linear(LARGE, LARGE, LARGE, has_epilogue=True))
best = {
    "mma.sync": next(tile_gemm_configs(product, DEVICE)),
    "wgmma": next(wgmma_configs(product, DEVICE)),
}
for name, config in best.items():
    tile = f"{config.tile.block_m} x {config.tile.block_n}, {config.tile.stages} stages"
    print(f"{name}: {tile}, {config.shared_bytes:,} bytes, {clocks(config, DEVICE):,.0f} clocks")
assert clocks(best["wgmma"], DEVICE) < clocks(best["mma.sync"], DEVICE)

# %% [markdown]
# ## Where to go from here
#
# * The page of each folder in `schedule/contraction` says which file is which step; `mma/mainloop`
#   and `wgmma/roles` are the two loops that you saw.
# * `schedule/contraction/gpu/forms.py` is the table that decides for a group of operators;
#   `tvm-fusion explain MODEL --op NAME` prints it.
# * `schedule/instructions` has the rows of other processors, too: AMD's matrix cores, CPUs.
# * `tutorials/04_write_a_template` makes a template of a kernel,
#   `tutorials/06_tune_and_reuse_records` measures configurations.
