"""What passes over a row prefetch: the next row, and the lines that are written next."""

import pytest
import tvm_ffi
from tvm import ir, tirx

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import build, check, cpu_target
from tvm_fusion.schedule.rows.cpu.kernel import schedule_rows_cpu
from tvm_fusion.schedule.rows.cpu.prefetch import plan_hints
from tvm_fusion.schedule.rows.program.passes import plan_passes
from tvm_fusion.schedule.rows.program.row_program import row_program

AVX512 = "cpu:skylake-avx512"


def hints(example):
    program = row_program(example.program())
    return [
        [(hint.buffer.name, hint.is_write) for hint in some]
        for some in plan_hints(program, plan_passes(program))
    ]


def prefetched(func):
    calls = []
    tvm_ffi.structural_walk(func.body, (ir.Call, calls.append))
    return [str(call.args[1]) for call in calls if call.op.name == "tirx.call_llvm_intrin"]


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (programs.softmax(7, 300), [[], [("y", True), ("x", False)], []]),
        (programs.rms_norm(7, 300), [[("y", True)], [("x", False), ("r", False)]]),
        (programs.softmax(7, 1 << 15), [[], [], []]),
        (programs.total((7, 300), (1,)), [[]]),
        (programs.total((300, 7), (0,)), [[]]),
    ],
    ids=["softmax", "residual RMS norm", "long rows", "one pass", "columns"],
)
def test_each_row_is_asked_for_once(example, expected):
    assert [sorted(some) for some in hints(example)] == [sorted(some) for some in expected]


def test_lines_are_asked_for_once():
    func = schedule_rows_cpu(programs.softmax(7, 256).program(), cpu_target(AVX512))
    assert len(prefetched(func)) == 2 * 4  # of 16 elements each in a loop of 64
    assert "T.min(row + T.int64(1), T.int64(6))" in func.script()
    assert "prefetchw" in build(func, cpu_target(AVX512)).mod.inspect_source("asm")


@pytest.mark.parametrize("columns", [5, 15])
def test_rows_shorter_than_a_line_ask_for_nothing(columns):
    assert not prefetched(schedule_rows_cpu(programs.softmax(7, columns).program(), cpu_target()))


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_the_last_row_asks_for_itself(rows):
    example = programs.layer_norm(rows, 129, residual=True)
    check(example, schedule_rows_cpu(example.program(), cpu_target()))


def test_symbolic_rows_ask_too():
    m, n = (tirx.Var(name, "int64") for name in "mn")
    example = programs.softmax(m, n)
    func = schedule_rows_cpu(example.program(), cpu_target())
    assert prefetched(func)
    check(example, func, {"m": 3, "n": 200})
