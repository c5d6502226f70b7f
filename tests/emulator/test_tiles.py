"""The interpreter of tile instructions against exact sums, this CPU's own tiles, and mistakes."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from emulator.tiles import TILES, TileMistake, tiles_of
from tvm.script import tirx as T

from tvm_fusion.device import parse

ROWS = 16
PRODUCTS = {
    "tdpbf16ps": ("bfloat16", "bfloat16", "float32"),
    "tdpfp16ps": ("float16", "float16", "float32"),
    "tdpbssd": ("int8", "int8", "int32"),
    "tdpbsud": ("int8", "uint8", "int32"),
    "tdpbusd": ("uint8", "int8", "int32"),
    "tdpbuud": ("uint8", "uint8", "int32"),
}


def call(name, *args):
    return T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


def kernel(name, tiles=(0, 1, 2), last=("tilerelease",)):
    """C, A and B in tiles, C += A B, all of them stored where C was and behind it."""
    number = [T.uint8(tile) for tile in tiles]

    @T.prim_func
    def main(config: T.handle, a: T.handle, b: T.handle, c: T.handle):
        Config = T.match_buffer(config, (64,), "uint8")
        A = T.match_buffer(a, (1024,), "uint8")
        B = T.match_buffer(b, (1024,), "uint8")
        C = T.match_buffer(c, (3, 1024), "uint8")
        call("ldtilecfg", T.address_of(Config[0]))
        call("tileloadd64", number[0], T.address_of(C[0, 0]), T.int64(64))
        call("tileloadd64", number[1], T.address_of(A[0]), T.int64(64))
        call("tileloadd64", number[2], T.address_of(B[0]), T.int64(64))
        call(name, *number)
        call("tilestored64", number[0], T.address_of(C[0, 0]), T.int64(64))
        call("tilestored64", number[1], T.address_of(C[1, 0]), T.int64(64))
        call("tilestored64", number[2], T.address_of(C[2, 0]), T.int64(64))
        call(*last)

    return main.with_attrs({"global_symbol": "main"})


def built(func, target):
    return tvm.tirx.build(tvm.IRModule({"main": func}), parse(target).tvm_target())


def config(*shapes):
    """A configuration of the first tiles, as rows and bytes of each."""
    array = np.zeros(64, "uint8")
    array[0] = 1
    for tile, (rows, bytes_) in enumerate(shapes):
        array[16 + 2 * tile], array[48 + tile] = bytes_, rows
    return array


def shapes(m=ROWS, n=16, words=16):
    return (m, 4 * n), (m, 4 * words), (words, 4 * n)


def run(func, configuration, a, b, c, target=TILES):
    memory = np.zeros((3, 1024), "uint8")
    memory[0] = c.reshape(-1).view("uint8")
    given = configuration, a.reshape(-1).view("uint8"), b.reshape(-1).view("uint8"), memory
    tensors = [tvm.runtime.tensor(x) for x in given]
    built(func, target)["main"](*tensors)
    return tensors[-1].numpy()


def multiplied(tiles, name, configuration, a, b, c):
    """The tiles behind a product, natively as well where this CPU has the instruction."""
    target, feature = tiles_of(PRODUCTS[name][0])
    return tiles.run(lambda: run(kernel(name), configuration, a, b, c, target), feature)


def drawn(rng, dtype, count):
    """Every bit pattern, but no NaN: its bits are the CPU's."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = rng.integers(0, 1 << 8 * kind.itemsize, count).astype(f"u{kind.itemsize}").view(kind)
    if kind.kind in "iu":
        return bits
    with np.errstate(invalid="ignore"):  # of NaN that signal
        return np.where(np.isfinite(bits), bits, kind.type(0))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("shape", [(16, 16, 16), (5, 7, 11)])
