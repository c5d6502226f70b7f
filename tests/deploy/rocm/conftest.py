import shutil
import subprocess

import fake_hip
import pytest
from emulator.amd.run import run
from scaled_chain import KERNEL_IN_C, Kernels, chain, export_unlinked

from tvm_fusion.deploy.toolchain.host import require_compiler


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    return fake_hip.FakeHip(fake_hip.build(require_compiler(), tmp_path_factory.mktemp("hip")))


@pytest.fixture
def hip(fake):
    """A GPU that nothing runs on yet; a fault that it found fails the test."""
    fake.configure()
    fake.reset()
    fake.run_kernels_by(Kernels(fake))
    yield fake
    assert fake.complaint() == ""


@pytest.fixture(params=[False, True], ids=["first wave first", "last wave first"])
def gpu(hip, request):
    """A GPU whose kernels are interpreted."""

    def launch(code, name, grid, block, shared, arguments):
        memory = hip.memory()
        run(code, name, grid, block, arguments, shared, memory=memory, reverse=request.param)

    hip.run_kernels_by(launch)
    hip.error = None
    yield hip
    assert hip.error is None


@pytest.fixture(scope="session")
def chain_folder(tmp_path_factory):
    return export_unlinked(chain(), "rocm:gfx90a,gfx942", tmp_path_factory.mktemp("rocm") / "chain")


@pytest.fixture(scope="session")
def rocm(fake, tmp_path_factory):
    """The environment of a process whose machine has the fake as ROCm, with kernels in C."""
    root = tmp_path_factory.mktemp("opt")
    (root / "lib").mkdir()
    shutil.copy(fake.path, root / "lib" / "libamdhip64.so")
    (root / "kernels.c").write_text(KERNEL_IN_C)
    command = [require_compiler(), "-x", "c", "-shared", "-fPIC", "-O1", root / "kernels.c"]
    subprocess.run([*command, "-o", root / "kernels.so"], check=True)
    return {"ROCM_PATH": str(root), "FAKE_HIP_KERNELS": str(root / "kernels.so")}
