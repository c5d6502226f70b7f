"""What a product is read as, before a tile is chosen; configurations are of that problem."""

from itertools import chain, islice

import pytest
from group_kernels import CUDA

from tests.schedule.contraction.gemm_graphs import contraction_of, product
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.mma.space import tile_gemm_configs
from tvm_fusion.schedule.contraction.tile.problem import GemmProblem, gemm_sizes
from tvm_fusion.schedule.contraction.tile.read_problem import LEAST_ROWS, gemm_problem
from tvm_fusion.schedule.contraction.tile.shape import TileOperands
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs

SOME = 40  # configurations of a space


def read(*case, device=CUDA.device, **options):
    return gemm_problem(contraction_of(*product(*case, **options)[:2])[1], device)


def test_sizes_and_types_are_those_of_the_product():
    problem = read(130, 96, 72, dtype="float16", batch=(3,))
    assert type(problem) is GemmProblem
    assert gemm_sizes(problem) == (3, 130, 72, 96)
    assert (int(problem.m), problem.n, problem.k) == (130, 72, 96)
    assert (problem.a_dtype, problem.b_dtype, problem.products) == ("float16", "float16", 1)
    assert not problem.staged_a
    assert not problem.staged_b
    assert problem.is_static


def test_float32_keeps_its_precision_by_three_products():
    assert read(64, 64, 64, dtype="float32").products == 3


def test_few_rows_are_no_problem():
    assert read(LEAST_ROWS - 1, 64, 64) is None
    assert read(LEAST_ROWS, 64, 64) is not None


@pytest.mark.parametrize(
    ("target", "is_async", "has_clusters"),
    [("cuda:sm_75", False, False), ("cuda:sm_80", True, False), ("cuda:sm_90a", True, True)],
)
def test_copies_and_clusters_are_those_of_the_device(target, is_async, has_clusters):
    problem = read(64, 64, 64, device=parse(target).device)
    assert (problem.is_async, problem.has_clusters) == (is_async, has_clusters)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_configurations_are_of_the_problem(dtype):
    contraction = contraction_of(*product(256, 256, 256, dtype=dtype)[:2])[1]
    problem = gemm_problem(contraction, CUDA.device)
    spaces = (make(contraction, CUDA.device) for make in (tile_gemm_configs, wgmma_configs))
    found = list(chain.from_iterable(islice(space, SOME) for space in spaces))
    assert len(found) >= SOME
    for config in found:
        assert config.tile.operands == TileOperands.of(problem)
        assert TileOperands.of(config.problem) == TileOperands.of(problem)
        assert gemm_sizes(config.problem) == gemm_sizes(problem)
