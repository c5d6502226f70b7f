"""Row programs on the CPU: right for odd sizes and all kinds of stages, in vectors, one region."""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, te, tirx
from tvm.script import tirx as T

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import build, check, cpu_target
from tvm_fusion.core.tir.expressions import call_name, variables
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.cpu.register_tile import VectorUnit
from tvm_fusion.schedule.math.vector_math import vector_math
from tvm_fusion.schedule.rows.cpu.kernel import schedule_rows_cpu

pytestmark = pytest.mark.slow_beyond(4)

HALF = 2e-3
CASES = {
    "softmax": programs.softmax,
    "masked softmax": lambda a, b: programs.softmax(a, b, masked=True),
    "log-softmax": lambda a, b: programs.softmax(a, b, logarithm=True),
    "layer norm": programs.layer_norm,
    "residual layer norm": lambda a, b: programs.layer_norm(a, b, residual=True),
    "half layer norm": lambda a, b: programs.layer_norm(a, b, "float16", residual=True),
    "RMS norm": programs.rms_norm,
    "group norm": lambda a, b: programs.group_norm_silu(2, 3, 2, a, b),
    "instance norm": lambda a, b: programs.instance_norm(2, 3, a, b),
    "sum of rows": lambda a, b: programs.total((a, b), (1,)),
    "max of rows": lambda a, b: programs.total((a, b), (1,), "max"),
    "sum of columns": lambda a, b: programs.total((b, a), (0,)),
    "sum over the middle": lambda a, b: programs.total((3, b, a), (1,)),
    "sum of all": lambda a, b: programs.total((a, b), (0, 1)),
    "argmax of rows": lambda a, b: programs.argmax((a, b), 1),
    "argmax of columns": lambda a, b: programs.argmax((b, a), 0),
    "two reductions": programs.sum_and_max,
    "global average": lambda a, b: programs.global_average(2, 3, a, b),
    "softmax over the middle": lambda a, b: programs.softmax_over_middle(2, b, a),
    "results inside rows": lambda a, b: programs.center_of_columns(3, a, b),
    "map to half": programs.half_epilogue,
    "mirrored": programs.mirrored,
    "lines and pairs": lambda a, b: programs.softmax_of_lines_then_pairs(2, a + 1, b),
    "scaled by extremum": lambda a, b: programs.scaled_by_extremum(2, a, b),
    "norm of parts": lambda a, b: programs.norm_of_parts(a, b, b + 1),
    "mirrored results": lambda a, b: programs.mirrored_columns(2, b, a),
}
POOLS = [(2, 3, 9, 9), (2, 3, 19, 40, 2), (1, 3, 17, 33, 2, 1), (1, 2, 7, 7, 1, 1)]


def scheduled(example, target=None):
    return schedule_rows_cpu(example.program(), target or cpu_target())


@pytest.mark.parametrize("size", [(1, 1), (5, 127), (37, 100)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_odd_sizes(case, size):
    example = CASES[case](*size)
    check(example, scheduled(example), tolerance=HALF if "half" in case else 5e-6)


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_windows(pool):
    example = programs.max_pool(*pool)
    check(example, scheduled(example))


M, N = (tirx.Var(name, "int64") for name in "mn")
SYMBOLIC = [
    (programs.softmax(N, 100), {"n": 7}),
    (programs.softmax(5, N), {"n": 100}),
    (programs.softmax(M, N), {"m": 3, "n": 67}),
    (programs.softmax(M, N), {"m": 3, "n": 1}),
    (programs.layer_norm(N, 33, residual=True), {"n": 9}),
    (programs.total((33, N), (0,)), {"n": 130}),
    (programs.total((33, N), (0,)), {"n": 5}),
    (programs.total((N, 33), (0,)), {"n": 130}),
    (programs.argmax((N, 33), 0), {"n": 130}),
    (programs.argmax((7, N), 1), {"n": 13}),
    (programs.max_pool(N, 3, 9, 9, 2, 1), {"n": 3}),
    (programs.scaled_by_extremum(M, N, 3), {"m": 9, "n": 11}),
    (programs.scaled_by_extremum(M, N, 3), {"m": 1, "n": 1}),
]


@pytest.mark.parametrize("number", range(len(SYMBOLIC)))
def test_symbolic_extents(number):
    example, sizes = SYMBOLIC[number]
    check(example, scheduled(example), sizes)


@pytest.mark.parametrize(("rows", "regions"), [(2, 0), (512, 1)])
def test_one_parallel_region_for_much_work(rows, regions):
    code = build(scheduled(programs.layer_norm(rows, 1024, residual=True))).mod
    names = {line for line in code.inspect_source("ll").splitlines() if "define" in line}
    assert sum("parallel_lambda" in name for name in names) == regions


def test_sums_and_exponentials_are_vectors():
    target = cpu_target("cpu:skylake-avx512")
    code = build(scheduled(programs.softmax(64, 1000), target), target).mod
    assert "fadd <64 x float>" in code.inspect_source("ll")
    assert "expf" not in code.inspect_source("asm")


def test_rows_are_lanes_where_they_are_neighbours():
    text = scheduled(programs.total((100, 640), (0,)), cpu_target("cpu:skylake-avx512")).script()
    assert "T.vectorized(T.int64(64))" in text
    assert "T.parallel(T.int64(10))" in text


def test_row_buffers_hold_one_row():
    func = scheduled(programs.softmax(64, 1000))
    blocks = []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append))
    sizes = [np.prod([int(e) for e in b.shape]) for block in blocks for b in block.alloc_buffers]
    assert max(sizes) == 1000


