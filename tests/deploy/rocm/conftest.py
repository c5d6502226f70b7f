import fake_hip
import pytest
from softmax_chain import Kernels, chain, export_unlinked

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


@pytest.fixture(scope="session")
def chain_folder(tmp_path_factory):
    return export_unlinked(chain(), "rocm:gfx90a,gfx942", tmp_path_factory.mktemp("rocm") / "chain")
