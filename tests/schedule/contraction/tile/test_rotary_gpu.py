"""Products whose heads are rotated behind them: halves of a head, or adjacent columns."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, compiles_for_cuda, group, run, tensor
from split_products import columns
from tvm import relax

from tests.schedule.contraction.gemm_graphs import changed, with_numbers
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.tile.results.vectors import result_vectors
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaConfig
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config, wgmma_configs
from tvm_fusion.schedule.index.inline import inlined

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
TEMPLATE = GpuContraction()
AMPERE = parse("cuda:sm_80")
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
TOLERANCE = 4e-3  # of three roundings to float16


def halves(emit, x, cos, sin):
    """Each element of a head's first half with that of its second."""
    dim = int(x.ty.shape[-1])
    begin = emit(op.strided_slice(x, [3], [0], [dim // 2], [1]))
    end = emit(op.strided_slice(x, [3], [dim // 2], [dim], [1]))
    turned = emit(op.concat([emit(op.negative(end)), begin], axis=-1))
    cos, sin = (emit(op.concat([t, t], axis=-1)) for t in (cos, sin))
    return emit(op.add(emit(op.multiply(x, cos)), emit(op.multiply(turned, sin))))


def pairs(emit, x, cos, sin):
    """Adjacent elements, as complex numbers."""
    shape = [int(d) for d in x.ty.shape]
    x = emit(op.reshape(x, (*shape[:-1], shape[-1] // 2, 2)))
    a, b = (
        emit(op.squeeze(emit(op.strided_slice(x, [4], [i], [i + 1], [1])), [4])) for i in (0, 1)
    )
    real = emit(op.subtract(emit(op.multiply(a, cos)), emit(op.multiply(b, sin))))
    imaginary = emit(op.add(emit(op.multiply(b, cos)), emit(op.multiply(a, sin))))
    return emit(op.reshape(emit(op.stack([real, imaginary], axis=-1)), shape))


def every_two(emit, x, cos, sin):
    """Adjacent elements, of which every second one is sliced."""
    shape = [int(d) for d in x.ty.shape]
    even, odd = (emit(op.strided_slice(x, [3], [i], [shape[-1]], [2])) for i in (0, 1))
    turned = emit(op.reshape(emit(op.stack([emit(op.negative(odd)), even], axis=-1)), shape))
    cos, sin = (emit(op.repeat(t, 2, axis=-1)) for t in (cos, sin))
    return emit(op.add(emit(op.multiply(x, cos)), emit(op.multiply(turned, sin))))


SPELLINGS = {"halves": halves, "pairs": pairs, "every_two": every_two}


def turned(x, cos, sin, is_of_halves):
    """Rotate in numpy."""
    if is_of_halves:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def rotary(rows, k, dim, spelling="halves", queries=2, is_turned=False, has_bias=False):
    """Heads of queries and one of keys, rotated; one of values as the columns of rows."""
    n = (queries + 2) * dim
    shape = (n, k) if is_turned else (k, n)
    given = [tensor("x", rows, k, dtype="float16"), tensor("w", *shape, dtype="float16")]
    given += [tensor(name, rows, dim // 2, dtype="float16") for name in ("cos", "sin")]
    given += [tensor("b", n, dtype="float16")] if has_bias else []

    def body(emit, x, w, cos, sin, *bias):
        total = emit(op.matmul(x, emit(op.permute_dims(w)) if is_turned else w, "float32"))
        total = emit(op.astype(total, "float16"))
        for b in bias:
            total = emit(op.add(total, b))
        *around, values = columns(emit, total, queries * dim, (queries + 1) * dim)

        def head(part, count):
            part = emit(op.reshape(part, (1, rows, count, dim)))
            part = emit(op.permute_dims(part, [0, 2, 1, 3]))
            return SPELLINGS[spelling](emit, part, cos, sin)

        return [values, head(around[0], queries), head(around[1], 1)]

    def reference(x, w, cos, sin, *bias):
        y = (x @ (w.T if is_turned else w) + sum(bias)).reshape(1, rows, queries + 2, dim)
        y = y.transpose(0, 2, 1, 3)
        around = turned(y[:, :-1], cos, sin, spelling == "halves")
        return [y[0, -1], around[:, :queries], around[:, queries:]]

    return given, body, reference


def contraction_of(case):
    members = group(*case[:2], CUDA)
    return members, analyse(members.program, inlined(members.program), takes_pairs=True)


def agrees(case, func, members, seed):
    inputs = arrays(case[0], seed)
    wide = [x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), case[2](*wide), TOLERANCE)


def of_tile(contraction, **tile):
    return with_numbers(wgmma_configs(contraction, FEW), **tile)


@pytest.mark.parametrize(
    ("dim", "block_n"),
    [(64, 128), (80, 240), (96, 192), (128, 128), (256, 256), (64, 192), (32, 96)],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_heads_lie_whole_in_tiles_of_wgmma(dim, block_n, is_turned):
    case = rotary(70, 72, dim, is_turned=is_turned)
    members, contraction = contraction_of(case)
    config = of_tile(contraction, block_n=block_n)
    assert config.has_periods
    assert result_vectors(config.problem).width == 8
    agrees(case, wgmma_gemm_gpu(members.program, config), members, 1)


@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 64, "block_n": 192, "consumers": 2, "is_ping_pong": True},
        {"block_m": 128, "block_n": 128, "consumers": 2, "is_ping_pong": False},
        {"block_m": 256, "block_n": 64, "consumers": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tiles_and_roles_of_wgmma(tile, spelling):
    case = rotary(150, 136, 64, spelling, queries=5, has_bias=True)
    members, contraction = contraction_of(case)
    agrees(case, wgmma_gemm_gpu(members.program, of_tile(contraction, **tile)), members, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"block_n": 64},
        {"block_n": 128, "stages": 2},
        {"block_m": 64, "block_n": 64, "warps_m": 2, "split_k": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", [64, 32, 128])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tiles_of_mma(dim, change, spelling):
    case = rotary(40, 96, dim, spelling, has_bias=True)
    members, contraction = contraction_of(case)
    small = {"block_m": 32, "block_n": 64, "block_k": 32, "warps_m": 1, "warps_n": 2}
    small |= {"warps_k": 1, "stages": 3, "split_k": 1}
    config = changed(tile_gemm_config(contraction, CUDA.device), **{**small, **change})
    if spelling == "halves":
        assert config.problem.panel == (dim // 2 if dim <= 64 else 8)
    agrees(case, tile_gemm_gpu(members.program, config), members, 3)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("spec", [CUDA, AMPERE], ids=["sm_90a", "sm_80"])
def test_is_claimed_as_one_kernel_in_vectors(spelling, spec):
    members = group(*rotary(512, 2048, 64, spelling, queries=32)[:2], spec)
    claim = TEMPLATE.claim(members, spec.device)
    assert claim.launches == 1
    config = claim.details.config.tile
    assert isinstance(config, WgmmaConfig) == (spec is CUDA)
    assert result_vectors(config.problem).width == 8
    assert not config.problem.staged_b


@pytest.mark.parametrize("spelling", ["pairs", "every_two"])
def test_pairs_stay_apart_from_products_without_tiles(spelling):
    """Of few rows, of float32, and on CPUs."""
    few = group(*rotary(2, 64, 64, spelling)[:2], CUDA)
    assert TEMPLATE.claim(few, CUDA.device).code == "epilogue_elsewhere"
    cpu = parse("cpu:x86-64-v3")
    members = group(*rotary(40, 64, 64, spelling)[:2], cpu)
    refusal = CpuContraction().claim(members, cpu.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "epilogue_elsewhere"


def test_odd_heads_are_refused():
    """Heads of 12 columns lie in no vectors of pairs of 8, nor has one tile whole heads."""
    _, contraction = contraction_of(rotary(40, 64, 12))
    assert wgmma_config(contraction, FEW) is None


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    cases = {name: rotary(70, 72, 64, name) for name in SPELLINGS}
    assert compiles_for_cuda(TEMPLATE, cases | {"80": rotary(70, 72, 80)})
