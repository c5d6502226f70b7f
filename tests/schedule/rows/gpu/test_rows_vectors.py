"""Row programs on a GPU in vectors: where they are, how wide, and that results stay right."""

import re

import numpy as np
import pytest
import tvm_ffi
from group_kernels import CUDA, arrays, close, group, kernel, run, tensor
from nvcc import cuda_source, machine_code, needs_nvcc
from test_rows_gpu import DEVICE, buffers, scheduled, threads_and_blocks
from tvm import ir, relax, te, tirx

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import check
from tvm_fusion.core.contract.templates import template
from tvm_fusion.device import parse
from tvm_fusion.schedule.rows.gpu.config import row_config
from tvm_fusion.schedule.rows.gpu.forms import default_config, estimate_rows_gpu
from tvm_fusion.schedule.rows.program.row_program import row_program

pytestmark = pytest.mark.slow_beyond(4)

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 5e-6}
WIDTH = {"float16": 8, "bfloat16": 8, "float32": 4}
NORMS = {
    "softmax": lambda m, n, dtype: programs.softmax(m, n, dtype=dtype),
    "layer norm": lambda m, n, dtype: programs.layer_norm(m, n, dtype, residual=True),
    "RMS norm": programs.rms_norm,
}


def widths(func):
    """How many elements each vector statement moves."""
    found = []

    def note(loop):
        if loop.kind == tirx.ForKind.VECTORIZED:
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, note))
    return sorted(set(found))


# Right, and in vectors where that is possible


@pytest.mark.parametrize("dtype", WIDTH)
@pytest.mark.parametrize("case", NORMS)
@pytest.mark.parametrize("size", [(5, 1000), (2, 4096)], ids=str)
def test_whole_vectors(case, size, dtype):
    example = NORMS[case](*size, dtype)
    func = scheduled(example)
    assert WIDTH[dtype] in widths(func)
    check(example, func, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("size", [5, 768, 1000])
def test_gathered_elements_come_behind_their_indices(size):
    """Several passes read a row by indices, which a thread has not loaded when a pass begins."""
    params = [
        tensor("x", 3, size, dtype="float16"),
        tensor("order", size, dtype="int32"),
        tensor("scale", size, dtype="float16"),
    ]

    def body(emit, x, order, scale):
        row = emit(relax.op.take(x, order, axis=1, mode="clip"))
        return emit(relax.op.nn.rms_norm(row, scale, axes=[-1], epsilon=1e-5))

    members = group(params, body, CUDA)
    _, func = kernel(template("rows", CUDA.tvm_target()), members, CUDA)
    inputs = arrays(params)
    inputs["order"] = np.random.default_rng().permutation(size).astype("int32")
    x, order, scale = inputs.values()
    row = x.astype("float64")[:, order]
    expected = row / np.sqrt((row**2).mean(-1, keepdims=True) + 1e-5) * scale.astype("float64")
    close(run(func, members, inputs, CUDA), [expected], TOLERANCE["float16"])


@pytest.mark.parametrize("case", NORMS)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(1, "float16"), (3, "float16"), (3, "bfloat16"), (127, "float32"), (129, "float32")],
)
def test_single_elements_of_short_or_wide_ones(case, n, dtype):
    example = NORMS[case](5, n, dtype)
    func = scheduled(example)
    assert widths(func) == []
    check(example, func, tolerance=TOLERANCE[dtype])


def test_narrower_vectors_where_rows_end_in_the_middle_of_wide_ones():
    for n, expected in ((2056, 8), (64, 8), (1028, 4), (1026, 2)):
        example = NORMS["softmax"](3, n, "float16")
        func = scheduled(example)
        assert widths(func) == [expected]
        check(example, func, tolerance=TOLERANCE["float16"])


def test_the_widest_type_that_each_row_has_its_own_of_decides():
    func = scheduled(programs.half_epilogue(64, 1024))  # float32 in, float16 out
    assert widths(func) == [4]
    func = scheduled(programs.rms_norm(64, 1024, "float16"))  # float32 weights
    assert widths(func) == [4, 8]


MANY = {
    "long": (programs.layer_norm(2, 40000, residual=True), 4),
    "longer than registers": (programs.softmax(1, 1 << 17), 4),
    "groups": (programs.group_norm_silu(2, 3, 4, 8, 8), 4),
    "vectors across lines": (programs.group_norm_silu(2, 3, 4, 14, 14), 4),
    "narrow vectors across lines": (programs.group_norm_silu(2, 3, 4, 6, 15), 2),
    "one row": (programs.scaled_by_extremum(8, 9, 16), 4),
    "sum": (programs.total((5, 1024), (1,)), 4),
    "search": (programs.argmax((5, 1024), 1), 4),
    "long search": (programs.argmax((2, 40000), 1), 4),
    "all": (programs.total((40, 1024), (0, 1)), 4),
    "two reductions": (programs.sum_and_max(70, 512), 4),
    "surplus rows": (programs.softmax(37, 256), 4),
}


