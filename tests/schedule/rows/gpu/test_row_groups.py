"""Several groups of rows for a block: what rows share is loaded once, offsets stay the same."""

from dataclasses import replace

import pytest
from nvcc import cuda_source
from test_rows_gpu import DEVICE
from test_rows_vectors import TOLERANCE

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import check
from tvm_fusion.device import parse
from tvm_fusion.schedule.rows.gpu import row_groups
from tvm_fusion.schedule.rows.gpu.config import row_config
from tvm_fusion.schedule.rows.gpu.forms import default_config
from tvm_fusion.schedule.rows.gpu.kernel import schedule_rows_gpu
from tvm_fusion.schedule.rows.program.row_program import row_program


def made(example, threads, rows=1, groups=3, **options):
    """The kernel of blocks of several groups."""
    program = example.program()
    config = replace(row_config(row_program(program), DEVICE), threads=threads, rows=rows)
    config = replace(config, groups_per_block=groups, **options)
    return schedule_rows_gpu(program, config, DEVICE).with_attr("global_symbol", "main")


# Rows, elements, threads of a row, rows of a block: of 50 groups the last blocks have fewer.
SHAPES = [
    (50, 256, 32, 1),
    (50, 643, 32, 1),
    (50, 643, 64, 1),
    (101, 129, 16, 4),
    (70, 1002, 32, 2),
]
NORMS = {
    "layer norm": programs.layer_norm,
    "RMS norm": lambda m, n, dtype: programs.rms_norm(m, n, dtype),
    "residual": lambda m, n, dtype: programs.layer_norm(m, n, dtype, residual=True),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_is_computed(shape):
    m, n, threads, rows = shape
    example = programs.layer_norm(m, n, "float16")
    check(example, made(example, threads, rows), tolerance=TOLERANCE["float16"])


@pytest.mark.parametrize("case", NORMS)
def test_norms_of_bfloat16_in_one_pass(case):
    example = NORMS[case](50, 643, "bfloat16")
    func = made(example, 32, one_pass_variance=True)
    check(example, func, tolerance=TOLERANCE["bfloat16"])


def test_float32_rows():
    example = programs.layer_norm(50, 644, "float32")
    check(example, made(example, 64))


def test_rows_of_another_offset_would_be_noticed(monkeypatch):
    monkeypatch.setattr(row_groups, "MAX_LANES", 1)  # of a stride: odd rows begin anywhere
    example = programs.layer_norm(51, 643, "float16")
    with pytest.raises(Exception, match=r"outside|twice|^assert"):
        check(example, made(example, 32), tolerance=TOLERANCE["float16"])


def test_what_rows_share_is_loaded_before_the_loop():
    text = cuda_source(made(programs.layer_norm(50, 643, "float16"), 32))
    before, loop = text.split("for (int turn", 1)
    assert before.count("gamma_ptr[") == 11 * 2
    assert "gamma_ptr[" not in loop


def test_few_or_any_rows_have_a_block_each():
    """The stride would be all of them."""
    for m in (5, 8):
        example = programs.layer_norm(m, 256, "float16")
        func = made(example, 32)
        assert "int turn" not in cuda_source(func)
        check(example, func, tolerance=TOLERANCE["float16"])


def chosen(example, spec="cuda:sm_90a"):
    return default_config(row_program(example.program()), parse(spec).device).groups_per_block


def test_many_short_unaligned_norms_are_grouped():
    assert chosen(programs.layer_norm(63249, 677, "float16")) > 4


@pytest.mark.parametrize(
    "example",
    {
        "few rows": programs.layer_norm(6000, 677, "float16"),
        "aligned": programs.layer_norm(63249, 680, "float16"),
        "longer than a warp's": programs.layer_norm(16460, 1709, "float16"),
        "two streams": programs.layer_norm(63249, 677, "float16", residual=True),
        "nothing shared": programs.softmax(63249, 677, dtype="float16"),
    }.items(),
    ids=lambda item: item[0],
)
def test_others_are_not(example):
    assert chosen(example[1]) == 1


def test_no_groups_on_amd():
    assert chosen(programs.layer_norm(63249, 677, "float16"), "rocm:gfx942") == 1
