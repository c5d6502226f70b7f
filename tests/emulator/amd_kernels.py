"""Kernels in AMD's assembly, with what they compute: small, and with a way for each to go wrong."""

from dataclasses import dataclass

import numpy as np
from emulator.amd import run

_FRAME = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
k:
{body}
  s_endpgm
.amdhsa_kernel k
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size 0
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
.end_amdhsa_kernel
"""


def launch(body, *arguments, arch="gfx942", grid=1, threads=64, lds=1024, **options):
    """Run instructions; scalar registers 0 and 1 point to the arguments, 2 is the block."""
    text = _FRAME.format(arch=arch, body=body, lds=lds)
    return run(text, "k", (grid, 1, 1), (threads, 1, 1), list(arguments), **options)


@dataclass(frozen=True)
class Kernel:
    """A body, how it is launched, its inputs and result for a generator of random numbers."""

    body: str
    shape: dict
    inputs: object
    result: object

    def wrong(self, body, rng, **options):
        """Run a body; returns whether its result is wrong."""
        given = self.inputs(rng)
        wanted = self.result(*(x.astype("f8") for x in given))
        got = np.full(wanted.shape, np.nan, "f4")
        launch(body, *given, got, **self.shape, **options)
        return not np.allclose(got, wanted, rtol=1e-4, atol=1e-4)


# C[32, 16] = A[32, 64] B[16, 64]^T: two waves, B through LDS, 16 of k a turn.
GEMM = Kernel(
    """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_and_b32_e32 v1, 63, v0
  v_lshrrev_b32_e32 v2, 6, v0
  v_and_b32_e32 v3, 15, v1
  v_lshrrev_b32_e32 v4, 4, v1
  v_lshl_add_u32 v5, v2, 4, v3
  v_lshlrev_b32_e32 v6, 3, v4
  v_lshl_add_u32 v5, v5, 7, v6
  v_lshrrev_b32_e32 v7, 3, v0
  v_and_b32_e32 v8, 7, v0
  v_lshlrev_b32_e32 v9, 2, v8
  v_lshl_add_u32 v7, v7, 7, v9
  v_lshlrev_b32_e32 v8, 2, v0
  v_lshl_add_u32 v9, v3, 5, v6
  v_mov_b32_e32 v10, 0
  v_mov_b32_e32 v11, 0
  v_mov_b32_e32 v12, 0
  v_mov_b32_e32 v13, 0
  s_mov_b32 s3, 4
  s_waitcnt lgkmcnt(0)
LOOP:
  global_load_dword v14, v7, s[6:7]
  global_load_dwordx2 v[16:17], v5, s[4:5]
  s_waitcnt vmcnt(1)
  ds_write_b32 v8, v14
  s_waitcnt lgkmcnt(0)
  s_barrier ; written
  ds_read_b64 v[18:19], v9
  v_add_u32_e32 v5, 32, v5
  v_add_u32_e32 v7, 32, v7
  s_add_i32 s3, s3, -1
  s_cmp_lg_u32 s3, 0
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_barrier ; read
  v_mfma_f32_16x16x16_f16 v[10:13], v[16:17], v[18:19], v[10:13]
  s_cbranch_scc1 LOOP
  v_lshlrev_b32_e32 v4, 2, v4
  v_lshl_add_u32 v4, v2, 4, v4
  v_lshlrev_b32_e32 v3, 2, v3
  v_lshl_add_u32 v4, v4, 6, v3
  global_store_dword v4, v10, s[8:9]
  global_store_dword v4, v11, s[8:9] offset:64
  global_store_dword v4, v12, s[8:9] offset:128
  global_store_dword v4, v13, s[8:9] offset:192