def test_products(tiles, name, shape):
    """Small numbers, of which every sum is exact; what lies beyond the shapes stays."""
    rng, (m, n, words) = np.random.default_rng(), shape
    a_type, b_type, c_type = PRODUCTS[name]
    group = 4 // np.dtype(getattr(ml_dtypes, a_type, a_type)).itemsize
    a, b = (
        rng.integers(0 if t == "uint8" else -9, 9, (ROWS, 16 * group)).astype(
            getattr(ml_dtypes, t, t)
        )
        for t in (a_type, b_type)
    )
    c = rng.integers(-9, 9, (ROWS, 16)).astype(c_type)
    found = multiplied(tiles, name, config(*shapes(m, n, words)), a, b, c)
    left = a[:m, : words * group].astype("int64")
    right = b[:words, : n * group].reshape(words, n, group).astype("int64")
    right = right.transpose(0, 2, 1).reshape(words * group, n)
    expected = c.copy()
    expected[:m, :n] += (left @ right).astype(c_type)
    np.testing.assert_array_equal(found[0].view(c_type).reshape(16, 16), expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_all_numbers(tiles, name):
    """As this CPU rounds, flushes and wraps; the interpreter alone passes on another."""
    rng = np.random.default_rng()
    a_type, b_type, c_type = PRODUCTS[name]
    for m, n, words in ((16, 16, 16), (3, 5, 4)):
        counts = (1024 // np.dtype(getattr(ml_dtypes, t, t)).itemsize for t in PRODUCTS[name])
        a, b, c = map(drawn, 3 * [rng], (a_type, b_type, c_type), counts)
        if name == "tdpbf16ps":  # exponents near each other, near zero: sums round and vanish
            a, b = ((x.view("u2") & 0x9FFF).view(x.dtype) for x in (a, b))
            c = (c.view("u4") & 0x80FFFFFF).view(c.dtype)
        multiplied(tiles, name, config(*shapes(m, n, words)), a, b, c)


@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpfp16ps"])
def test_subnormal_halves(tiles, name):
    """Those of bfloat16 are zero, those of float16 are numbers."""
    kind = np.dtype(getattr(ml_dtypes, PRODUCTS[name][0], PRODUCTS[name][0]))
    least = np.array([1], "uint16").view(kind)
    a, b = np.zeros((ROWS, 32), kind), np.zeros((ROWS, 32), kind)
    a[0, 0], b[0, 0] = least[0], 1
    found = multiplied(tiles, name, config(*shapes()), a, b, np.zeros((ROWS, 16), "float32"))
    assert found[0].view("float32")[0] == (float(least[0]) if name == "tdpfp16ps" else 0)


def mistaken(tiles, func, configuration):
    zeros = np.zeros(1024, "uint8")
    with tiles.interpreted():
        run(func, configuration, zeros, zeros, zeros)


BAD_CONFIGS = {
    "palette 2": (0, 2),
    "start row 1": (1, 1),
    "reserved byte 7": (7, 1),
    "reserved byte 40": (40, 1),
    "68 bytes a row of tile 0": (16, 68),
    "17 rows of tile 1": (49, 17),
    "0 rows of 64 bytes of tile 2": (50, 0),
}


@pytest.mark.parametrize("message", BAD_CONFIGS)
def test_configurations_that_a_cpu_refuses(tiles, message):
    at, value = BAD_CONFIGS[message]
    array = config(*shapes())
    array[at] = value
    with pytest.raises(TileMistake, match=message):
        mistaken(tiles, kernel("tdpbf16ps"), array)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((16, 64), (15, 64), (16, 64)), "16 rows of C, 15 of A"),
        (((16, 64), (16, 64), (16, 60)), "16 columns of C, 15 of B"),
        (((16, 64), (16, 32), (16, 64)), "K is 8 in A, 16 in B"),
        (((16, 64), (16, 62), (16, 64)), "62 bytes a row of tile 1"),
        (((16, 64), (16, 64)), "tileloadd: tile 2 is not configured"),
    ],
)
def test_shapes_that_do_not_fit(tiles, given, message):
    with pytest.raises(TileMistake, match=message):
        mistaken(tiles, kernel("tdpbf16ps"), config(*given))


def test_a_product_into_its_operand(tiles):
    with pytest.raises(TileMistake, match="tiles 0, 1 and 1 are not three"):
        mistaken(tiles, kernel("tdpbssd", (0, 1, 1)), config(*shapes()))


def test_tiles_that_are_not_configured(tiles):
    with pytest.raises(TileMistake, match="tileloadd where no tiles are configured"):
        mistaken(tiles, kernel("tdpbf16ps"), np.zeros(64, "uint8"))


def test_tiles_that_are_not_released(tiles):
    func = kernel("tdpbf16ps", last=("tilezero", T.uint8(0)))
    with pytest.raises(TileMistake, match="returned without tilerelease"):
        mistaken(tiles, func, config(*shapes()))


def test_kernels_without_tiles(tiles):
    with pytest.raises(TileMistake, match="no tiles were multiplied"), tiles.interpreted():
        pass
