import os
import shutil

# Before TVM is imported: threads that wait for work spin, and tests run side by side.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # TVM's as well

import onnx
import pytest
import tiny_models


@pytest.fixture(scope="session")
def dense_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "dense.onnx"
    onnx.save(tiny_models.dense(), path)
    return path


@pytest.fixture(scope="session")
def dense_artifact():
    """A compiled model that is not written yet."""
    import tvm_fusion

    return tvm_fusion.compile(tiny_models.dense(), dims={"batch": tvm_fusion.DimRange(1, 8)})


@pytest.fixture(scope="session")
def dense_folder(dense_artifact, tmp_path_factory):
    """An artifact that nobody changes."""
    return dense_artifact.export(tmp_path_factory.mktemp("artifacts") / "dense")


@pytest.fixture
def dense_copy(dense_folder, tmp_path):
    """An artifact of one's own, to be damaged."""
    return shutil.copytree(dense_folder, tmp_path / "dense")