""",
    {"threads": 128, "lds": 512},
    lambda rng: (
        rng.standard_normal((32, 64)).astype("f2"),
        rng.standard_normal((16, 64)).astype("f2"),
    ),
    lambda a, b: a @ b.T,
)

# C[16, 16] = A[16, 16] B[16, 16]^T: one wave of 32 lanes.
WMMA = Kernel(
    """
  s_load_b128 s[4:7], s[0:1], 0x0
  s_load_b64 s[8:9], s[0:1], 0x10
  v_and_b32_e32 v1, 15, v0
  v_lshlrev_b32_e32 v2, 5, v1
  v_lshrrev_b32_e32 v3, 4, v0
  v_lshlrev_b32_e32 v3, 6, v3
  v_lshl_add_u32 v3, v1, 2, v3
  s_waitcnt lgkmcnt(0)
  global_load_b128 v[4:7], v2, s[4:5]
  global_load_b128 v[8:11], v2, s[4:5] offset:16
  global_load_b128 v[12:15], v2, s[6:7]
  global_load_b128 v[16:19], v2, s[6:7] offset:16
  s_waitcnt vmcnt(0)
  v_wmma_f32_16x16x16_f16 v[20:27], v[4:11], v[12:19], 0
  global_store_b32 v3, v20, s[8:9]
  global_store_b32 v3, v21, s[8:9] offset:128
  global_store_b32 v3, v22, s[8:9] offset:256
  global_store_b32 v3, v23, s[8:9] offset:384
  global_store_b32 v3, v24, s[8:9] offset:512
  global_store_b32 v3, v25, s[8:9] offset:640
  global_store_b32 v3, v26, s[8:9] offset:768
  global_store_b32 v3, v27, s[8:9] offset:896
""",
    {"threads": 32, "arch": "gfx1100"},
    lambda rng: tuple(rng.standard_normal((2, 16, 16)).astype("f2")),
    lambda a, b: a @ b.T,
)

# Sums of rows of 50: a wave a row, reduced by DPP.
SUM = Kernel(
    """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32_e32 v1, 0
  v_cmp_gt_u32_e32 vcc, 50, v0
  s_mul_i32 s3, s2, 0xc8
  v_lshlrev_b32_e32 v2, 2, v0
  v_add_u32_e32 v2, s3, v2
  s_waitcnt lgkmcnt(0)
  s_and_saveexec_b64 s[8:9], vcc
  s_cbranch_execz SKIP
  global_load_dword v1, v2, s[4:5]
SKIP:
  s_or_b64 exec, exec, s[8:9]
  s_waitcnt vmcnt(0)
  v_add_f32_dpp v1, v1, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1
  s_nop 1
  v_add_f32_dpp v1, v1, v1 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
  s_nop 1
  v_add_f32_dpp v1, v1, v1 row_shr:4 row_mask:0xf bank_mask:0xf bound_ctrl:1
  s_nop 1
  v_add_f32_dpp v1, v1, v1 row_shr:8 row_mask:0xf bank_mask:0xf bound_ctrl:1
  s_nop 1
  v_add_f32_dpp v1, v1, v1 row_bcast:15 row_mask:0xa bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v1, v1, v1 row_bcast:31 row_mask:0xc bank_mask:0xf
  v_cmp_eq_u32_e32 vcc, 63, v0
  s_and_saveexec_b64 s[8:9], vcc
  s_lshl_b32 s3, s2, 2
  v_mov_b32_e32 v3, s3
  global_store_dword v3, v1, s[6:7]
""",
    {"grid": 3},
    lambda rng: (rng.standard_normal((3, 50)).astype("f4"),),
    lambda x: x.sum(1),
)

# y = x - (x, upper and lower half of each word exchanged), halves two by two.
HALVES = Kernel(
    """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_lshlrev_b32_e32 v2, 3, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v3, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_pk_add_f16 v4, v3, v3 op_sel:[0,1] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]
  v_cvt_f32_f16_e32 v6, v4
  v_cvt_f32_f16_sdwa v7, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1
  global_store_dwordx2 v2, v[6:7], s[6:7]
""",
    {},
    lambda rng: (rng.integers(-99, 99, 128).astype("f2"),),
    lambda x: (x.reshape(-1, 2) - x.reshape(-1, 2)[:, ::-1]).ravel(),
)
