"""Skinny GEMM on tensor cores: right, and only where the device has them."""

import numpy as np
import pytest
from group_kernels import (
    CUDA,
    close,
    compiles_for_cuda,
    group,
    kernel,
    run,
    shared_bytes,
    tensor,
)
from nvcc import cuda_source
from quantised_products import along, inputs_of, int4, int8
from tvm import ir, relax

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.gpu.dlight import check_gpu

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
TEMPLATE = GpuContraction()


def across(rows, terms, columns, dtype="float16"):
    """Weights of half types that lie along the columns."""
    given = [tensor("x", rows, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    return given, lambda emit, x, w: op.matmul(x, w, "float32"), lambda x, w: [x @ w]


def batched(rows, terms, columns):
    """One matrix for each of three groups of rows."""
    given = [tensor("x", 3, rows, terms, dtype="float16")]
    given.append(tensor("w", 3, terms, columns, dtype="float16"))
    return given, lambda emit, x, w: op.matmul(x, w, "float32"), lambda x, w: [x @ w]


def gated(rows, terms, columns):
    """Two sums for each result."""
    params = [tensor("x", rows, terms, dtype="float16")]
    params.append(tensor("w", terms, 2 * columns, dtype="float16"))

    def body(emit, x, w):
        sides = emit(op.split(emit(op.matmul(x, w, "float32")), 2, axis=-1))
        gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
        return op.multiply(emit(op.nn.silu(gate)), up)

    def reference(x, w):
        gate, up = np.split(x @ w, 2, axis=-1)
        return [gate / (1 + np.exp(-gate)) * up]

    return params, body, reference


def halves(params, body, reference):
    """The halves of a product's columns, multiplied: two sums for each result."""

    def both(emit, *given):
        sides = emit(op.split(emit(body(emit, *given)), 2, axis=-1))
        return op.multiply(*(emit(relax.TupleGetItem(sides, i)) for i in range(2)))

    def product(*given):
        one, other = np.split(reference(*given)[0], 2, axis=-1)
        return [one * other]

    return params, both, product


CASES = {
    "three_rows": along(3, 1024, 64),
    "eight_rows": along(8, 512, 129 * 4),
    "long_rows": along(8, 4096, 36),
    "bfloat16": along(5, 2048, 128, "bfloat16"),
    "steps_for_some_warps": along(7, 96 * 5, 256),
    "one_step": along(4, 32, 1024),
    "across_two_rows": across(2, 1024, 512),
    "across_eight_rows": across(8, 1040, 1000),
    "across_bfloat16": across(7, 256, 264, "bfloat16"),
    "batch": batched(5, 128, 72),
    "two_sums_each": gated(7, 128, 528),
    "int4": int4(1, 1024, 128, 1, True, size=128),
    "int4_long_row": int4(1, 16384, 64, 1, True, size=128),
    "int4_rows": int4(13, 512, 36, 1, True, size=64),
    "int4_bfloat16": int4(3, 1024, 64, 1, True, "bfloat16", size=32),
    "int4_across": int4(2, 1024, 128, 0, False, size=128),
    "int4_across_pairs": int4(1, 1024, 256, 1, False, size=64),
    "int8": int8(1, 320, 144, False),
    "int8_along": int8(7, 512, 34, True),
}
OTHERS = {
    "one_row": along(1, 1024, 128),
    "two_rows_along": along(2, 1024, 128),
    "odd_terms": along(8, 1000, 128),
    "odd_columns": along(8, 1024, 129),
    "float32": along(8, 1024, 128, "float32"),
    "groups_in_a_tile": int4(1, 1024, 128, 1, True),
    "a_zero_between_numbers": int4(1, 1024, 128, 1, True, zero=7.5, size=128),
    "bytes_in_bfloat16": int8(1, 512, 32, True, "bfloat16"),
}


def multiplies(func):
    """Whether a kernel uses tensor cores."""
    calls = [x for x in find(func.body, ir.Call) if call_name(x) == "func_call"]
    return any("mma.sync.aligned.m16n8k16" in call.args[-1].value for call in calls)


@pytest.mark.parametrize("name", CASES)
def test_computes_the_product(name):
    params, body, reference = CASES[name]
    members = group(params, body, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    assert multiplies(func)
    assert claim.shared_bytes == shared_bytes(func)
    assert check_gpu(func, CUDA.tvm_target()) is None
    inputs = inputs_of(params)
    wide = [x if x.dtype.kind in "iu" else x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), reference(*wide), 2e-6)


def waits_behind_the_weights(func):
    text = cuda_source(func)
    text = text[text.index(") {", text.rindex("__global__")) :]
    return text.index("constant_ptr[") < text.index("griddepcontrol_wait()") < text.index("(x_ptr")


@pytest.mark.parametrize(("terms", "columns"), [(1024, 128), (2176, 36)])  # rounds of loads
@pytest.mark.parametrize("is_early", [False, True])
def test_a_norm_in_front_of_one_row(terms, columns, is_early):
    params, body, reference = int4(1, terms, columns, 1, True, size=128)
    params = [*params, tensor("gain", terms, dtype="float16")]
    inputs = inputs_of(params)
    inputs["x"] *= 1e-4  # whose products with the gain half types lack the digits of

    def normed(emit, x, q, s, gain):
        if is_early:
            q, s = (relax.const(inputs[name]) for name in "qs")
        return body(emit, emit(op.nn.rms_norm(x, gain, [-1], 1e-9)), q, s)

    members = group(params, normed, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    assert multiplies(func)
    assert claim.shared_bytes == shared_bytes(func)
    assert not is_early or waits_behind_the_weights(func)
    x = inputs["x"].astype("float64")
    rows = x / np.sqrt((x * x).mean() + 1e-9) * inputs["gain"]
    rounded = rows.astype("float16").astype("float64")
    wanted = reference(rounded, inputs["q"], inputs["s"].astype("float64"))
    close(run(func, members, inputs), wanted, 5e-5)


@pytest.mark.parametrize("stages", [2, 1])
def test_a_constant_weight_is_loaded_before_the_wait(stages):
    params, body, reference = int4(1, 4096, 128, 1, True, size=128)
    if stages == 1:  # more vectors of a tile
        params, body, reference = halves(params, body, reference)
    inputs = inputs_of(params)

    def early(emit, x, _, s):
        return body(emit, x, *(relax.const(inputs[name]) for name in "qs"))

    members = group(params, early, CUDA)
    claim, func = kernel(TEMPLATE, members, CUDA)
    assert claim.details.config.gemm.stages == stages
    assert waits_behind_the_weights(func)
    wide = [x if x.dtype.kind in "iu" else x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), reference(*wide), 2e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_others_use_cuda_cores(name):
    params, body, _ = OTHERS[name]
    assert not multiplies(kernel(TEMPLATE, group(params, body, CUDA), CUDA)[1])


@pytest.mark.parametrize(
    ("arch", "name", "has_units"),
    [
        ("cuda:sm_75", "eight_rows", True),
        ("cuda:sm_75", "int4", True),
        ("cuda:sm_75", "bfloat16", False),
        ("rocm:gfx90a", "eight_rows", False),
    ],
)
def test_tensor_cores_of_other_devices(arch, name, has_units):
    spec, (params, body, _) = parse(arch), CASES[name]
    func = kernel(TEMPLATE, group(params, body, spec), spec)[1]
    assert multiplies(func) is has_units
    assert ("m16n8k8" in func.script()) is has_units


@pytest.mark.parametrize(("name", "pair"), [("int4", "half2"), ("int4_bfloat16", "nv_bfloat162")])
def test_integers_are_dequantized_in_pairs(name, pair):
    """Without arithmetic of their own: the bias is subtracted from sums."""
    params, body, _ = CASES[name]
    text = cuda_source(kernel(TEMPLATE, group(params, body, CUDA), CUDA)[1])
    body = text[text.rindex("__global__") :]
    assert f"*({pair}*)(dequantized_ptr + 0)" in body
    assert not [x for x in ("fma", "__hsub", "__hmul") if x in body]


def test_opposite_products_cancel():
    """Sums of integers as they are stored are large where those of the weights are none."""
    params, body, reference = int4(1, 4096, 64, 1, True, size=128)
    members = group(params, body, CUDA)
    x, q, s = inputs_of(params).values()
    inputs = {"x": np.full_like(x, 3.0), "q": np.where(q > 127, 0x97, 0x79).astype(q.dtype), "s": s}
    _, func = kernel(TEMPLATE, members, CUDA)
    wide = [v if v.dtype.kind in "iu" else v.astype("float64") for v in inputs.values()]
    close(run(func, members, inputs), reference(*wide), 2e-6)


@pytest.mark.parametrize("zero", [-1.0, 16.0])
def test_a_fractional_zero_point(zero):
    params, body, _ = int4(1, 1024, 128, 1, True, zero=zero, size=128)
    assert not multiplies(kernel(TEMPLATE, group(params, body, CUDA), CUDA)[1])


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES)
