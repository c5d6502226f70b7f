"""Skinny GEMM on CUDA cores: right, and B is loaded once, in vectors."""

import numpy as np
import pytest
from group_kernels import (
    CUDA,
    arrays,
    check,
    compiles_for_cuda,
    group,
    kernel,
    run,
    shared_bytes,
    tensor,
)  # fmt: skip
from tvm import relax, s_tir, tirx

from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.skinny.gemv.config import GemvConfig
from tvm_fusion.schedule.gpu.memory.cp_async import COPY

op = relax.op
n = tirx.Var("n", "int64")
TEMPLATE = GpuContraction()


def gated(emit, x, w, b):
    return op.multiply(emit(op.sigmoid(emit(op.add(emit(op.matmul(x, w)), b)))), b)


def gated_reference(x, w, b):
    total = x.astype("float64") @ w.astype("float64") + b.astype("float64")
    return [b / (1 + np.exp(-total))]


def two_sides(emit, x, w):
    """A gate and what it lets through are columns of one product."""
    sides = emit(op.split(emit(op.matmul(x, w)), 2, axis=-1))
    gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
    return op.multiply(emit(op.nn.silu(gate)), up)


def two_sides_reference(x, w):
    gate, up = np.split(x.astype("float64") @ w.astype("float64"), 2, axis=-1)
    return [gate / (1 + np.exp(-gate)) * up]


def both(rows, terms, columns):
    given = [tensor("x", rows, terms), tensor("w", terms, 2 * columns)]
    return given, two_sides, two_sides_reference


