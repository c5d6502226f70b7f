"""The interpreter of AMD code: kernels that are right, and slips in them that it has to find."""

import numpy as np
import pytest
from amd_code import amd_module, reverse_twice, run_on_amd
from emulator.amd import Mistake, Unsupported, banks, loops, run
from emulator.amd_kernels import GEMM, HALVES, SUM, WMMA, launch

KERNELS = {"gemm": GEMM, "wmma": WMMA, "sum": SUM, "halves": HALVES}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("reverse", [False, True])
def test_kernels_are_right(kernel, reverse):
    assert not kernel.wrong(kernel.body, np.random.default_rng(), reverse=reverse)


FIELD = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_mov_b32 s10, 0x183
  s_bfe_i64 s[10:11], s[10:11], 0x{width}0000
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v1, s10
  v_mov_b32_e32 v2, 0
  global_store_dword v2, v1, s[4:5]
"""


def test_a_field_of_a_pair_does_not_need_its_other_half():
    found = np.zeros(1, "i4")
    launch(FIELD.format(width=8), found)
    assert found[0] == -125
    with pytest.raises(Mistake, match="nothing wrote"):
        launch(FIELD.format(width=28), found)


# A kernel, its text, another one instead, and what is said of it; nothing: the numbers are wrong.
SLIPS = [
    ("gemm", "  s_waitcnt vmcnt(1)\n", "", "reads v14 before the wait for 'global_load_dword "),
    ("gemm", "vmcnt(1)", "vmcnt(2)", "reads v14 before the wait for 'global_load_dword "),
    ("gemm", "vmcnt(1)", "lgkmcnt(0)", "reads v14 before the wait for 'global_load_dword "),
    ("gemm", "  s_waitcnt lgkmcnt(0)\n  s_barrier ; w", "  s_barrier ; w", "reads LDS that wave"),
    ("gemm", "s_barrier ; written", "s_nop 0", "reads LDS that wave"),
    ("gemm", "s_barrier ; read", "s_nop 0", "writes LDS that wave"),
    ("gemm", "vmcnt(0) lgkmcnt(0)", "vmcnt(0)", "reads v18 before the wait for 'ds_read_b64"),
    ("gemm", "s_waitcnt lgkmcnt(0)\nLOOP", "LOOP", "reads s6 before the wait for 's_load"),
    ("gemm", "v[16:17], v[18:19], v[10:13]", "v[18:19], v[16:17], v[10:13]", None),
    ("gemm", "v[18:19], v[10:13]", "v[18:19], 0", None),
    ("gemm", "  v_mov_b32_e32 v11, 0\n", "", "operands are registers that nothing wrote"),
    ("gemm", "v[18:19], v9", "v[18:19], v9 offset:8", "bytes of LDS at 512"),
    ("gemm", "s_mov_b32 s3, 4", "s_mov_b32 s3, 3", None),
    ("gemm", "s_mov_b32 s3, 4", "s_mov_b32 s3, 5", "bytes behind the start of argument"),
    ("gemm", "offset:192", "offset:196", "bytes behind the start of argument 2, which has 2048"),
    ("gemm", "v_add_u32_e32 v7, 32, v7", "v_add_u32_e32 v7, 32, v15", "nothing wrote"),
    ("wmma", "v_and_b32_e32 v1, 15, v0", "v_and_b32_e32 v1, 7, v0", None),
    ("wmma", "v[4:7], v2,", "v[4:7], v3,", "lanes 16 to 31 hold other values of A"),
    ("wmma", "s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)", "reads v1[6-9] before the wait"),
    ("wmma", "0x10", "0x8", "bytes behind the start of argument 1, which has 512"),
    ("sum", "row_shr:4", "row_shr:3", None),
    ("sum", "row_bcast:31 row_mask:0xc", "row_bcast:31 row_mask:0x4", None),
    ("sum", "s_and_saveexec_b64 s[8:9], vcc\n  s_c", "s_mov_b64 s[8:9], exec\n  s_c", "argument 0"),
    ("sum", "s_lshl_b32 s3, s2, 2", "s_mov_b32 s3, 0", "writes memory that wave 0 of block"),
    ("sum", "row_shr:8 row_mask:0xf bank_mask:0xf", "row_shr:8 row_mask:0xf bank_mask:0x7", None),
    ("sum", "  s_nop 1\n  v_add_f32_dpp v1, v1, v1 row_shr:2",
     "  v_add_f32_dpp v1, v1, v1 row_shr:2",
     "v1 of another lane less than 2 wait states"),
    ("sum", "v_cmp_gt_u32_e32 vcc, 50, v0\n", "s_nop 0\n", "nothing wrote"),
    ("halves", "op_sel:[0,1] op_sel_hi:[1,0]", "op_sel_hi:[1,0]", None),
    ("halves", "src0_sel:WORD_1", "src0_sel:WORD_0", None),
    ("halves", "v_lshlrev_b32_e32 v2, 3, v0", "v_lshlrev_b32_e32 v2, 2, v0",
     "other lanes of the wave"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "instead", "says"), SLIPS)
@pytest.mark.parametrize("reverse", [False, True])
def test_slips_are_found(name, text, instead, says, reverse):
    kernel, rng = KERNELS[name], np.random.default_rng()
    assert kernel.body.count(text) >= 1
    body = kernel.body.replace(text, instead, 1)
    if says is None:
        assert kernel.wrong(body, rng, reverse=reverse)
    else:
        with pytest.raises(Mistake, match=says):
            kernel.wrong(body, rng, reverse=reverse)


@pytest.mark.parametrize("line", ["v_frobnicate_b32 v0, v1", "v_add_f32_e32 v0, q1, v2"])
def test_what_is_unknown_is_one_sentence(line):
    with pytest.raises(Unsupported, match=line.split()[0] + "|q1"):
        launch(line)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_a_compiled_kernel_needs_no_tool(arch):
    x, y = np.random.default_rng().random(256, "float32"), np.zeros(256, "float32")
    run_on_amd(reverse_twice, arch, x, y)
    third = (x + np.float32(1)) * np.float32(3)
    np.testing.assert_array_equal(y, third[(np.arange(256) + 3) % 256])


@pytest.mark.parametrize("missing", ["s_barrier", "lgkmcnt(0)"])
def test_a_compiled_kernel_needs_its_waits(missing):
    assembly = amd_module({"main": reverse_twice}, "gfx1100").inspect_source("asm")
    broken = assembly.replace(missing, {"s_barrier": "s_nop 0"}.get(missing, "lgkmcnt(9)"))
    arrays = [np.zeros(256, "float32") for _ in range(2)]
    with pytest.raises(Mistake):
        run(broken, "main_kernel", (1, 1, 1), (256, 1, 1), arrays)


def test_clocks_of_a_loop():
    arrays = [*GEMM.inputs(np.random.default_rng()), np.zeros((32, 16), "f4")]
    (loop,) = loops(launch(GEMM.body, *arrays, **GEMM.shape, clocks=True), "gfx942")
    assert loop.turns == 4
    assert loop.instructions["matrix"] == 1
    assert (
        loop.instructions["lds"] == loop.instructions["memory"] == loop.instructions["scalar"] == 2
    )
    assert loop.clocks["matrix"] == 2 * 16**3 / 512
    assert loop.matrix_share == 16 / (16 + 2 * 4 + 2 * 4 + 2 * 4 + 2 * 4 + 4)
    # A write of 4 bytes a lane in two turns; a read of 8 in four, of rows 8 banks apart.
    assert loop.lds_ideal == 2 + 4
    assert loop.lds_clocks == 2 + 4 * 4


@pytest.mark.parametrize(("stride", "clocks"), [(4, 2), (8, 4), (128, 64), (132, 2), (0, 2)])
def test_bank_conflicts(stride, clocks):
    assert banks.clocks(np.arange(64) * stride, 4) == (clocks, 2)
