"""The design space of a skinny GEMM: the default first, and every configuration computes it."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, group, run, tensor
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.emit import GpuContractionConfig, contraction_gpu
from tvm_fusion.schedule.contraction.gpu.space import GpuGemmProblem, configs, default
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.skinny.gemv.model import gemv_clocks
from tvm_fusion.schedule.contraction.skinny.gemv.thread_tile import fewer_columns
from tvm_fusion.schedule.contraction.skinny.mma.config import SkinnyMmaConfig, skinny_gemm_config
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.index.inline import inlined

ROW, PIPELINE, ROWS = (1, 300, 520, "float32"), (1, 1544, 264, "float16"), (3, 512, 264, "float16")


def product(rows, terms, columns, dtype):
    params = [tensor("x", rows, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    members = group(params, lambda emit, x, w: relax.op.matmul(x, w), CUDA)
    return params, members, analyse(members.program, members.program.stages)


def space(shape, spec=CUDA):
    *_, contraction = product(*shape)
    return contraction, list(configs(GpuGemmProblem(contraction, spec.device)))


@pytest.mark.parametrize("shape", [ROW, PIPELINE, ROWS], ids=["row", "pipeline", "rows"])
def test_the_default_comes_first_and_nothing_twice(shape):
    contraction, found = space(shape)
    assert repr(found[0]) == repr(skinny_gemm_config(contraction, CUDA.device))
    assert len(found) > 20
    assert len(set(map(repr, found))) == len(found)


# Times of an H200 in microseconds, of (columns, slices, threads_n, stages) along K.
MEASURED = {
    (2048, 2048): {(4, 256, 1, 1): 3.4, (1, 32, 8, 8): 4.1, (2, 32, 8, 8): 5.2},
    (2048, 3072): {(1, 32, 8, 8): 6.1, (2, 32, 8, 8): 7.5},
    (8192, 2048): {(1, 32, 8, 8): 11.7, (2, 32, 8, 8): 17.4},
}


@pytest.mark.parametrize("sizes", MEASURED)
def test_a_weight_along_k_has_the_columns_and_slices_of_least_time(sizes):
    terms, columns = sizes
    params = [tensor("x", 1, terms, dtype="float16"), tensor("w", columns, terms, dtype="float16")]

    def body(emit, x, w):
        return relax.op.matmul(x, emit(relax.op.permute_dims(w)))

    program = group(params, body, CUDA).program
    chosen = skinny_gemm_config(analyse(program, inlined(program)), CUDA.device)
    assert chosen.tile.is_k_contiguous
    assert not chosen.cp_async_stages

    def clocks(columns, slices_k, threads_n, stages):
        tile = next(t for t in fewer_columns(chosen.tile) if t.n == columns)
        given = {"slices_k": slices_k, "threads_n": threads_n, "stages": stages}
        return gemv_clocks(replace(chosen, tile=tile, **given), CUDA.device)

    found = {shape: clocks(*shape) for shape in MEASURED[sizes]}
    assert sorted(found, key=found.get) == sorted(found, key=MEASURED[sizes].get)
    assert gemv_clocks(chosen, CUDA.device) <= 1.05 * min(found.values())


def test_both_main_loops_and_the_pipeline_are_in_it():
    assert {config.cp_async_stages > 0 for config in space(PIPELINE)[1]} == {False, True}
    assert {type(config) is SkinnyMmaConfig for config in space(ROWS)[1]} == {False, True}
    older = [x for shape in (PIPELINE, ROWS) for x in space(shape, parse("cuda:sm_75"))[1]]
    assert {config.cp_async_stages for config in older} == {0}
    assert {type(config) is SkinnyMmaConfig for config in older} == {False, True}


def test_many_rows_are_tiles():
    contraction, found = space((17, 64, 64, "float32"))
    assert skinny_gemm_config(contraction, CUDA.device) is None
    assert repr(found[0]) == repr(default(GpuGemmProblem(contraction, CUDA.device)))
    assert {isinstance(config, TileGemmConfig) for config in found} == {True}
    assert space((17, 65, 63, "float64"))[1] == []


@pytest.mark.parametrize("shape", [ROW, PIPELINE, ROWS], ids=["row", "pipeline", "rows"])
def test_every_configuration_computes_the_product(shape):
    params, members, contraction = product(*shape)
    found = list(configs(GpuGemmProblem(contraction, CUDA.device)))
    rng = np.random.default_rng()
    drawn = [found[i] for i in rng.choice(len(found), 5, replace=False)]
    inputs = arrays(params)
    x, w = (value.astype("float64") for value in inputs.values())
    for config in drawn:
        whole = GpuContractionConfig(members.program, contraction, CUDA.device, config)
        func = contraction_gpu(whole, "matmul", CUDA.tvm_target())
        tolerance = 2e-5 if shape[-1] == "float32" else 2e-3
        close(run(func, members, inputs, CUDA), [x @ w], tolerance)
