import pytest


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """The runner in C++, built once."""
    from tvm_fusion.deploy.bundle import build_runner

    folder = tmp_path_factory.mktemp("runner")
    build_runner(folder)
    return folder / "tvm_fusion_run"