def test_exponential_is_right_to_two_ulp():
    x = te.placeholder((1 << 16,), "float32", "x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda i: te.exp(x[i]), "y")])

    def lower(store):
        return tirx.BufferStore(store.buffer, vector_math(store.value), store.indices)

    func = func.with_body(
        tvm_ffi.structural_map(func.body, (tirx.BufferStore, lower), order="post")
    )
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-30, -87.4, 88.7, 88.8], "float32")
    values = np.linspace(-110, 95, (1 << 16) - special.size).astype("float32")
    values = np.concatenate([values, special])
    result = tvm.runtime.tensor(np.zeros_like(values))
    build(func)["main"](tvm.runtime.tensor(values), result)
    exact = np.exp(values.astype("float64"))
    with np.errstate(over="ignore"):
        rounded = exact.astype("float32")
    finite = np.isfinite(rounded)
    error = np.abs(result.numpy()[finite] - exact[finite]) / np.spacing(rounded[finite])
    assert error.max() < 2
    np.testing.assert_array_equal(result.numpy()[~finite], rounded[~finite])


def test_exponential_beside_what_tvm_cannot_vectorise():
    x = te.placeholder((64,), "float32", "x")
    func = te.create_prim_func(
        [
            x,
            te.compute(
                x.shape,
                lambda i: (te.exp(te.erf(tirx.log1p(x[i]))) + te.erf(x[i])) * tirx.log1p(x[i]),
                "y",
            ),
        ]
    )

    def in_lanes(loop):
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.VECTORIZED, loop.body)

    def lower(store):
        return tirx.BufferStore(store.buffer, vector_math(store.value), store.indices)

    callbacks = [(tirx.BufferStore, lower), (tirx.For, in_lanes)]
    func = func.with_body(tvm_ffi.structural_map(func.body, callbacks, order="post"))
    values = np.linspace(-0.9, 3, 64).astype("float32")
    result = tvm.runtime.tensor(np.zeros_like(values))
    build(func)["main"](tvm.runtime.tensor(values), result)
    erf = np.vectorize(math.erf)
    logs = np.log1p(values.astype("float64"))
    expected = (np.exp(erf(logs)) + erf(values)) * logs
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("lane", "is_vector"), [("i", True), ("j", False)])
def test_exponential_under_a_condition(lane, is_vector):
    """Lanes that part ways are computed one by one; a condition that all share is no obstacle."""
    variables = {name: tirx.Var(name, "int64") for name in "ij"}
    x = tirx.Cast("float32", variables["i"] + variables["j"])
    value = te.if_then_else(variables["j"] < 3, te.exp(x), x)
    lowered = vector_math(value, variables[lane])
    assert lowered.same_as(value) != is_vector


def test_what_is_no_row_program_is_named():
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
        for i, k in T.grid(4, 8):
            with T.sblock("odd"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = 0.0
                y[vi] = T.exp(y[vi]) - x[vi, vk]

    with pytest.raises(ValueError, match="odd: the update"):
        schedule_rows_cpu(programs.program_of(func, 1, 1), cpu_target())


def test_lanes_are_neighbouring_terms_where_results_lie_apart_in_what_is_read():
    @T.prim_func(s_tir=True)
    def sums(
        x: T.Buffer((T.int64(3), T.int64(640)), "float32"),
        total: T.Buffer((T.int64(3),), "float32"),
    ):
        for i, k in T.grid(T.int64(3), T.int64(640)):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]

    text = schedule_rows_cpu(programs.program_of(sums, 0, 1), cpu_target()).script()
    assert f"total_{4 * VectorUnit.of(cpu_target()).lanes}_" in text
    assert "range(T.int64(640))" not in text


@pytest.mark.parametrize(("parts", "lanes"), [((96, 32), 32), ((64, 16), 16), ((32, 33), 32)])
def test_a_vector_is_of_one_part_of_a_concatenation(parts, lanes):
    """Its width divides where the second part starts; what is left at the end has choices."""
    example = programs.norm_of_parts(3, *parts)
    func = scheduled(example, cpu_target("cpu:x86-64-v3"))
    choices = [c for c in find(func.body, ir.Call) if call_name(c) == "if_then_else"]
    by_lane = [c for c in choices if any("lane" in v.name for v in variables(c.args[0]))]
    assert choices
    assert bool(by_lane) == (sum(parts) % lanes != 0)
    vectors = [f for f in find(func.body, tirx.For) if f.kind == tirx.ForKind.VECTORIZED]
    assert max(int(f.extent) for f in vectors) == lanes
    check(example, scheduled(example))
