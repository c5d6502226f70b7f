"""AMD's rows against what its guides say of registers, and against LLVM's assembler.

An interpreter here knows an instruction as its manual tells it: which lane and which of its
registers hold an element of A, of B and of C. The table says the same from the other end.
"""

import re

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.schedule.instructions.registers import basis, held, name_of
from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import block, index, threads
from tvm_fusion.deploy.toolchain.rocm import rocm_toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.instructions.amd import AMD, multiply
from tvm_fusion.schedule.instructions.table import has


def operand_places(row):
    """Lane and item of each element ``[row, k]`` of A; of B ``[column, k]`` lies the same."""
    i, k = np.indices((row.m, row.k))
    return (
        (i, k) if row.family == "wmma" else (i + row.m * (k // row.a.per_lane), k % row.a.per_lane)
    )


def sum_places(row):
    """Lane and item of each element of C."""
    i, j = np.indices((row.m, row.n))
    if row.family == "wmma":
        return j + 16 * (i % 2), i // 2
    if row.m == 16:
        return j + 16 * (i // 4), i % 4
    return j + 32 * (i // 4 % 2), i % 4 + 4 * (i // 8)


def interpreted(row, a, b):
    """Registers of ``[lane, item]`` of A and of B multiplied, as a wave does."""
    places = operand_places(row)
    product = a[places].astype("float64") @ b[places].astype("float64").T
    c = np.full((row.lanes, row.c.per_lane), np.nan)
    c[sum_places(row)] = product
    return c


@pytest.mark.parametrize("row", AMD, ids=name_of)
def test_a_wave_multiplies(row):
    a, b = basis(row.m, row.k), basis(row.k, row.n)
    found = interpreted(row, held(row.a, a), held(row.b, b))
    np.testing.assert_array_equal(found, held(row.c, a @ b))


@pytest.mark.parametrize("row", [r for r in AMD if r.family == "wmma"], ids=name_of)
def test_halves_of_a_wave_hold_the_same(row):
    """The hardware reads both."""
    for layout, matrix in ((row.a, basis(16, 16)), (row.b, basis(16, 16))):
        registers = held(layout, matrix)
        np.testing.assert_array_equal(registers[:16], registers[16:])


def kernel(row, a_dtype, b_dtype):
    """A wave whose lanes load their registers, multiply and store."""
    sides = ((row.a, a_dtype, "a"), (row.b, b_dtype, "b"), (row.c, row.sums, "c"))
    buffers = [declare([row.lanes, x.per_lane], dtype, name) for x, dtype, name in sides]

    def lane(t):
        ats = [
            tirx.Ramp(index(0), index(1), x.per_lane) if x.per_lane > 1 else index(0)
            for x, _, _ in sides
        ]
        given = [tirx.BufferLoad(x, [t, at]) for x, at in zip(buffers, ats, strict=True)]
        return tirx.BufferStore(buffers[2], multiply(row, *given), [t, ats[2]])

    grid = threads("blockIdx.x", 1, lambda _: threads("threadIdx.x", row.lanes, lane))
    func = tirx.PrimFunc(buffers, block("root", grid))
    return func.with_attrs({"global_symbol": "main", "s_tir": True})


def mnemonic(row, a_dtype, b_dtype):
    """AMD's name, in the guides."""
    if row.kind == "float8":
        short = {"float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "bf8"}
        types = f"_{short[a_dtype]}_{short[b_dtype]}"
    else:
        types = {"float32": "_f32", "float16": "_f16", "bfloat16": "_bf16", "tfloat32": "_xf32"}
        types = types.get(row.kind, "_iu8" if row.family == "wmma" else "_i8")
        types = "i8" if row.name.endswith(("x8i8", "x16i8")) else types  # of CDNA2
    sums = {"float32": "f32", "int32": "i32"}[row.sums]
    return f"v_{row.family}_{sums}_{row.m}x{row.n}x{row.k}{types}"


@pytest.mark.rocm_toolchain
@pytest.mark.parametrize("row", [r for r in AMD if r.lanes > 1], ids=name_of)
def test_assembly(row):
    archs = ("gfx942", "gfx90a", "gfx1100")
    spec = next(s for s in (parse(f"rocm:{a}") for a in archs) if has(s.device, row))
    for a_dtype, b_dtype in zip(row.a_types, reversed(row.b_types), strict=True):
        mod = tvm.IRModule({"main": kernel(row, a_dtype, b_dtype)})
        with rocm_toolchain([spec.device.arch]):
            built = tvm.compile(mod, target=spec.tvm_target())
        (line,) = re.findall(r"v_\w*mma_.*|v_mfma_.*", built.mod.imports[0].inspect_source("asm"))
        assert line.split()[0] == mnemonic(row, a_dtype, b_dtype)
        signed = [int(a == "int8" and row.family == "wmma") for a in (a_dtype, b_dtype)]
        assert ("neg_lo:[{},{},0]".format(*signed) in line) == any(signed)
