"""Attention as one kernel, run against float64; GPU kernels one thread after the other."""

import group_kernels
import numpy as np
import pytest
import tvm
import tvm_ffi
from group_kernels import (
    CPU,
    CUDA,
    agrees,
    arrays,
    check,
    close,
    compiles_for_cuda,
    emitted,
    group,
    kernel,
    run,
    tensor,
)
from tvm import relax

from tests.schedule.attention.attention_graphs import (
    CASES,
    LOWEST,
    PLAIN,
    SYMBOLIC,
    added,
    as_rows,
    attention,
    beside_sink,
    beside_sink_arrays,
    beside_sink_tensors,
    guarded,
    op,
    reference,
    safe,
    safe_arrays,
    safe_tensors,
    scaled,
    spoil,
    tensors,
    to_rows,
)
from tvm_fusion.schedule.attention.cpu.query_lanes import query_lanes_cpu
from tvm_fusion.schedule.attention.cpu.query_lanes_config import QueryLanesConfig
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.problem.match import FLOATS
from tvm_fusion.schedule.attention.template import Attention

pytestmark = pytest.mark.slow_beyond(2)

SPECS = pytest.mark.parametrize("spec", [CPU, CUDA], ids=["cpu", "cuda"])


def template(spec):
    return Attention(spec is CUDA)


def compare(params, body, reference, spec, tolerance=2e-5):
    claim, func = check(template(spec), params, body, reference, spec, tolerance)
    assert claim.launches == 1
    return func


@SPECS
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case, spec):
    compare(*CASES[case], spec)


@pytest.mark.slow
@SPECS
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_lengths(case, spec, monkeypatch):
    params, body, expected = SYMBOLIC[case]
    made = emitted(template(spec), params, body, spec)
    assert made.claim.launches == 1
    for size in (2 if case in ("keys", "both", "one length") else 1, 5, 70):
        monkeypatch.setattr(group_kernels, "SIZE", size)
        agrees(made, params, expected, spec)


def test_without_keys_results_are_zero(monkeypatch):
    params, body, _ = SYMBOLIC["keys"]
    members = group(params, body, CPU)
    _, func = kernel(template(CPU), members, CPU)
    monkeypatch.setattr(group_kernels, "SIZE", 0)
    for result in run(func, members, arrays(params), CPU):
        np.testing.assert_array_equal(result, np.zeros_like(result))


def test_more_keys_than_a_tile_holds_at_run_time(monkeypatch):
    monkeypatch.setattr(group_kernels, "SIZE", 1300)
    compare(*SYMBOLIC["keys"], CPU)


@SPECS
@pytest.mark.parametrize(("queries", "keys"), [(19, 37), (70, 1500)])
def test_rows_that_see_a_sink_alone_are_zero(queries, keys, spec):
    params, body = beside_sink_tensors(queries, keys, 24), beside_sink
    made = emitted(template(spec), params, body, spec)
    inputs = arrays(params)
    inputs["mask"][..., 2:4, :] = -np.inf
    inputs["sink"][:] = [[[[-90.0]], [[3.0]], [[200.0]]]]  # beside scores of a few ones
    (found,) = run(made.func, made.members, inputs, spec)
    close([found], beside_sink_arrays(*(x.astype("float64") for x in inputs.values())))
    assert not found[:, :, 2:4].any()
    assert not found[:, 2].any()
    assert found[:, :2, 4:].all()


@SPECS
@pytest.mark.parametrize("instead", [0.0, 0.5])
@pytest.mark.parametrize("keys", [37, 1500])
def test_fully_masked_rows(keys, instead, spec):
    """The guard's number takes the place of NaN in rows of minus infinity alone."""
    params = [*tensors(1, 2, 19, keys, 24), tensor("mask", 1, 1, 19, keys)]
    body = attention(score=added, weigh=lambda emit, p, mask: guarded(emit, p, instead))
    members = group(params, body, spec)
    _, func = kernel(template(spec), members, spec)
    inputs = arrays(params)
    inputs["mask"][:] = np.where(inputs["mask"] > 0, 0, -np.inf)
    inputs["mask"][..., [2, 8], :] = -np.inf
    expected = reference(
        lambda s, mask: s / 8 + mask, lambda p, mask: np.where(np.isnan(p), instead, p)
    )
    close(run(func, members, inputs), expected(*wide(inputs, params)))


@SPECS
@pytest.mark.parametrize("keys", [37, 1500])
def test_rows_with_nan_or_infinity_stay_nan(keys, spec):
    """Zeros stand in rows of minus infinity alone."""
    params = safe_tensors(9, keys, 24)
    made = emitted(template(spec), params, safe, spec)
    assert made.claim.launches == 1
    inputs = arrays(params)
    spoil(inputs)
    close(run(made.func, made.members, inputs, spec), safe_arrays(*wide(inputs, params)))


