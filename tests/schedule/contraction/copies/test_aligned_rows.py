"""GEMMs of unaligned rows: copies to aligned ones, then TMA and wgmma."""

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA, arrays, group, run_all
from rounding import assert_products_close
from tvm import relax

from tests.schedule.contraction.gemm_graphs import contraction_of, product, with_epilogue
from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.schedule.contraction.copies.aligned_rows import aligned_rows, pad_rows
from tvm_fusion.schedule.contraction.gpu import tile_forms as tile_choice
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaConfig
from tvm_fusion.schedule.contraction.wgmma.model import wgmma_clocks
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config

op = relax.op
TEMPLATE, TARGET = GpuContraction(), CUDA.tvm_target()


def emitted(params, body, monkeypatch):
    """Claim and emit with copies, which are slower than the rest of so small a product."""
    monkeypatch.setattr(tile_choice, "LEAST_ALIGNED_K", 0)
    monkeypatch.setattr(tile_choice, "copies_clocks", lambda *_: -1e9)
    members = group(params, body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(claim.details.config.tile, WgmmaConfig)
    return members, claim, TEMPLATE.emit(claim, TARGET)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(72, 67, 88), (70, 92, 40), (65, 130, 71)], ids=str)
def test_both_operands_are_copied(shape, dtype, monkeypatch):
    case = product(*shape, b_is_turned=True, dtype=dtype)
    members, claim, emission = emitted(*case[:2], monkeypatch)
    assert claim.launches == len(emission.kernels) == 2
    given = arrays(case[0], int(np.random.default_rng().integers(1 << 30)))
    (found,) = run_all(members, emission, given)
    assert_products_close(found, given["x"], given["w"].T)


def test_unaligned_columns(monkeypatch):
    """Rows of ``[K, N]``: columns beyond the last are not those of the next row."""
    case = product(80, 64, 83)
    members, _claim, emission = emitted(*case[:2], monkeypatch)
    assert len(emission.workspaces) == 1
    given = arrays(case[0], int(np.random.default_rng().integers(1 << 30)))
    (found,) = run_all(members, emission, given)
    assert_products_close(found, given["x"], given["w"])


def test_constants_are_copied_at_compile_time(monkeypatch):
    rng = np.random.default_rng()
    w = rng.standard_normal((40, 67)).astype("float16")
    params = [relax.Var("x", relax.TensorType((72, 67), "float16"))]

    def body(emit, x):
        return op.matmul(x, emit(op.permute_dims(relax.const(w))), "float32")

    members, _claim, emission = emitted(params, body, monkeypatch)
    assert len(emission.packing) == len(emission.workspaces) == 1
    x = rng.standard_normal((72, 67)).astype("float16")
    (found,) = run_all(members, emission, {"x": x})
    assert_products_close(found, x, w.T)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (product(72, 64, 88), "to be padded to 16 bytes"),
        (product(72, 67, 88, dtype="float32"), "of a half type"),
    ],
    ids=["aligned", "float32"],
)
def test_what_is_not_copied(case, reason):
    contraction = contraction_of(*case[:2])[1]
    assert reason in aligned_rows(contraction, ()).sentence


def test_an_operand_that_the_epilogue_reads_is_not_copied():
    params = [relax.Var("x", relax.TensorType((67, 67), "float16"))]
    params.append(relax.Var("w", relax.TensorType((67, 67), "float16")))

    def body(emit, x, w):
        return op.add(emit(op.matmul(x, w, "float16")), x)

    refusal = aligned_rows(contraction_of(params, body)[1], ())
    assert refusal.sentence == "The epilogue reads an operand, too."


def test_small_products_are_not_worth_a_launch():
    members = group(*product(72, 67, 88)[:2], CUDA)
    assert TEMPLATE.claim(members, CUDA.device).launches == 1


def test_large_products_are():
    members = group(*with_epilogue(5407, 4684, 409, b_is_turned=True)[:2], CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert claim.launches == 2
    assert claim.bytes > 3 * 2 * 5407 * 4684  # read, written, and read by the product


@pytest.mark.parametrize(
    ("shape", "is_copied"), [((4945, 2306, 46), True), ((172, 442, 101), False)], ids=str
)
def test_rows_of_whole_words_are_copied_where_k_is_long(shape, is_copied):
    """By cp.async of 4 bytes, unless its first stages hold all of K."""
    members = group(*product(*shape, b_is_turned=True)[:2], CUDA)
    tile = TEMPLATE.claim(members, CUDA.device).details.config.tile
    assert isinstance(tile, WgmmaConfig) is is_copied


@pytest.mark.parametrize("shapes", [[(5, 9)], [(3, 5, 7), (33, 70)], [(2, 1), (4, 15), (1, 250)]])
def test_rows_are_padded_with_zeros(shapes):
    rng = np.random.default_rng()
    given = [rng.standard_normal(s).astype("float16") for s in shapes]
    wide = [(*s[:-1], -(-s[-1] // 8) * 8) for s in shapes]
    pairs = [
        (declare(a, "float16", f"a{i}"), declare(b, "float16", f"b{i}"))
        for i, (a, b) in enumerate(zip(shapes, wide, strict=True))
    ]
    found = [np.full(s, np.nan, "float16") for s in wide]
    launch(pad_rows(pairs), [*given, *found], TARGET)
    for x, y in zip(given, found, strict=True):
        np.testing.assert_array_equal(y[..., : x.shape[-1]], x)
        assert (y[..., x.shape[-1] :] == 0).all()


def test_sums_of_odd_rows_are_not_split_among_clusters():
    """Their elements would be read from other blocks, and stored, one by one."""
    members = group(*product(2964, 100, 1905, b_is_turned=True)[:2], CUDA)
    tile = TEMPLATE.claim(members, CUDA.device).details.config.tile
    assert tile.tile.split_k == 1


def test_odd_rows_of_results_take_consumers_longer():
    clocks = []
    for columns in (2272, 2273):
        _, contraction = contraction_of(*product(3241, 24, columns, b_is_turned=True)[:2])
        config = wgmma_config(contraction, CUDA.device)
        clocks.append(wgmma_clocks(config, CUDA.device))
    assert clocks[1] > 1.4 * clocks[0]
