"""The table of forms of attention on a GPU: the first that it has is claimed."""

import pytest
from group_kernels import CUDA, group

from tests.schedule.attention.attention_graphs import PLAIN, tensors
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.cuda_cores.config import GpuConfig
from tvm_fusion.schedule.attention.flash.wave.config import FlashWaveConfig
from tvm_fusion.schedule.attention.forms import ROWS, choose
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.template import Attention

TEMPLATE = Attention(True)
CASES = {
    "flash-decoding": tensors(1, 8, 1, 512, 64, dtype="float16"),
    "FlashAttention": tensors(2, 16, 2048, 2048, 64, dtype="float16"),
    "CUDA cores": tensors(1, 8, 128, 128, 64),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_form_is_claimed_and_told(name):
    members = group(CASES[name], PLAIN[0], CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    found = choose(read_group(members, TEMPLATE._floats), CUDA.device)
    assert type(claim.details.config) is type(found.config)
    forms = TEMPLATE.forms(claim, CUDA.device)
    assert list(dict.fromkeys(form.name for form in forms)) == [row.name for row in ROWS]
    assert [form.name for form in forms if form.is_chosen] == [name]
    assert all(bool(form.sentence) != form.is_chosen for form in forms)
    before = [form for form in forms if ROWS[0].name != name and form.name == ROWS[0].name]
    assert all(form.kernel == "" for form in before)


def test_kernels_on_tensor_cores_are_chosen_by_time():
    claim = TEMPLATE.claim(group(CASES["FlashAttention"], PLAIN[0], CUDA), CUDA.device)
    forms = [f for f in TEMPLATE.forms(claim, CUDA.device) if f.name == "FlashAttention"]
    units = {form.kernel.split(",")[0] for form in forms}
    assert units == {"mma.sync", "wgmma", "wgmma with TMA"}
    (chosen,) = (form for form in forms if form.is_chosen)
    assert chosen.clocks == min(form.clocks for form in forms)
    assert {f.sentence for f in forms if not f.is_chosen} == {"Estimated to be slower."}


def test_heads_that_no_form_computes_well_are_refused():
    pattern = read_group(group(tensors(1, 1, 512, 512, 512, dtype="float16"), PLAIN[0], CUDA))
    refusal = choose(pattern, CUDA.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "head_too_large"


@pytest.mark.parametrize("arch", ["gfx942", "gfx90a", "gfx1100"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matrix_cores_of_amd_multiply_halves(arch, dtype):
    spec = parse(f"rocm:{arch}")

    def chosen(queries, keys, dtype=dtype, size=64):
        given = tensors(1, 12, queries, keys, size, dtype=dtype)
        found = choose(read_group(group(given, PLAIN[0], spec)), spec.device)
        assert not isinstance(found, Refusal)
        return type(found.config)

    for queries, keys, size in ((1024, 1024, 64), (64, 64, 32), (1 << 14, 1 << 14, 128)):
        assert chosen(queries, keys, size=size) is FlashWaveConfig
    assert chosen(1024, 1024, "float32") is GpuConfig
