"""GEMM on tile registers (AMX): tails of rows, columns and K, copies of A, norms, passes over K."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from emulator.tiles import TILES
from group_kernels import group, kernel
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax, tirx

from tests.schedule.contraction.ragged_graphs import drawn as ragged
from tests.schedule.contraction.ragged_graphs import ends_of, expected, experts
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction, CpuContractionDetails
from tvm_fusion.schedule.contraction.cpu.templates.norm import NormGemm
from tvm_fusion.schedule.contraction.cpu.tile_product import TileProduct

pytestmark = pytest.mark.slow_beyond(3)

op = relax.op
BF16 = ml_dtypes.bfloat16
m = tirx.Var("m", "int64")


CPU = parse(TILES)


def tensor(name, *shape, dtype="bfloat16"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def drawn(*shape):
    return np.random.default_rng().standard_normal(shape).astype(BF16)


def results(tiles, params, result, *inputs):
    """Results of a whole graph, through all stages: constants are packed."""

    def call():
        target = CPU.tvm_target()
        with target:
            mod = main_module(params, lambda emit, *_: result(emit))
            built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
        run = relax.VirtualMachine(built, tvm.cpu())["main"]
        return [run(*map(tvm.runtime.tensor, arrays)).numpy() for arrays in inputs]

    return tiles.run(call)


def called(tiles, func, *inputs, shape, dtype="float32"):
    """What a kernel stores, for each of several lists of inputs."""

    def call():
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        built = tvm.tirx.build(mod, CPU.tvm_target(), pipeline="tvm_fusion")
        found = []
        for arrays in inputs:
            found.append(tvm.runtime.tensor(np.zeros(shape, dtype)))
            built["main"](*map(tvm.runtime.tensor, arrays), found[-1])
        return [one.numpy() for one in found]

    return tiles.run(call)


def assert_product(found, a, b):
    """Products of halves are exact in float32, sums round; AMX adds two at a time."""
    a, b = a.astype("float64"), b.astype("float64")
    assert_sums_close(found, a @ b, np.abs(a) @ np.abs(b), a.shape[-1])


ROWS = (1, 15, 17, 33, 70, 300)
SHAPES = {
    "whole steps of K": (96, 70),
    "a rest of K": (99, 48),
    "an odd K of even steps": (40, 33),
    "one panel of one column": (64, 33),
    "fewer columns than a tile": (2, 5),
    "passes over K": (1100, 130),
}


@pytest.mark.parametrize("case", SHAPES)
def test_symbolic_rows(tiles, case):
    """One kernel for any number of rows, with a packed weight."""
    k, n = SHAPES[case]
    x, w = tensor("x", m, k), drawn(k, n)
    given = [drawn(rows, k) for rows in ROWS]

    def product(emit):
        return op.matmul(x, relax.const(w), out_dtype="float32")

    for a, found in zip(given, results(tiles, [x], product, *([a] for a in given)), strict=True):
        assert_product(found, a, w)


@pytest.mark.parametrize(
    ("rows", "k", "n"), [(33, 70, 64), (9, 96, 40), (50, 1100, 130), (17, 160, 16), (197, 64, 32)]
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_static_rows(tiles, rows, k, n, is_constant):
    x, w, a, b = tensor("x", rows, k), tensor("w", k, n), drawn(rows, k), drawn(k, n)
    right = relax.const(b) if is_constant else w
    params = [x] if is_constant else [x, w]
    given = [a] if is_constant else [a, b]
    (found,) = results(tiles, params, lambda _: op.matmul(x, right, out_dtype="float32"), given)
    assert_product(found, a, b)


def test_batches_and_transposed_operands(tiles):
    """A's rows are columns of its memory, and B's columns are rows of its memory."""
    x, w, a, b = tensor("x", 3, 40, 37), tensor("w", 3, 41, 40), drawn(3, 40, 37), drawn(3, 41, 40)

    def product(emit):
        left, right = (emit(op.permute_dims(v, [0, 2, 1])) for v in (x, w))
        return op.matmul(left, right, out_dtype="float32")

    (found,) = results(tiles, [x, w], product, [a, b])
    for i in range(3):
        assert_product(found[i], a[i].T, b[i].T)


def test_small_products_stay_in_vectors():
    """Shaping tiles takes longer than they do."""
    for rows, is_tiled in ((4, False), (64, True)):
        params = [tensor("x", rows, 64), tensor("w", 64, 32)]
        members = group(params, lambda emit, x, w: op.matmul(x, w, out_dtype="float32"), CPU)
        claim = CpuContraction().claim(members, CPU.device)
        dot = claim.details_as(CpuContractionDetails).config.gemm.dot
        assert isinstance(dot, TileProduct) == is_tiled
        assert claim.matrix_dtype == ("bfloat16" if is_tiled else "")


def test_results_of_a_tile_are_stored_among_the_products_of_the_next_one():
    params = [tensor("x", 96, 64), tensor("w", 64, 32)]
    product = group(params, lambda emit, x, w: op.matmul(x, w, out_dtype="float32"), CPU)
    _, func = kernel(CpuContraction(), product, CPU)
    products = [node for node in find(func.body, tirx.For) if node.loop_var.name == "k"]
    stored = [s for node in products for s in find(node, tirx.BufferStore)]
    assert any(s.buffer.same_as(func.params[-1]) for s in stored)


def test_symbolic_k(tiles):
    k = tirx.Var("k", "int64")
    x, w = tensor("x", 19, k), tensor("w", k, 50)
    given = [(drawn(19, terms), drawn(terms, 50)) for terms in (1, 31, 64, 700)]
    found = results(tiles, [x, w], lambda _: op.matmul(x, w, out_dtype="float32"), *given)
    for (a, b), one in zip(given, found, strict=True):
        assert_product(one, a, b)


def test_epilogue_rounds_once(tiles):
    """Bias and residual are added in float32, and the result is rounded to bfloat16."""
    x, y, a, r = tensor("x", 109, 64), tensor("y", 109, 100), drawn(109, 64), drawn(109, 100)
    w, bias = drawn(64, 100), drawn(100)

    def body(emit):
        total = emit(op.matmul(x, relax.const(w), out_dtype="float32"))
        other = emit(op.add(op.astype(y, "float32"), op.astype(relax.const(bias), "float32")))
        return op.astype(op.nn.relu(emit(op.add(total, other))), "bfloat16")

    found = results(tiles, [x, y], body, [a, r])[0].astype("float64")
    wide = [v.astype("float64") for v in (a, w, r, bias)]
    exact = np.maximum(wide[0] @ wide[1] + wide[2] + wide[3], 0)
    # Half a unit in the last place, and what the sums may be off.
    size = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2]) + np.abs(wide[3])
    assert (np.abs(found - exact) <= 2.0**-8 * np.abs(exact) + 70 * 2.0**-24 * size).all()


@pytest.mark.parametrize("k", [64, 72])
def test_norm_in_front(tiles, k):
    """Tasks normalize rows, round them to bfloat16, and multiply them in tiles."""
    params = [tensor("x", 37, k), tensor("w", k, 40)]

    def body(emit, x, w):
        ones, zeros = (relax.const(np.full(k, v, BF16)) for v in (1, 0))
        y = emit(op.nn.layer_norm(x, ones, zeros, axes=[-1]))
        return op.matmul(y, w, out_dtype="float32")

    claim, func = kernel(NormGemm(), group(params, body, CPU), CPU)
    assert isinstance(claim.details_as(object).config.gemm.dot, TileProduct)
    a, b = drawn(37, k), drawn(k, 40)
    given = {"x": a, "w": b}
    members = claim.group.inputs
    arrays = [given[v.name] if v.constant is None else v.constant.value.numpy() for v in members]
    (found,) = called(tiles, func, arrays, shape=(37, 40))
    wide = a.astype("float64")
    y = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    size = np.abs(y) @ np.abs(b.astype("float64"))
    exact = y @ b.astype("float64")
    assert (np.abs(found - exact) <= (2.0**-8 * 1.01 + k * 2.0**-23) * size).all()


BYTES = {"int8": (-128, 127), "uint8": (0, 255)}


@pytest.mark.parametrize("left", BYTES)
@pytest.mark.parametrize("right", BYTES)
def test_bytes_are_exact(tiles, left, right):
    """Of either sign, without compensation; all sums of extreme values."""
    rng = np.random.default_rng()
    x = tensor("x", m, 83, dtype=left)
    w = rng.choice(BYTES[right], (83, 45)).astype(right)
    given = [
        rng.integers(*BYTES[left], (rows, 83), endpoint=True).astype(left) for rows in (1, 19, 70)
    ]

    def product(emit):
        return op.matmul(x, relax.const(w), out_dtype="int32")

    for a, found in zip(given, results(tiles, [x], product, *([a] for a in given)), strict=True):
        np.testing.assert_array_equal(found, a.astype("int32") @ w.astype("int32"))


@pytest.mark.slow
def test_every_configuration_is_right(tiles):
    params = [tensor("x", 70, 160), tensor("w", 160, 72)]

    def body(emit, x, w):
        return op.matmul(x, w, out_dtype="float32")

    template, members = CpuContraction(), group(params, body, CPU)
    claim = template.claim(members, CPU.device)
    every = list(template.configs(claim, CPU.device))
    assert len(every) > 5
    a, b = drawn(70, 160), drawn(160, 72)
    for number in range(0, len(every), max(1, len(every) // 12)):
        chosen = template.configure(claim, every[number], CPU.device)
        (made,) = template.emit(chosen, CPU.tvm_target()).kernels
        (found,) = called(tiles, made.func, [a, b], shape=(70, 72))
        assert_product(found, a, b)


def test_gate_and_up_are_columns_of_one_product(tiles):
    """A column split: panels interleave both parts, whose product is rounded once."""
    x, w, a = tensor("x", 37, 64), drawn(64, 96), drawn(37, 64)

    def body(emit):
        both = emit(op.matmul(x, relax.const(w), out_dtype="float32"))
        gate, up = (
            emit(op.strided_slice(both, [1], [first], [first + 48], assume_inbound=True))
            for first in (0, 48)
        )
        return op.multiply(emit(op.nn.relu(gate)), up)

    (found,) = results(tiles, [x], body, [a])
    wide, size = a.astype("float64"), np.abs(a.astype("float64")) @ np.abs(w.astype("float64"))
    exact = wide @ w.astype("float64")
    gate, up = np.maximum(exact[:, :48], 0), exact[:, 48:]
    bound = 66 * 2.0**-23 * (np.abs(gate) * size[:, 48:] + np.abs(up) * size[:, :48])
    assert (np.abs(found - gate * up) <= bound + 1e-30).all()


def test_parts_of_a_concatenation_and_small_products(tiles):
    """Several products in one kernel, each between its own shapes of the tiles."""
    x, y, w, v = tensor("x", 19, 64), tensor("y", 19, 40), drawn(64, 33), drawn(40, 48)
    a, b = drawn(19, 64), drawn(19, 40)

    def body(emit):
        pairs = ((x, w), (y, v))
        parts = [emit(op.matmul(p, relax.const(q), out_dtype="float32")) for p, q in pairs]
        return op.concat(parts, 1)

    (found,) = results(tiles, [x, y], body, [a, b])
    assert_product(found[:, :33], a, w)
    assert_product(found[:, 33:], b, v)


@pytest.mark.slow
def test_ragged_rows(tiles):
    """Groups of rows, each with its own matrix; the last ones are of none."""
    params, body = experts(157, 4, 51, 83, None, dtype="bfloat16")
    claim, func = kernel(CpuContraction(), group(params, body, CPU), CPU)
    assert isinstance(claim.details_as(CpuContractionDetails).config.gemm.dot, TileProduct)
    inputs = [ragged(params, ends) for ends in ends_of(157)]
    arrays = [[given[v.name] for v in claim.group.inputs] for given in inputs]
    dtype = claim.group.outputs[0].dtype
    found = called(tiles, func, *arrays, shape=(157, 83), dtype=dtype)
    for given, one in zip(inputs, found, strict=True):
        exact = expected(None, **given)[0]
        assert np.abs(one.astype("float64") - exact).max() <= 2.0**-7 * np.abs(exact).max()


@pytest.mark.parametrize(("depth", "copies"), [(1024, True), (768, False)])
def test_rows_that_share_cache_sets_are_copied(depth, copies):
    """Rows at a distance of 2 KB are in two of the level-1 cache's sets, of 1.5 KB in eight."""
    weight = np.ones((depth, 4096), BF16)

    def times(emit, x):
        return emit(op.matmul(x, relax.const(tvm.runtime.tensor(weight)), out_dtype="float32"))

    members = group([tensor("x", 64, depth)], times, CPU)
    text = kernel(CpuContraction(), members, CPU)[1].script()
    assert ("rows = T.sblock_alloc_buffer" in text) == copies