@pytest.mark.parametrize("case", MANY)
def test_many_programs(case):
    example, width = MANY[case]
    func = scheduled(example)
    assert widths(func) == [width]
    check(example, func)


def first_of_equals(n):
    """Where a row of few values, each many times, has its largest."""
    x = programs.tensor(3, n)
    rounded = programs.compute((3, n), lambda i, j: te.floor(x[i, j]), "rounded")
    y = programs.topi.argmax(rounded, 1)
    return programs.Example([x], [y], 1, lambda x: [programs.np.floor(x).argmax(1)])


@pytest.mark.parametrize("n", [1, 3, 127, 129, 1000, 1024, 40000])
def test_a_thread_compares_once_for_the_first_of_equals(n):
    example = first_of_equals(n)
    func = scheduled(example)
    check(example, func)
    if n == 1024:
        comparisons = []
        tvm_ffi.structural_walk(func.body, (tirx.EQ, comparisons.append))
        ties = [c for c in comparisons if str(c.a.ty.dtype) == "float32"]
        warps = threads_and_blocks(func)[2]
        assert len(ties) <= warps  # between warps, and between the threads of each


def taken_apart(m, heads, size, gap):
    """Rows whose elements have two dimensions in what is read, with others between."""
    n = heads * size
    x = programs.tensor(m, heads, size + gap)
    k = programs.reduced(n, "k")

    def at(i, k):
        return x[i, te.floordiv(k, size), te.floormod(k, size)]

    top = programs.compute((m,), lambda i: te.max(at(i, k), k), "top")
    y = programs.compute((m, n), lambda i, j: at(i, j) - top[i], "y")

    def reference(x):
        x = x.astype("float64")[:, :, :size].reshape(m, n)
        return [x - x.max(1, keepdims=True)]

    return programs.Example([x], [y], 1, reference)


@pytest.mark.parametrize(
    ("head", "expected"),
    [((84, 4), [4]), ((14, 2), [2]), ((21, 3), []), ((20, 1), []), ((21, 0), [4])],
)
def test_no_vector_goes_on_in_another_head(head, expected):
    example = taken_apart(6, 16, *head)
    func = scheduled(example)
    assert widths(func) == expected
    if expected == [4]:
        assert cuda_source(func).count("*(float4*)(x_ptr") > 0
    check(example, func)


@pytest.mark.parametrize(("start", "expected"), [(4, [4]), (2, [2]), (1, [])])
def test_slices_begin_at_whole_vectors_or_are_read_one_by_one(start, expected):
    example = programs.sliced(5, 512, start)
    func = scheduled(example)
    assert widths(func) == expected
    check(example, func)


def backwards(m, n):
    """Rows of which one pass reads the last element first."""
    x = programs.tensor(m, n)
    k = programs.reduced(n, "k")
    top = programs.compute((m,), lambda i: te.max(x[i, k], k), "top")
    y = programs.compute((m, n), lambda i, j: x[i, n - 1 - j] - top[i], "y")
    return programs.Example([x], [y], 1, lambda x: [x[:, ::-1] - x.max(1, keepdims=True)])


@pytest.mark.parametrize(
    "example",
    [
        backwards(5, 512),
        programs.softmax_over_middle(2, 64, 64),  # strides
        programs.max_pool(1, 3, 32, 32),  # windows
        programs.softmax(5, tirx.Var("n", "int64")),  # an unknown length
        programs.mirrored(5, 512),  # elements that threads exchange
        programs.softmax_of_lines_then_pairs(2, 5, 64),
    ],
)
def test_no_vectors_where_they_do_not_fit(example):
    func = scheduled(example)
    assert widths(func) == []
    check(example, func, {"n": 77})


# Geometry and storage


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((8192, 4096), (8192, 32, 4)),  # 4 vectors a thread
        ((8192, 5120), (8192, 32, 5)),
        ((8192, 11200), (8192, 32, 8)),  # no more than 8 warps
        ((8192, 32768), (8192, 32, 16)),  # but for what their registers cannot hold
        ((8192, 1024), (2048, 32, 4)),  # a warp a row
        ((1 << 18, 128), (1 << 14, 8, 16)),  # a part of a warp
        ((256, 4096), (256, 32, 16)),  # few rows: one vector a thread
        ((64, 65536), (128, 32, 32)),  # two blocks a row
        ((3, 1 << 20), (12, 32, 32)),
    ],
)
def test_threads_for_vectors(size, expected):
    func = scheduled(NORMS["softmax"](*size, "float16"))
    assert threads_and_blocks(func) == expected


def test_threads_for_narrow_accesses():
    """Two elements at a time: of one stream all that four vectors hold, of two a quarter of it."""
    softmax, rms_norm = programs.softmax, programs.rms_norm
    assert threads_and_blocks(scheduled(softmax(8192, 8214, dtype="float16")))[1:] == (32, 8)
    assert threads_and_blocks(scheduled(rms_norm(8192, 8214, "float16")))[1:] == (32, 32)


