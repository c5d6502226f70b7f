"""Several groups of rows for a block: what rows share is converted once, offsets stay the same."""

from dataclasses import replace

import pytest
import row_programs as programs
from nvcc import cuda_source
from row_checks import check
from test_rows_gpu import DEVICE
from test_rows_vectors import TOLERANCE

from tvm_fusion.device import parse
from tvm_fusion.schedule.rows import row_groups
from tvm_fusion.schedule.rows.config_gpu import row_config
from tvm_fusion.schedule.rows.configs_gpu import configs
from tvm_fusion.schedule.rows.gpu import schedule_rows_gpu
from tvm_fusion.schedule.rows.row_groups import grouped, grouped_config, staged_bytes
from tvm_fusion.schedule.rows.row_program import row_program


def made(example, threads, rows=1, groups=3, **options):
    """The kernel of blocks of several groups."""
    program = example.program()
    config = grouped(row_config(row_program(program), DEVICE), threads, rows, 64, groups)
    config = replace(config, **options)
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


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", NORMS)
def test_every_row_is_computed(case, shape, one_pass):
    (m, n, threads, rows), dtype = shape, "bfloat16" if one_pass else "float16"
    example = NORMS[case](m, n, dtype)
    func = made(example, threads, rows, one_pass_variance=one_pass)
    check(example, func, tolerance=TOLERANCE[dtype])


def test_float32_rows():
    example = programs.layer_norm(50, 644, "float32")
    check(example, made(example, 64))


def test_rows_of_another_offset_would_be_noticed(monkeypatch):
    monkeypatch.setattr(row_groups, "MAX_LANES", 1)  # of a stride: odd rows begin anywhere
    example = programs.layer_norm(51, 643, "float16")
    with pytest.raises(Exception, match=r"outside|twice|^assert"):
        check(example, made(example, 32), tolerance=TOLERANCE["float16"])


def test_what_rows_share_is_converted_before_the_loop():
    text = cuda_source(made(programs.layer_norm(50, 643, "float16"), 32))
    before, loop = text.split("for (int turn", 1)
    assert before.count("((float)gamma_ptr[") == before.count("gamma_ptr[") == 3 * 8
    assert "gamma_ptr[" not in loop
    assert loop.count("*(float4*)(gamma_staged_ptr") == 3 * 2


def test_few_or_any_rows_have_a_block_each():
    """The stride would be all of them."""
    for m in (5, 8):
        example = programs.layer_norm(m, 256, "float16")
        func = made(example, 32)
        assert "int turn" not in cuda_source(func)
        check(example, func, tolerance=TOLERANCE["float16"])


def chosen(example, spec="cuda:sm_90a"):
    program, device = row_program(example.program()), parse(spec).device
    return grouped_config(program, row_config(program, device), device)


@pytest.mark.parametrize("n", [677, 1709, 2828, 3072, 4095])
def test_many_norms_of_half_types_are_grouped(n):
    example = programs.layer_norm(1 << 26 // n, n, "float16")
    config = chosen(programs.layer_norm((1 << 25) // n, n, "float16"))
    assert config is not None
    assert config.threads % 32 == 0
    program = row_program(example.program())
    assert 0 < staged_bytes(program, config) <= 48 << 10


@pytest.mark.parametrize(
    "example",
    {
        "few rows": programs.layer_norm(512, 1024, "float16"),
        "float32": programs.layer_norm(30000, 1024, "float32"),
        "two streams": programs.layer_norm(30000, 1024, "float16", residual=True),
        "nothing shared": programs.softmax(30000, 1024, dtype="float16"),
        "longer than registers": programs.layer_norm(4000, 50000, "float16"),
    }.items(),
    ids=lambda item: item[0],
)
def test_others_are_not(example):
    assert chosen(example[1]) is None


def test_no_groups_on_amd():
    assert chosen(programs.layer_norm(30000, 1024, "float16"), "rocm:gfx942") is None


def test_the_space_has_groups():
    program = row_program(programs.layer_norm(30000, 1709, "float16").program())
    found = {c.groups_per_block for c in configs(program, parse("cuda:sm_90a").device)}
    assert {1, 4, 8, 16} <= found
