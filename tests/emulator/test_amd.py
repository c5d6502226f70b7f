"""The interpreter of AMD code, by kernels written here as assembly."""

import numpy as np
import pytest
from amd_code import amd_module, reverse_twice
from emulator.amd import Mistake, run

HEAD = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
k:
{body}
  s_endpgm
.amdhsa_kernel k
  .amdhsa_group_segment_fixed_size 4096
  .amdhsa_private_segment_fixed_size 0
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
.end_amdhsa_kernel
"""


def launch(body, *arguments, arch="gfx942", grid=1, threads=64, **options):
    text = HEAD.format(arch=arch, body=body)
    return run(text, "k", (grid, 1, 1), (threads, 1, 1), list(arguments), **options)


COPY = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v0, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v1, v0, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dword v0, v1, s[6:7]
"""


def test_a_copy():
    x, y = np.random.default_rng().random(64, "float32"), np.zeros(64, "float32")
    launch(COPY, x, y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("  s_waitcnt vmcnt(0)\n", "", "reads v1 before the wait for 'global_load_dword"),
        ("  s_waitcnt lgkmcnt(0)\n", "", "reads s4 before the wait for 's_load_dwordx4"),
        ("v_lshlrev_b32_e32 v0, 2, v0", "v_lshlrev_b32_e32 v0, 3, v0", "bytes behind the start"),
        ("v0, v1, s[6:7]", "v0, v2, s[6:7]", "stores registers that nothing wrote"),
        ("v1, v0, s[4:5]", "v1, v3, s[4:5]", "address is made of registers that nothing wrote"),
    ],
)
def test_slips_of_a_copy(line, instead, says):
    assert line in COPY
    x, y = np.zeros(64, "float32"), np.zeros(64, "float32")
    with pytest.raises(Mistake, match=says):
        launch(COPY.replace(line, instead), x, y)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_compiled_kernel_needs_no_tool(arch, reverse):
    assembly = amd_module({"main": reverse_twice}, arch).inspect_source("asm")
    x, y = np.random.default_rng().random(256, "float32"), np.zeros(256, "float32")
    run(assembly, "main_kernel", (1, 1, 1), (256, 1, 1), [x, y], reverse=reverse)
    third = (x + np.float32(1)) * np.float32(3)
    np.testing.assert_array_equal(y, third[(np.arange(256) + 3) % 256])
    for missing in ("s_barrier", "lgkmcnt(0)"):
        broken = assembly.replace(missing, "s_nop 0" if missing[0] == "s" else "lgkmcnt(9)")
        with pytest.raises(Mistake):
            run(broken, "main_kernel", (1, 1, 1), (256, 1, 1), [x, y], reverse=reverse)
