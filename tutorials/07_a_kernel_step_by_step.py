# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
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
# The first four we write ourselves, out of parts of this package; the last three are the kernels
# that it generates, and we read them. No GPU is needed: an emulator runs the threads of every
# kernel on the CPU, compares nothing but *checks*: it knows what barriers and copies order, and
# fails on a race that a GPU would show once in a thousand runs. Then CUDA's text is generated for
# `sm_90a` (an H100), and compiled where there is an `nvcc`.
#
# You should know what blocks, threads and shared memory are. Run it from a checkout, since the
# emulator is part of the tests: as a notebook, or by
# `python tutorials/07_a_kernel_step_by_step.py`.

# %%
import dataclasses
import re
import shutil
import sys
from pathlib import Path

import numpy as np
from tvm import ir, relax, s_tir, tirx
from tvm.script import ir as I
from tvm.script import relax as R
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


def check(name, kernel):
    """Run a kernel in the emulator, compare its result, and remember it for the end."""
    result = np.full((M, N), np.nan, "float32")
    launch(kernel, [A, B, result], TARGET)
    assert (abs(result - EXACT) <= BOUND).all()
    kernels[name] = kernel
    print(f"{name}: right, the largest error is {abs(result - EXACT).max():.1e}")


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
    for block in T.thread_binding(M * N // 256, thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("element"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                i: T.let[T.int64] = T.int64(block * 256 + t) // N
                j: T.let[T.int64] = T.int64(block * 256 + t) % N
                c[i, j] = T.float32(0)
                for k in range(K):
                    c[i, j] = c[i, j] + T.float32(a[i, k]) * T.float32(b[j, k])


check("1 plain", plain)

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
    for block in T.thread_binding(M * N // (TILE * TILE), thread="blockIdx.x"):
        for t in T.thread_binding(TILE * TILE, thread="threadIdx.x"):
            with T.sblock("tile"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                a_tile = T.sblock_alloc_buffer((TILE, TILE), "float16", scope="shared")
                b_tile = T.sblock_alloc_buffer((TILE, TILE), "float16", scope="shared")
                total = T.sblock_alloc_buffer((2,), "float32", scope="local")
                row: T.let[T.int64] = T.int64(block) // (N // TILE) * TILE
                column: T.let[T.int64] = T.int64(block) % (N // TILE) * TILE
                total[0] = T.float32(0)
                for k_tile in range(K // TILE):
                    a_tile[t // TILE, t % TILE] = a[row + t // TILE, k_tile * TILE + t % TILE]
                    b_tile[t // TILE, t % TILE] = b[column + t // TILE, k_tile * TILE + t % TILE]
                    for k in range(TILE):
                        total[0] = total[0] + T.float32(a_tile[t // TILE, k]) * T.float32(
                            b_tile[t % TILE, k]
                        )
                c[row + t // TILE, column + t % TILE] = total[0]


check("2 tiles", tiled)
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
assert share_of_arithmetic(REGISTERS, REGISTERS) == 1 / 2


# %%
@T.prim_func(s_tir=True)
def in_registers(
    a: T.Buffer((M, K), "float16"),
    b: T.Buffer((N, K), "float16"),
    c: T.Buffer((M, N), "float32"),
):
    for block in T.thread_binding(M * N // (BLOCK * BLOCK), thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("tile"):
                T.reads(a[0:M, 0:K], b[0:N, 0:K])
                T.writes(c[0:M, 0:N])
                a_tile = T.sblock_alloc_buffer((BLOCK, TERMS), "float16", scope="shared")
                b_tile = T.sblock_alloc_buffer((BLOCK, TERMS), "float16", scope="shared")
                a_own = T.sblock_alloc_buffer((REGISTERS,), "float32", scope="local")
                b_own = T.sblock_alloc_buffer((REGISTERS,), "float32", scope="local")
                total = T.sblock_alloc_buffer((REGISTERS, REGISTERS), "float32", scope="local")
                row: T.let[T.int64] = T.int64(block) // (N // BLOCK) * BLOCK
                column: T.let[T.int64] = T.int64(block) % (N // BLOCK) * BLOCK
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


check("3 registers", in_registers)
