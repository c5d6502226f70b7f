"""GEMM of symbolic M on a GPU: one function, with a kernel for each range of M."""

from dataclasses import replace

import group_kernels
import numpy as np
import pytest
import tvm
from cpu_programs import unbound
from group_kernels import (
    CPU,
    CUDA,
    agrees,
    arrays,
    close,
    compiles_for_cuda,
    emitted,
    group,
    kernel,
    run,
    tensor,
)
from tvm import relax, tirx

from tests.schedule.contraction.gemm_graphs import contraction_of
from tvm_fusion.core.tir.loops import constant, find
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.dynamic_m import dispatch_on_m
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
n = tirx.Var("n", "int64")
TEMPLATE = GpuContraction()
ROWS = (1, 2, 7, 16, 17, 40, 67)


def gated(emit, x, w, b):
    return op.multiply(emit(op.sigmoid(emit(op.add(emit(op.matmul(x, w)), b)))), b)


def gated_reference(x, w, b):
    return [b / (1 + np.exp(-(x @ w + b)))]


def along(emit, x, w, b):
    return gated(emit, x, emit(op.permute_dims(w)), b)


def case(shape, terms, columns, dtype="float32"):
    given = [tensor("x", *shape, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    return [*given, tensor("b", columns, dtype=dtype)], gated, gated_reference


def case_along(shape, terms, columns, dtype):
    given = [tensor("x", *shape, terms, dtype=dtype), tensor("w", columns, terms, dtype=dtype)]
    transposed = [*given, tensor("b", columns, dtype=dtype)]
    return transposed, along, lambda x, w, b: gated_reference(x, w.T, b)


CASES = {
    "words": case((n,), 129, 264),
    "words_of_a_batch_of_one": case((1, n), 300, 64),
    "halves": case((n,), 512, 264, "float16"),
    "halves_along": case_along((n,), 512, 72, "bfloat16"),
}
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_computes_the_product(example, monkeypatch):
    params, body, reference = example
    made = emitted(TEMPLATE, params, body, CUDA)
    for rows in ROWS:
        monkeypatch.setattr(group_kernels, "SIZE", rows)
        agrees(made, params, reference, CUDA, TOLERANCE[params[0].ty.dtype.dtype])


@pytest.mark.skipif("avx512f" not in CPU.device.features, reason="needs vectors of 512 bits")
def test_llvm_gets_strided_loops_of_512_bits_wrong(monkeypatch):
    """When this fails, ``PREFER_256`` of ``tvm_fusion.device.target`` can go."""

    class Preferring512:
        def tvm_target(self):
            return tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "vector-width": 512})

    monkeypatch.setattr(group_kernels, "SIZE", 16)
    params, body, reference = CASES["words"]
    members = group(params, body, CUDA)
    func = unbound(kernel(TEMPLATE, members, parse("cuda:sm_75"))[1])  # without tensor cores
    inputs = arrays(params)
    wide = (x.astype("float64") for x in inputs.values())
    with pytest.raises(AssertionError):
        close(run(func, members, inputs, Preferring512()), reference(*wide))


def kernels(func):
    blocks = [x for x in find(func.body, tirx.For) if x.thread_binding is not None]
    return sum(x.thread_binding.thread_tag == "blockIdx.x" for x in blocks)


def made(example):
    params, body, _ = example
    return kernel(TEMPLATE, group(params, body, CUDA), CUDA)


@pytest.mark.parametrize(("name", "count"), [("words", 3), ("halves", 4)])
def test_one_of_several_is_launched(name, count):
    """On tensor cores, there is one of small tiles as well."""
    claim, func = made(CASES[name])
    assert kernels(func) == count
    assert claim.launches == 1


@pytest.mark.parametrize("shape", [(n,), (3, n)], ids=["rows", "matrices"])
def test_tiles_are_found_in_32_bits(shape):
    """A division of 64 bits by what is not constant is 90 instructions more."""
    given = [tensor("x", *shape, 256, dtype="float16")]
    given.append(tensor("w", *shape[:-1], 256, 512, dtype="float16"))
    func = kernel(TEMPLATE, group(given, lambda emit, x, w: op.matmul(x, w), CUDA), CUDA)[1]
    kinds = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    found = [x for kind in kinds for x in find(func.body, kind) if not constant(x.b)]
    assert found
    assert {str(x.ty.dtype) for x in found} == {"int32"}


@pytest.mark.slow
def test_some_rows_get_a_tile_of_their_own(monkeypatch):
    """Of many rows' tile, few blocks would be busy; and few long sums are split."""
    few = replace(CUDA.device, sm_count=8)
    params, body, reference = case_along((n,), 264, 136, "float16")
    members, contraction = contraction_of(params, body)
    tile = wgmma_config(contraction, few)
    general = wgmma_gemm_gpu(members.program, tile)
    func = dispatch_on_m(members.program, contraction, general, few, tile)
    assert kernels(func) == 5
    for rows in (100, 130):
        monkeypatch.setattr(group_kernels, "SIZE", rows)
        inputs = arrays(params)
        wide = [x.astype("float64") for x in inputs.values()]
        close(run(func, members, inputs), reference(*wide), 2e-3)


@pytest.mark.parametrize(
    "example",
    [case((n,), 64, 63), case((n, n), 64, 64), case((n,), n, 64), case((40,), 64, 64)],
    ids=["odd_columns", "two_extents", "symbolic_terms", "static"],
)
def test_others_have_one_kernel(example):
    _, func = made(example)
    assert kernels(func) == 1


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES)
