import fcntl

import pytest


@pytest.fixture(scope="session")
def runner(tmp_path_factory, request):
    """The runner in C++, built once for all processes that run tests."""
    from tvm_fusion.deploy.build.bundle import build_runner

    root = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # of xdist: each has a folder of its own in there
        root = root.parent
    folder, done = root / "runner", root / "runner.done"
    with (root / "runner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not done.exists():
            build_runner(folder)
            done.touch()
    return folder / "tvm_fusion_run"
