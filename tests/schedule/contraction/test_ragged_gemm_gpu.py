"""Products of ragged rows, each with the matrix of its group: mma.sync and wgmma, one launch."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, close, group, run, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax, tirx

from tests.schedule.contraction.gemm_graphs import changed, contraction_of, with_numbers
from tests.schedule.contraction.ragged_graphs import drawn, ends_of, expected, experts, gated
from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.problem.ragged_rows import ragged_rows
from tvm_fusion.schedule.contraction.tile.ragged_tiles import RaggedTiles
from tvm_fusion.schedule.contraction.tile.results.vectors import result_vectors
from tvm_fusion.schedule.contraction.wgmma import space as wgmma_configs_module
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
TEMPLATE = GpuContraction()
FEW = replace(CUDA.device, sm_count=3)  # so that a block computes several tiles
MMA = {"block_m": 32, "block_n": 64, "block_k": 32, "stages": 3, "split_k": 1}
WARPS = {"warps_m": 1, "warps_n": 2, "warps_k": 1}


def mma(members, contraction):
    """The kernel of mma.sync."""
    config = changed(tile_gemm_config(contraction, CUDA.device), **MMA, **WARPS)
    return tile_gemm_gpu(members.program, config)


def hopper(members, contraction, **chosen):
    """The kernel of wgmma."""
    chosen = {"block_m": 64, "block_n": 64, "consumers": 1, **chosen}
    found = wgmma_configs(contraction, FEW)
    config = with_numbers(found, **chosen)
    return wgmma_gemm_gpu(members.program, changed(config, stages=3))


def wide(members, contraction):
    """The same of two consumers."""
    return hopper(members, contraction, block_m=128, consumers=2)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("make", "finish"), [(mma, None), (mma, gated), (hopper, None), (wide, gated)]
)
def test_each_row_is_multiplied_by_its_groups_matrix(make, finish):
    params, body = experts(133, 4, 72, 80, finish)
    members, contraction = contraction_of(params, body)
    func = make(members, contraction)
    for ends in ends_of(133):
        inputs = drawn(params, ends)
        results = run(func, members, inputs, kernels=1)
        close(results, expected(finish, **inputs), 2e-5 if finish is None else 2e-3)


@pytest.mark.parametrize("make", [mma, hopper])
def test_a_bias_of_each_expert_is_looked_up(make):
    given, multiply = experts(133, 4, 64, 64)
    given += [tensor("bias", 4, 64, dtype="float16"), tensor("ids", 133, dtype="int64")]

    def body(emit, x, w, ends, b, bias, ids):
        (total,) = multiply(emit, x, w, ends, b)
        return op.add(total, emit(op.astype(emit(op.take(bias, ids, axis=0)), "float32")))

    members, contraction = contraction_of(given, body)
    ends = [11, 40, 40, 133]
    inputs = drawn(given, ends) | {"ids": np.searchsorted(ends, np.arange(133), side="right")}
    right = expected(None, *(inputs[name] for name in ("x", "w", "ends", "b")))[0]
    right += inputs["bias"].astype("float64")[inputs["ids"]]
    close(run(make(members, contraction), members, inputs, kernels=1), [right])
    assert result_vectors(tile_gemm_config(contraction, CUDA.device).problem).width == 8


@pytest.mark.parametrize("make", [mma, hopper])
def test_weights_of_tokens_are_gathered_once_for_a_vector(make):
    """Each row by the weight of its token: indices that vary by rows alone leave vectors whole."""
    given, multiply = experts(133, 4, 64, 64)
    given += [tensor("weights", 50, dtype="float16"), tensor("order", 133, dtype="int64")]

    def body(emit, x, w, ends, b, weights, order):
        (total,) = multiply(emit, x, w, ends, b)
        own = emit(op.expand_dims(emit(op.take(weights, order, axis=0)), 1))
        scaled = emit(op.multiply(total, emit(op.astype(own, "float32"))))
        return op.astype(emit(op.add(scaled, emit(op.astype(b, "float32")))), "float16")

    members, contraction = contraction_of(given, body)
    ends = [11, 40, 40, 133]
    inputs = drawn(given, ends) | {"order": np.random.default_rng().integers(0, 50, 133)}
    right = expected(None, *(inputs[name] for name in ("x", "w", "ends", "b")))[0]
    right *= inputs["weights"].astype("float64")[inputs["order"]][:, None]
    close(run(make(members, contraction), members, inputs, kernels=1), [right + inputs["b"]], 2e-3)
    assert result_vectors(tile_gemm_config(contraction, CUDA.device).problem).width == 8


@pytest.mark.parametrize("make", [mma, hopper])
def test_more_groups_than_lanes(make, monkeypatch):
    """Groups of a few rows, in rounds of a warp; one of many, so that wgmma is of use."""
    monkeypatch.setattr(wgmma_configs_module, "FEW_ROWS", 0)
    params, body = experts(150, 67, 64, 64)
    members, contraction = contraction_of(params, body)
    func = make(members, contraction)
    for highest in (4, 130):
        ends = np.cumsum(np.random.default_rng().multinomial(highest, [1 / 67] * 67))
        inputs = drawn(params, [*(ends[:40]), *(ends[40:] + 17)])
        close(run(func, members, inputs, kernels=1), expected(None, **inputs))


@pytest.mark.parametrize("offsets", ["int32", "int64"])
def test_any_number_of_rows(offsets):
    params, body = experts(tirx.Var("rows", "int64"), 4, 64, 64, offsets=offsets)
    members, contraction = contraction_of(params, body)
    func = mma(members, contraction)
    inputs = drawn(experts(5, 4, 64, 64, offsets=offsets)[0], [1, 1, 4, 4])
    close(run(func, members, inputs, kernels=1), expected(None, **inputs))


def test_claims_one_kernel_with_the_operations_of_one_group():
    params, body = experts(512, 8, 256, 512, gated)
    members = group(params, body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(claim, Claim), claim
    assert claim.launches == 1
    assert 2 * 512 * 256 * 512 <= claim.flops <= 4 * 512 * 256 * 512
    assert type(claim.details.config.tile).__name__ == "WgmmaConfig"
    ampere = parse("cuda:sm_80")
    claim = TEMPLATE.claim(group(params, body, ampere), ampere.device)
    assert claim.launches == 1
    assert claim.details.config.tile.problem.ragged is not None


def test_gathered_rows_are_gathered_once():
    """TMA copies rows of a tensor; many rows are rather gathered by a kernel of its own."""
    params, _ = experts(512, 4, 128, 256)
    params.append(tensor("order", 512, dtype="int64"))

    def body(emit, x, w, ends, b, order):
        rows = emit(op.take(x, order, axis=0))
        return experts(512, 4, 128, 256)[1](emit, rows, w, ends, b)

    found = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert isinstance(found, Refusal)
    assert found.code == "prologue_recomputed"
    ampere = parse("cuda:sm_80")
    assert isinstance(TEMPLATE.claim(group(params, body, ampere), ampere.device), Claim)


def test_other_conditions_are_no_groups():
    """A condition that is off by one is another sum."""
    params, body = experts(70, 4, 64, 64)
    _, contraction = contraction_of(params, body)
    assert ragged_rows(contraction) is not None
    condition = contraction.left.value.args[0]
    other = tirx.all(condition.a, condition.b.a <= condition.b.b)
    left = tirx.Cast("float32", tirx.if_then_else(other, *contraction.left.value.args[1:]))
    assert ragged_rows(replace(contraction, left=left)) is None


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_sums_stay_in_registers():
    """Of the largest tiles, too; of small ones where a multiprocessor has two blocks."""
    members, contraction = contraction_of(*experts(8192, 64, 2048, 1024, gated))
    large = {"block_m": 128, "block_n": 256, "consumers": 2}
    pairs = {"block_m": 64, "block_n": 128, "blocks_per_sm": 2}
    config = tile_gemm_config(contraction, CUDA.device)
    found = machine_code(
        {
            "large": hopper(members, contraction, **large),
            "pairs": hopper(members, contraction, **pairs),
            "mma": tile_gemm_gpu(members.program, config),
        }
    )
    assert {name: code.spilled_bytes for name, code in found.items()} == dict.fromkeys(found, 0)
    assert found["pairs"].registers <= 128


def last_row_left_out(monkeypatch):
    """Groups end a row early."""
    end = RaggedTiles.end.fget
    monkeypatch.setattr(RaggedTiles, "end", property(lambda self: end(self) - 1))


def matrix_of_the_next(monkeypatch):
    """B is that of the next group."""
    group = RaggedTiles.group.fget
    monkeypatch.setattr(RaggedTiles, "group", property(lambda self: group(self) + 1))


def products_behind_the_last(monkeypatch):
    """Rows behind the last group are multiplied, too."""
    monkeypatch.setattr(RaggedTiles, "has_products", property(lambda self: tirx.const(True)))


@pytest.mark.parametrize("make", [mma, hopper])
@pytest.mark.parametrize(
    "mistake", [last_row_left_out, matrix_of_the_next, products_behind_the_last]
)
def test_mistakes_are_found(make, mistake, monkeypatch):
    params, body = experts(133, 4, 64, 64)
    members, contraction = contraction_of(params, body)
    mistake(monkeypatch)
    func = make(members, contraction)
    inputs = drawn(params, [11, 40, 40, 120])
    with pytest.raises(Exception):  # noqa: B017, PT011
        close(run(func, members, inputs), expected(None, **inputs))