@SPECS
def test_fully_masked_rows_without_a_guard(spec):
    params = [*tensors(1, 2, 9, 37, 24), tensor("mask", 1, 1, 9, 37)]
    members = group(params, attention(score=added), spec)
    _, func = kernel(template(spec), members, spec)
    inputs = arrays(params)
    inputs["mask"][..., 3, :] = -np.inf
    (result,) = run(func, members, inputs)
    assert np.isnan(result[:, :, 3]).all()
    assert not np.isnan(np.delete(result, 3, 2)).any()


@SPECS
def test_rows_masked_by_the_lowest_number_average_the_values(spec):
    params = [*tensors(1, 2, 9, 37, 24), tensor("mask", 1, 1, 9, 37)]
    members = group(params, attention(score=added), spec)
    _, func = kernel(template(spec), members, spec)
    inputs = arrays(params)
    inputs["mask"][..., 3, :] = LOWEST
    (result,) = run(func, members, inputs)
    np.testing.assert_allclose(result[:, :, 3], inputs["v"].mean(2), rtol=1e-5, atol=1e-6)


@SPECS
def test_halves_are_summed_in_float32(spec):
    def half(emit, s, mask):
        scale = relax.const(np.array(0.125, "float16"))
        return emit(op.add(emit(op.multiply(s, scale)), mask))

    params = [
        *tensors(1, 3, 21, 300, 64, dtype="float16"),
        tensor("mask", 1, 1, 21, 300, dtype="float16"),
    ]
    compare(
        params, attention(score=half), reference(lambda s, mask: s / 8 + mask), spec, tolerance=1e-3
    )


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_threads():
    params, body, _ = CASES["many keys"]
    members = group(params, body, CPU)
    _, func = kernel(template(CPU), members, CPU)
    inputs = arrays(params)
    configure = tvm.get_global_func("runtime.config_threadpool")
    try:
        results = []
        for count in (1, 2):
            configure(1, count)
            results.append(run(func, members, inputs)[0])
    finally:
        configure(1, 0)
    np.testing.assert_array_equal(*results)


@pytest.mark.slow
def test_products_and_exponentials_are_vectors():
    avx512 = group_kernels.parse("cpu:skylake-avx512")
    params, body, _ = CASES["head of 64"]
    _, func = kernel(template(avx512), group(params, body, avx512), avx512)
    func = func.with_attr("global_symbol", "main")
    built = tvm.compile(
        tvm.IRModule({"main": func}), avx512.tvm_target(), tir_pipeline="tvm_fusion"
    )
    text = built.mod.inspect_source("asm")
    assert text.count("vfmadd") > 24
    assert "expf" not in text


@pytest.mark.parametrize(
    ("shape", "sizes", "is_projected"),
    [
        ((2, 3, 37, 21, 5, 11), (16, 2, 8, 32), True),
        ((1, 2, 65, 50, 32, 24), (16, 1, 13, 80), False),
        ((1, 3, 19, 33, 8, 8), (8, 1, 14, 8), True),
        ((1, 2, 21, 9, 3, 7), (4, 2, 5, 16), False),
    ],
)
def test_queries_as_lanes(shape, sizes, is_projected):
    """Heads, queries, keys and elements that fill no vector and no tile."""
    lanes, vectors, rows, queries = sizes
    body = attention(score=scaled, finish=to_rows) if is_projected else PLAIN[0]
    expected = reference(lambda s: s / 8, finish=as_rows) if is_projected else PLAIN[1]
    params = tensors(*shape)
    members = group(params, body)
    pattern = read_group(members, FLOATS)
    config = QueryLanesConfig(lanes, vectors, rows, queries, shape[3], True, *shape[4:])
    func = query_lanes_cpu(members.program, pattern, config)
    claim = template(CPU).claim(members, CPU.device)
    agrees(group_kernels.Emitted(members, claim, func), params, expected, CPU)


def test_small_heads_have_queries_as_lanes():
    avx512 = group_kernels.parse("cpu:skylake-avx512")
    params = tensors(1, 2, 64, 64, 8)
    claim, func = kernel(template(avx512), group(params, PLAIN[0], avx512), avx512)
    assert isinstance(claim.details.config, QueryLanesConfig)
    func = func.with_attr("global_symbol", "main")
    built = tvm.compile(
        tvm.IRModule({"main": func}), avx512.tvm_target(), tir_pipeline="tvm_fusion"
    )
    assert "expf" not in built.mod.inspect_source("asm")


def test_scores_are_never_whole():
    params, body, _ = CASES["many keys"]
    _, func = kernel(template(CPU), group(params, body, CPU), CPU)
    blocks = []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append))
    sizes = [4 * np.prod([int(e) for e in b.shape]) for k in blocks for b in k.alloc_buffers]
    assert max(sizes) <= 1 << 18


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    cases = {name: CASES[name] for name in ("plain", "scale and mask", "rotary")}
    assert compiles_for_cuda(Attention(True), {**cases, "symbolic": SYMBOLIC["both"]})


def wide(inputs, params):
    return [inputs[p.name].astype("float64") for p in params]