def test_two_blocks_for_rows_that_are_read_again():
    """Registers do not hold them: many rows have 512 threads each, few all that there are."""
    for rows, threads in ((512, 512), (200, 1024)):
        example = programs.softmax(rows, 65536, dtype="float16")
        config = estimate_rows_gpu(example.program(), DEVICE).config
        assert config.threads == threads
        assert config.min_blocks_per_sm == (2 if rows == 512 else None)


def test_threads_for_unaligned_rows_that_share_a_scale():
    """1025 vectors of four elements, 8 or 9 for each thread; of two elements 11 at most."""
    example = programs.layer_norm(8192, 4095, "float16")
    assert threads_and_blocks(scheduled(example)) == (8192, 32, 4)
    for n, warps in ((2183, 4), (2841, 5), (1709, 3), (2454, 4), (677, 1)):
        program = row_program(programs.layer_norm(1 << 15, n, "float16").program())
        assert row_config(program, DEVICE).threads == 32 * warps


@pytest.mark.parametrize(
    ("shape", "is_one_pass"),
    [
        ((4016, 3184), True),
        ((9381, 1008), True),
        ((18978, 3072), False),  # many
        ((1314, 11776), False),  # long
        ((128, 768), False),  # less than a wave
    ],
)
def test_variances_of_few_waves_take_one_pass(shape, is_one_pass):
    norm, softmax = programs.layer_norm(*shape, "float16"), programs.softmax(*shape, "float16")
    chosen = [default_config(row_program(x.program()), DEVICE) for x in (norm, softmax)]
    assert [c.one_pass_variance for c in chosen] == [is_one_pass, False]


def test_blocks_of_a_row_write_their_parts():
    example = programs.softmax(3, 40000)  # 10 steps of 1024 threads, 3 or 2 for each of 4 blocks
    func = scheduled(example)
    assert threads_and_blocks(func)[0] == 12
    check(example, func)
    example = programs.rms_norm(3, 40000)  # writes before it has reduced
    assert threads_and_blocks(scheduled(example))[0] == 3


def test_rows_share_waves_on_amd():
    target = parse("rocm:gfx942").tvm_target()
    func = scheduled(NORMS["softmax"](8192, 128, "float16"), target)
    assert threads_and_blocks(func) == (1024, 16, 8)


@pytest.mark.parametrize("case", NORMS)
def test_each_element_is_read_once(case):
    func = scheduled(NORMS[case](8192, 4096, "float16"))
    loads = []
    tvm_ffi.structural_walk(func.body, (ir.TensorLoad, loads.append))
    read = [load.source.name for load in loads if load.source.scope() == "global"]
    assert sorted(set(read)) == sorted(read)


def test_no_row_is_shared_and_the_estimate_knows():
    for case in NORMS.values():
        example = case(8192, 4096, "float16")
        func = scheduled(example)
        assert all(name.endswith("_warps") for name in buffers(func, "shared"))
        estimate = estimate_rows_gpu(example.program(), DEVICE)
        _, x, y = threads_and_blocks(func)
        config = estimate.config
        assert (config.threads * config.rows, estimate.shared_bytes) == (x * y, 0)


# Machine code


@pytest.mark.parametrize("m", [37, 64])
def test_barriers_stand_where_all_threads_come(m):
    """Lowering refuses others."""
    for example in (programs.softmax_of_lines_then_pairs(2, m, 100), programs.mirrored(m, 5000)):
        assert "__syncthreads()" in cuda_source(scheduled(example))


@pytest.mark.cuda_toolchain
@needs_nvcc
@pytest.mark.parametrize("dtype", WIDTH)
def test_cuda_moves_sixteen_bytes_and_spills_nothing(dtype):
    examples = {f"case{i}": NORMS[case](8192, 4096, dtype) for i, case in enumerate(NORMS)}
    for one in machine_code({name: scheduled(e) for name, e in examples.items()}).values():
        assert one.stack_bytes == one.spilled_bytes == 0
        assert one.registers <= 128  # 512 threads of a multiprocessor at least
        assert re.search(r"ld\.global[.\w]*\.v4", one.ptx)
        assert re.search(r"st\.global[.\w]*\.v4", one.ptx)
        assert not re.search(r"(ld|st)\.global(\.nc)?\.[ufb](16|32)\b", one.ptx)


def test_what_rows_share_is_widened_at_once_and_has_registers():
    """Not the rows themselves: all of their loads are issued before one is converted."""
    text = cuda_source(scheduled(programs.layer_norm(64, 4096, "bfloat16")))
    widened = set(re.findall(r"tvm_fusion_widen\((\w+)_early", text))
    assert widened == {"gamma", "beta"}
    blocks = re.search(r"__launch_bounds__\((\d+), (\d+)\)", text)
    assert int(blocks[1]) * int(blocks[2]) >= 512
    alone = cuda_source(scheduled(programs.softmax(64, 4096, dtype="bfloat16")))
    assert "tvm_fusion_widen(" not in alone
    assert re.search(r"__launch_bounds__\(\d+\)", alone)
