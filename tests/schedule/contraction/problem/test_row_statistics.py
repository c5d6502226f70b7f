"""A GEMM with statistics of rows: those that its results read, and those that it writes."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, group, run, tensor
from tvm import relax

from tests.schedule.contraction.gemm_graphs import with_numbers
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.problem.epilogue.row_statistics import with_statistics
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
WIDTH = 64


def statistics(emit, x, m, n):
    """Means of groups of columns, and the squares of what is left of them."""
    wide = emit(op.astype(x, "float32"))
    parts = emit(op.reshape(wide, (m, n // WIDTH, WIDTH)))
    mean = emit(op.mean(parts, axis=-1, keepdims=True))
    left = emit(op.subtract(parts, mean))
    squares = emit(op.sum(emit(op.multiply(left, left)), axis=-1))
    return [emit(op.reshape(mean, (m, n // WIDTH))), squares]


def row_values(emit, mean, squares, k):
    """The mean of a row of K elements and one over its deviation, of statistics of its groups."""
    middle = emit(op.mean(mean, axis=-1, keepdims=True))
    left = emit(op.subtract(mean, middle))
    between = emit(op.sum(emit(op.multiply(left, left)), axis=-1, keepdims=True))
    within = emit(op.sum(squares, axis=-1, keepdims=True))
    scaled = emit(op.multiply(between, relax.const(float(WIDTH), "float32")))
    share = relax.const(1 / k, "float32")
    return middle, emit(op.rsqrt(emit(op.multiply(emit(op.add(within, scaled)), share))))


def written(m, k, n, dtype="float16", offset=0.0):
    """A product with a residual, and statistics of the sum."""
    given = [tensor("x", m, k, dtype=dtype), tensor("w", k, n, dtype=dtype)]
    given.append(tensor("residual", m, n, dtype=dtype))

    def body(emit, x, w, residual):
        total = emit(op.matmul(x, w, "float32"))
        total = emit(op.add(total, emit(op.astype(residual, "float32"))))
        result = emit(op.astype(total, dtype))
        return relax.Tuple([result, *statistics(emit, result, m, n)])

    def reference(x, w, residual):
        return [x @ w + residual]

    return given, body, reference


def read(m, k, n, tiles=4, dtype="float16"):
    """A product of rows without their mean, over their deviation, of statistics of them."""
    given = [tensor("x", m, k, dtype=dtype), tensor("w", k, n, dtype=dtype)]
    given += [tensor("mean", m, tiles), tensor("squares", m, tiles), tensor("sums", n)]

    def body(emit, x, w, mean, squares, sums):
        middle, factor = row_values(emit, mean, squares, k)
        total = emit(op.matmul(x, w, "float32"))
        total = emit(op.subtract(total, emit(op.multiply(middle, sums))))
        return op.astype(emit(op.multiply(total, factor)), dtype)

    def reference(x, w, mean, squares, sums):
        left = mean - mean.mean(-1, keepdims=True)
        variance = (squares.sum(-1) + WIDTH * (left**2).sum(-1)) / k
        return [(x @ w - mean.mean(-1, keepdims=True) * sums) / np.sqrt(variance)[:, None]]

    return given, body, reference


def analysed(case):
    members = group(*case[:2], CUDA)
    return members, with_statistics(members.program, inlined(members.program))


def inputs_of(case, seed=0):
    found = arrays(case[0], seed)
    return {n: np.abs(x) + 0.5 if n == "squares" else x for n, x in found.items()}


TILES = [
    {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1},
    {"block_m": 64, "block_n": 128, "consumers": 2, "is_ping_pong": True},
    {"block_m": 128, "block_n": 192, "consumers": 2, "is_ping_pong": False},
]
SPLIT = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 2}


def of_tile(contraction, tile, device=FEW):
    found = wgmma_configs(contraction, device)
    return with_numbers(found, **tile)


def check_written(case, members, contraction, tile, device=FEW, tolerance=2e-3):
    inputs = inputs_of(case)
    result, *found = run(
        wgmma_gemm_gpu(members.program, of_tile(contraction, tile, device)), members, inputs
    )
    close([result], case[2](*(x.astype("float64") for x in inputs.values())), tolerance)
    parts = result.astype("float64").reshape(len(result), -1, WIDTH)
    mean = parts.mean(-1)
    expected = [((parts - mean[..., None]) ** 2).sum(-1), mean]  # in the order of the group
    close(found, expected, 1e-5)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_statistics_of_results(tile):
    case = written(150, 72, 192 if tile["block_n"] == 192 else 128)
    members, contraction = analysed(case)
    check_written(case, members, contraction, tile)


def test_statistics_of_results_behind_split_k():
    case = written(100, 400, 128)
    members, contraction = analysed(case)
    check_written(case, members, contraction, SPLIT, CUDA.device)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_factors_of_rows(tile):
    case = read(150, 136, 200)
    members, contraction = analysed(case)
    inputs = inputs_of(case)
    made = run(wgmma_gemm_gpu(members.program, of_tile(contraction, tile)), members, inputs)
    close(made, case[2](*(x.astype("float64") for x in inputs.values())), 2e-3)


def test_factors_of_rows_behind_split_k():
    case = read(100, 400, 136)
    members, contraction = analysed(case)
    inputs = inputs_of(case)
    config = of_tile(contraction, SPLIT, CUDA.device)
    made = run(wgmma_gemm_gpu(members.program, config), members, inputs)
    close(made, case[2](*(x.astype("float64") for x in inputs.values())), 2e-3)


def test_bfloat16():
    case = written(72, 72, 64, "bfloat16")
    check_written(case, *analysed(case), TILES[0], tolerance=2.0**-7)
    case = read(72, 72, 64, dtype="bfloat16")
    members, contraction = analysed(case)
    inputs = inputs_of(case)
    made = run(wgmma_gemm_gpu(members.program, of_tile(contraction, TILES[0])), members, inputs)
    close(made, case[2](*(x.astype("float64") for x in inputs.values())), 2.0**-7)


def test_few_values_are_kept_of_a_row():
    _, contraction = analysed(read(150, 136, 200, tiles=12))
    rows = contraction.row_values
    assert [len(s.terms) for s in rows.sums] == [12, 12, 12]
    assert len(rows.values) == 2


def refused(case):
    claim = GpuContraction().claim(group(*case[:2], CUDA), CUDA.device)
    assert isinstance(claim, Refusal)
    return claim.code


def test_what_is_refused():
    assert refused(read(150, 136, 200, tiles=65)) == "no_row_sum"
    assert refused(read(20, 136, 200)) == "no_statistics"
    assert refused(read(150, 136, 201)) == "no_statistics"
    assert refused(written(20, 136, 128)) == "no_statistics"
