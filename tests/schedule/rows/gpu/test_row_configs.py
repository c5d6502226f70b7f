"""Any configuration of a row kernel computes the same; the first is the default."""

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from nvcc import cuda_source, machine_code, needs_nvcc
from test_rows_gpu import DEVICE
from test_rows_vectors import TOLERANCE
from tvm import tirx

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import call, check
from tvm_fusion.device import parse
from tvm_fusion.schedule.rows.gpu.config import row_config
from tvm_fusion.schedule.rows.gpu.kernel import schedule_rows_gpu
from tvm_fusion.schedule.rows.gpu.space import FLAGS, configs
from tvm_fusion.schedule.rows.gpu.vector_loop import KEEP_PACKED
from tvm_fusion.schedule.rows.program.row_program import row_program

SEED = 5


def made(example, **options):
    """The kernel of the default configuration with some options changed."""
    program = example.program()
    config = replace(row_config(row_program(program), DEVICE), **options)
    return schedule_rows_gpu(program, config, DEVICE).with_attr("global_symbol", "main")


def space(example, spec="cuda:sm_90a"):
    return list(configs(row_program(example.program()), parse(spec).device))


EXAMPLES = {
    "layer norm": programs.layer_norm(5, 1000, "float16"),
    "layer norm of a sum": programs.layer_norm(3, 640, "bfloat16", residual=True),
    "unaligned layer norm": programs.layer_norm(3, 643, "float16"),
    "RMS norm": programs.rms_norm(5, 512, "float16"),
    "softmax": programs.softmax(5, 1000, dtype="bfloat16"),
    "group norm": programs.group_norm_silu(2, 3, 4, 8, 8),
    "sum": programs.total((5, 1024), (1,)),
}


@pytest.mark.slow_beyond(5)
@pytest.mark.parametrize("name", EXAMPLES)
def test_any_configuration_is_right(name):
    example = EXAMPLES[name]
    program = example.program()
    found = space(example)
    rng = np.random.default_rng(SEED)
    dtype = str(example.outputs[-1].dtype)
    for number in rng.permutation(len(found))[:6]:
        func = schedule_rows_gpu(program, found[number], DEVICE)
        check(example, func.with_attr("global_symbol", "main"), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("spec", ["cuda:sm_90a", "rocm:gfx942"])
def test_the_space_is_large_distinct_and_starts_with_the_default(spec):
    example, device = programs.layer_norm(512, 4096, "float16"), parse(spec).device
    found = space(example, spec)
    assert found[0] == row_config(row_program(example.program()), device)
    assert len(found) == len(set(found)) > 10
    assert {c.keep_packed for c in found} == set(FLAGS if device.kind == "cuda" else FLAGS[:1])
    for config in found:
        threads = config.threads * config.rows
        assert threads <= (device.max_threads_per_block or 1024)
        assert config.threads % device.warp_size == 0 or config.threads < device.warp_size
    assert {c.one_pass_variance for c in found} == {False, True}


@pytest.mark.parametrize(
    "example",
    [programs.softmax_over_middle(2, 64, 64), programs.softmax(5, tirx.Var("n", "int64"))],
)
def test_rows_without_vectors_have_one_configuration(example):
    assert len(space(example)) == 1


# One pass for the mean and the variance


def hard_rows(n, dtype):
    """Rows whose first elements are far from the others, whose spread is small, or that are not."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((8, n))
    x[1] = 1000 + x[1]  # a mean of a thousand standard deviations
    x[2, 0] = 3000
    x[3, :4] = 500
    x[4] = -7
    x[5] = np.where(np.arange(n) == n - 1, 900, 0.001 * x[5])
    x[6, n // 2] = np.nan
    x[7, 1] = np.inf
    return x.astype(dtype)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("n", [8, 643, 1000, 4096])
def test_variances_of_hard_rows(n, one_pass):
    example = programs.layer_norm(8, n, "float16")
    func = made(example, one_pass_variance=one_pass, keep_packed=True)
    x = hard_rows(n, "float16")
    rng = np.random.default_rng(n)
    gamma, beta = (rng.standard_normal(n).astype("float16") for _ in range(2))
    y = call(func, x, gamma, beta, np.zeros_like(x))[-1].astype("float64")
    with np.errstate(invalid="ignore"):
        (right,) = example.reference(x, gamma, beta)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(right))
    error = np.abs(y - right)[:6]  # those before have no NaN
    assert (error / np.abs(right[:6]).max(1, keepdims=True)).max() < 2e-3


def reductions(func):
    """Names of what all threads of a block reduce."""
    loads = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda s: loads.append(s.buffer.name)))
    return {name for name in loads if name.endswith("_warps")}


def barriers(func):
    return cuda_source(func).count("__syncthreads()")


def test_one_pass_has_one_barrier():
    example = programs.layer_norm(8, 4096, "float16")
    two, one = (made(example, threads=128, one_pass_variance=x) for x in FLAGS)
    assert barriers(one) == 1 < barriers(two)
    assert len(reductions(two)) == len(reductions(one)) == 2
    wide = programs.layer_norm(8, 4096, "float32")  # its results need all of float32
    assert barriers(made(wide, threads=128, one_pass_variance=True)) > 1
    rms = programs.rms_norm(8, 4096, "float16")  # no mean is subtracted
    assert barriers(made(rms, threads=128, one_pass_variance=True)) == 1


# The last step of a row that fills no whole steps


TAILS = {
    "layer norm": (programs.layer_norm(3, 1048, "float16"), 64),
    "softmax": (programs.softmax(3, 1048, dtype="bfloat16"), 32),
    "RMS norm": (programs.rms_norm(3, 520, "float16"), 32),
    "search": (programs.argmax((3, 1028), 1), 64),
    "groups": (programs.group_norm_silu(2, 3, 4, 14, 14), 64),
}


@pytest.mark.parametrize("case", TAILS)
def test_masked_tails(case):
    example, threads = TAILS[case]
    func = made(example, threads=threads, mask_tail=True)
    check(example, func, tolerance=TOLERANCE.get(str(example.outputs[-1].dtype), 0))


def test_a_masked_tail_has_no_branch_around_loads():
    example = programs.layer_norm(3, 1048, "float16")
    load = re.compile(r"^( *)\*\(uint4\*\)\(\w+ \+ \d+\) = \*\(uint4\*\)\(\w+_ptr", re.M)

    def deepest(masked):
        text = cuda_source(made(example, threads=64, mask_tail=masked))
        return max(len(indent) for indent in load.findall(text))

    assert deepest(True) < deepest(False)


# What the compiler is told


def test_rows_of_half_types_stay_packed():
    example = programs.layer_norm(8, 4096, "float16")
    packed = cuda_source(made(example, threads=128, keep_packed=True))
    assert packed.count(f"{KEEP_PACKED}_4((&(x_row_ptr") >= 2 * 4  # vectors, in two passes
    assert KEEP_PACKED not in cuda_source(made(example))
    wide = programs.layer_norm(8, 4096, "float32")
    assert KEEP_PACKED not in cuda_source(made(wide, keep_packed=True))


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_packed_rows_take_fewer_registers():
    """Fails where the compiler keeps rows packed by itself, or in spite of what it is told not."""
    example = programs.layer_norm(8, 4096, "bfloat16")
    kinds = {"packed": {"keep_packed": True}, "free": {}}
    found = machine_code({k: made(example, threads=128, **v) for k, v in kinds.items()})
    assert found["packed"].registers + 16 <= found["free"].registers
    assert all(one.stack_bytes == one.spilled_bytes == 0 for one in found.values())