def case(rows, terms, columns, dtype="float32"):
    given = [tensor("x", rows, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    return [*given, tensor("b", columns, dtype=dtype)], gated, gated_reference


CASES = {
    "row": case(1, 300, 512),
    "all_slices_whole": case(1, 1024, 64),
    "few_terms": case(2, 3, 128),
    "narrow_vectors": case(3, 129, 1004),
    "rows_in_turns": case(16, 127, 264),
    "odd_blocks": case(5, 1000, 24),
    "symbolic_terms": case(4, n, 64),
    "two_sums_each": both(1, 300, 512),
    "two_sums_each_of_rows": both(7, 129, 264),
}
COPIED = {
    "whole": case(1, 1536, 512, "float16"),
    "odd_terms": case(1, 1537, 512, "float16"),
    "odd_blocks": case(1, 3000, 1032, "float16"),
    "words": case(1, 3000, 516),
}
HALF = {
    "float16": case(1, 513, 1000, "float16"),
    "bfloat16": case(7, 1000, 72, "bfloat16"),
}


def config_of(example):
    params, body, _ = example
    members = group(params, body, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    return claim, func


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_computes_the_product(example):
    check(TEMPLATE, *example, CUDA)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_types(dtype, tolerance):
    check(TEMPLATE, *HALF[dtype], CUDA, tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("example", COPIED.values(), ids=COPIED)
def test_cp_async_pipelines(example):
    tolerance = 2e-3 if str(example[0][0].ty.dtype) == "float16" else 1e-4
    _, func = check(TEMPLATE, *example, CUDA, tolerance=tolerance)
    assert has_copies(func)


def has_copies(func):
    return COPY in func.script()


@pytest.mark.parametrize("arch", ["cuda:sm_75", "rocm:gfx942"])
def test_devices_without_cp_async_load_tiles(arch):
    spec = parse(arch)
    params, body, _ = COPIED["whole"]
    _, func = kernel(TEMPLATE, group(params, body, spec), spec)
    assert not has_copies(func)


def test_parts_of_a_column_split_share_a_loop():
    _, func = config_of(both(1, 300, 512))
    assert vectors(func) == {4}


def vectors(func):
    loops = [x for x in find(func.body, tirx.For) if x.kind == tirx.ForKind.VECTORIZED]
    return {int(x.extent) for x in loops}


@pytest.mark.parametrize(
    ("example", "width"),
    [(case(1, 512, 512, "float16"), 8), (case(1, 512, 512), 4), (case(1, 512, 1004, "float16"), 4)],
)
def test_loads_are_as_wide_as_alignment_allows(example, width):
    _, func = config_of(example)
    assert vectors(func) == {width}


def test_b_is_loaded_once():
    _, func = config_of(case(3, 512, 512))
    reads = [x for x in find(func.body, tirx.BufferStore) if "w_vector" in x.buffer.name]
    assert reads
    direct = [x for x in find(func.body, type(reads[0].value)) if x.source.name == "w"]
    assert len(direct) == len(reads)


@pytest.mark.parametrize(
    "example",
    [case(17, 64, 64), case(1, 64, 63), case(2, 64, n)],
    ids=["many_rows", "odd_columns", "symbolic_columns"],
)
def test_others_are_no_skinny_gemm(example):
    params, body, _ = example
    _, func = kernel(TEMPLATE, group(params, body, CUDA), CUDA)
    owners = find(func.body, s_tir.SBlock)
    assert "partials" not in {b.name for owner in owners for b in owner.alloc_buffers}


@pytest.mark.parametrize(("columns", "side"), [(8192, 64), (6144, 32), (3072, 32), (2048, 16)])
def test_blocks_are_the_parallelism(columns, side):
    """Of whole cache lines; of halves where these would be few; of quarters where those would."""
    claim, _ = config_of(case(1, 4096, columns, "float16"))
    assert claim.parallelism == columns // side


@pytest.mark.parametrize("example", (CASES | COPIED).values(), ids=CASES | COPIED)
def test_claims_name_the_shared_memory(example):
    claim, func = config_of(example)
    assert claim.shared_bytes == shared_bytes(func)


@pytest.mark.parametrize("arch", ["cuda:sm_90a", "rocm:gfx90a"])
@pytest.mark.parametrize("columns", [512, 8192])
@pytest.mark.parametrize("made", [case, both])
def test_blocks_fit_the_device(arch, columns, made):
    spec = parse(arch)
    rows = 16 if made is case and spec.kind == "cuda" else 8  # CDNA has matrices of float32
    params, body, _ = made(rows, 4096, columns)
    _, func = kernel(TEMPLATE, group(params, body, spec), spec)
    assert 0 < shared_bytes(func) <= 48 * 1024
    extents = [
        int(x.extent)
        for x in find(func.body, tirx.For)
        if x.thread_binding is not None and x.thread_binding.thread_tag == "threadIdx.x"
    ]
    assert max(extents) <= int(spec.tvm_target().attrs["max_num_threads"])


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES | HALF | COPIED)


def test_rows_of_experts_read_the_matrices_of_theirs():
    """One token by the gate and up matrices of four experts out of eight, in one kernel."""
    chosen, experts, terms, inner = 4, 8, 256, 40
    params = [
        tensor("x", 1, terms, dtype="float16"),
        tensor("w", experts, 2 * inner, terms, dtype="float16"),
        tensor("expert", chosen, dtype="int64"),
    ]

    def body(emit, x, w, expert):
        rows = emit(op.broadcast_to(x, (chosen, terms)))
        rows = emit(op.reshape(rows, (chosen, terms, 1)))
        sums = emit(op.matmul(emit(op.take(w, expert, axis=0, mode="clip")), rows, "float32"))
        sides = emit(op.split(emit(op.reshape(sums, (chosen, 2 * inner))), 2, -1))
        gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
        return op.multiply(emit(op.nn.silu(gate)), up)

    members = group(params, body, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    config = claim.details.config
    assert isinstance(config.gemm, GemvConfig)
    assert config.gemm.tile.is_k_contiguous
    assert not config.loads_early  # the kernel before chooses the experts
    given = arrays(params)
    x, w = given["x"].astype("float64")[0], given["w"].astype("float64")
    gate, up = np.split(w[given["expert"]] @ x, 2, -1)
    (found,) = run(func, members, given, CUDA, 1)
    np.testing.assert_allclose(found, gate / (1 + np.exp(-gate)) * up, rtol=1e-3, atol=1e-3)
