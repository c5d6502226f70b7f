"""CPUs' rows against Intel's definitions, against LLVM's assembler, and run where this CPU can."""

import re

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.schedule.instructions.registers import basis, drawn, held, name_of
from tvm_fusion._tvm.ir.bf16 import with_dot_bf16
from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import index
from tvm_fusion.device import parse
from tvm_fusion.schedule.instructions.cpu import CPU, SMALL_BITS, dot_of, multiply
from tvm_fusion.schedule.instructions.table import has
from tvm_fusion.schedule.instructions.tiles import multiply_tiles

HERE = parse("cpu")
DOTS = [row for row in CPU if row.family in ("dot", "maddubs", "sdot")]
TILES = [row for row in CPU if row.family == "amx"]
MNEMONICS = {"float32": "vfmadd", "int8": "vpdpbusd", "bfloat16": "vdpbf16ps", "int16": "pmaddwd"}
MNEMONICS |= {"maddubs": "pmaddubsw", "int8 signed": "sdot"}
REGISTERS = {4: "%xmm", 8: "%ymm", 16: "%zmm"}


def words_multiplied(row, a, b):
    """Sums of the instructions: for each word of A's row, of B's row of words, lane by lane."""
    group = row.k // 16 if row.family == "amx" else row.k
    a, b = a.reshape(row.m, -1, group), b.reshape(-1, row.n, group)
    sums = np.zeros((row.m, row.n), "int64")
    for m, n, word, byte in np.ndindex(row.m, row.n, a.shape[1], group):
        sums[m, n] += a[m, word, byte] * b[word, n, byte]
    return sums.reshape(1, -1)


@pytest.mark.parametrize("row", CPU, ids=name_of)
def test_memory_of_tiles_and_vectors(row):
    a, b = basis(row.m, row.k), basis(row.k, row.n)
    sums = words_multiplied(row, held(row.a, a), held(row.b, b))
    np.testing.assert_array_equal(held(row.c, a @ b), sums)


def vector(dtype, lanes):
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def dot_kernel(row):
    """Load what the registers hold, add the product to sums, and store them."""
    sides = ((row.a, row.a_types[0], "a"), (row.b, row.b_types[0], "b"), (row.c, row.sums, "c"))
    buffers = [declare([x.per_lane], dtype, name) for x, dtype, name in sides]

    def whole(buffer):
        count = int(buffer.ty.shape[0])
        at = index(0) if count == 1 else tirx.Ramp(index(0), index(1), count)
        return tirx.BufferLoad(buffer, [at])

    word = "float32" if row.kind == "float32" else "int32"
    a, b, c = (whole(x) for x in buffers)
    a = tirx.Broadcast(tirx.reinterpret(word, a) if row.k > 1 else a, row.n)
    b = tirx.reinterpret(vector(word, row.n), b) if row.k > 1 else b
    body = tirx.BufferStore(buffers[2], multiply(row, a, b, c), c.indices)
    body = with_dot_bf16(body, row.n) if row.kind == "bfloat16" else body
    return tirx.PrimFunc(buffers, body).with_attrs({"global_symbol": "main", "s_tir": True})


def built(func, spec):
    mod = tvm.IRModule({"main": func})
    return tvm.tirx.build(mod, spec.tvm_target(), pipeline="tvm_fusion")


@pytest.mark.parametrize("row", DOTS, ids=name_of)
def test_vectors_in_assembly(row):
    # With VNNI, LLVM has another instruction for sums of pairs.
    names = ("nehalem", "haswell", "skylake-avx512", "sapphirerapids", "znver4", "neoverse-n1")
    specs = (parse(f"cpu:{name}") for name in names)
    spec = next(s for s in specs if has(s.device, row))
    text = built(dot_kernel(row), spec).inspect_source("asm")
    mnemonic = MNEMONICS.get(row.family) or MNEMONICS[row.kind]
    registers = "v[0-9]" if row.family == "sdot" else REGISTERS[row.n]
    assert re.search(rf"{mnemonic}\w*\s.*{registers}", text)


@pytest.mark.parametrize("row", DOTS, ids=name_of)
def test_vectors_multiply(row):
    if not has(HERE.device, row):
        pytest.skip("not an instruction of this CPU")
    rng = np.random.default_rng()
    a, b = drawn(rng, row.a_types[0], (1, row.k)), drawn(rng, row.b_types[0], (row.k, row.n))
    if row.family == "maddubs":  # sums of pairs of larger ones saturate
        a = a % (1 << SMALL_BITS)
    c = drawn(rng, row.sums, (1, row.n))
    given = [tvm.runtime.tensor(held(*x)[0]) for x in ((row.a, a), (row.b, b), (row.c, c))]
    built(dot_kernel(row), HERE)["main"](*given)
    expected = c + a.astype("float64") @ b.astype("float64")
    np.testing.assert_array_equal(given[2].numpy(), held(row.c, expected)[0])


@pytest.mark.parametrize("row", TILES, ids=name_of)
def test_tiles_in_assembly(row):
    """C is tile 0, A tile 1, B tile 2; the assembler's order is that of the manual, reversed."""
    func = tirx.PrimFunc([], multiply_tiles(row, 1, 2, 0))
    func = func.with_attrs({"global_symbol": "main", "s_tir": True})
    text = built(func, parse("cpu:graniterapids")).inspect_source("asm")
    assert re.search(rf"{row.name.split('.')[-1]}\s+%tmm2, %tmm1, %tmm0", text)


def test_dot_products_by_their_width():
    assert dot_of("uint8", "int8", 8) is next(r for r in DOTS if r.kind == "int8" and r.n == 8)
