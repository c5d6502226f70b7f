"""Whole models compiled for GPUs that need not be there: machine code inside, no source."""

import pytest
from device_code import EM_AMDGPU, cuda_archs, elf_flags, fat_binary_kinds

import tvm_fusion
from benchmarks import zoo
from tvm_fusion.deploy.toolchain import rocm
from tvm_fusion.device import cuda_devices

MODEL = "light_squeezenet"  # its input is called data_0, its smallest kernel is a pooling
CUBIN = 2
AMD_MACHINES = {"gfx942": 0x4C, "gfx1100": 0x41}  # EF_AMDGPU_MACH (LLVM's AMDGPU usage guide)


def export(target, folder):
    artifact = tvm_fusion.compile(zoo.load(MODEL), target)
    assert not [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    return artifact.export(folder / "artifact")


def refusal(folder):
    with pytest.raises(tvm_fusion.UserError) as error:
        tvm_fusion.load(folder)
    return str(error.value)


@pytest.mark.cuda_toolchain
def test_cuda_artifact_holds_cubins_of_each_architecture(tmp_path):
    folder = export("cuda:sm_80,sm_90a", tmp_path)
    library = (folder / "model.so").read_bytes()
    assert set(cuda_archs(library)) == {80, 90}
    assert set(fat_binary_kinds(library)) == {CUBIN}
    assert b"__global__" not in library
    assert b".visible .entry" not in library
    if not cuda_devices():
        assert "is made for cuda:sm_80,sm_90a; this machine has no visible CUDA device" in refusal(
            folder
        )


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.parametrize("arch", AMD_MACHINES)
def test_rocm_artifact_holds_a_code_object(tmp_path, arch):
    folder = export(f"rocm:{arch}", tmp_path)
    flags = elf_flags((folder / "model.so").read_bytes(), EM_AMDGPU)
    assert [flag & 0xFF for flag in flags] == [AMD_MACHINES[arch]]


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.parametrize(
    ("name", "arch"), [("t5_small_enc", "gfx1100"), ("bert_base_dyn", "gfx942")]
)
def test_kernels_of_models_on_amd_keep_to_their_registers(name, arch):
    """Whatever addresses shared memory as global, or does not wait, is refused by the build."""
    dims = {"seq": tvm_fusion.DimRange(1, 300)} if name.endswith("_dyn") else {}
    artifact = tvm_fusion.compile(zoo.load(name), f"rocm:{arch}", precision="fp16", dims=dims)
    codes = [d["code"] for d in artifact.manifest["decisions"]]
    assert not {"out_of_registers", "claim_broken"} & set(codes)
