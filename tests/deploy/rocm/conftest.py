import fake_hip
import pytest
from softmax_chain import Kernels, chain, export_unlinked

from tvm_fusion.deploy.toolchain.host import require_compiler


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return fake_hip.FakeHip(fake_hip.build(require_compiler(), tmp_path_factory.mktemp("hip")))


@pytest.fixture
def hip(library):
    """A GPU that nothing runs on yet; a fault that it found fails the test."""
    library.configure()
    library.reset()
    library.run_kernels_by(Kernels(library))
    yield library
    assert library.complaint() == ""


@pytest.fixture(scope="session")
def chain_folder(tmp_path_factory):
    return export_unlinked(chain(), "rocm:gfx90a,gfx942", tmp_path_factory.mktemp("rocm") / "chain")
