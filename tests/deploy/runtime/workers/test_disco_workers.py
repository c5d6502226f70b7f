"""Models on several processes: results are those of one, and nothing hangs."""

import gc
import os
import signal
import threading
import time

import numpy as np
import parallel_models
import pytest
from parallel_models import IN_PLACE, inputs_of

import tvm_fusion
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.errors import UserError

pytestmark = pytest.mark.slow
OPTIONS = {"rewrite": "none", "in_place": IN_PLACE}
SPLIT = {"workers": 2, "shards": {"*": "split"}}


@pytest.fixture(scope="module")
def one():
    return tvm_fusion.load(tvm_fusion.compile(parallel_models.block(), **OPTIONS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    artifact = tvm_fusion.compile(parallel_models.block(), **OPTIONS, **SPLIT)
    return artifact.export(tmp_path_factory.mktemp("two") / "block")


@pytest.fixture
def exe(folder):
    with_two = tvm_fusion.load(folder, workers=2)
    yield with_two
    with_two.close()


def steps(session, count=4):
    draw = np.random.default_rng(5).standard_normal
    given = [(draw((1, 16)).astype("float32"), np.array([i])) for i in range(count)]
    return [session.run("main", x=x, place=place)["output_0"] for x, place in given]


def test_results_and_caches_are_those_of_one_process(one, exe):
    ours, theirs = inputs_of(), inputs_of()
    found, want = exe.run(ours), one.run(theirs)
    for name in want:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6, atol=1e-6)
    for name in IN_PLACE:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6)
    sessions = [e.session(position="place") for e in (exe, one)]
    for a, b in zip(*map(steps, sessions), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    sessions[0].reset()
    for a, b in zip(steps(sessions[0]), steps(exe.session(position="place")), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits_are_those_of_one_process(bits, tmp_path):
    model, x = parallel_models.packed(bits), np.random.default_rng(1).standard_normal((2, 256))
    want = tvm_fusion.load(tvm_fusion.compile(model))(x=x.astype("float32"))["output_0"]
    artifact = tvm_fusion.compile(model, **SPLIT)
    stored = sum(array.nbytes for array in artifact.weights.values())
    assert stored < 1.2 * sum(a.nbytes for a in tvm_fusion.compile(model).weights.values())
    exe = tvm_fusion.load(artifact.export(tmp_path / "packed"))
    found = exe(x=x.astype("float32"))["output_0"]
    exe.close()
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_mistake_is_told_and_leaves_the_workers_running(exe):
    with pytest.raises(
        UserError, match=r"input 'keys' has shape \(1, 8, 4\); expected \(2, 8, 4\)"
    ):
        exe.run({**inputs_of(), "keys": np.zeros((1, 8, 4), "float32")})
    with pytest.raises(UserError, match="dtype float64"):
        exe.run({**inputs_of(), "x": np.zeros((1, 16))})
    with pytest.raises(UserError, match="there is no output 'no'"):
        exe.run(inputs_of(), out={"no": np.zeros(1)})
    with pytest.raises(UserError, match="by itself of a model on 2 workers"):
        exe.bind({})
    assert set(exe.run(inputs_of())) == {"output_0", "output_1", "output_2"}


def processes(exe):
    return list(exe._workers._processes._processes.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0, 0.05])
def test_a_worker_that_ends_ends_all_within_seconds(folder, number, delay):
    exe = tvm_fusion.load(folder)
    session, (process,) = exe.session(position="place"), processes(exe)
    start = time.monotonic()
    threading.Timer(delay, os.kill, (process.pid, number)).start()

    def run_until_told():
        while time.monotonic() < start + 60:
            steps(session)

    with pytest.raises(UserError, match=r"worker 1 of 2 workers ended .*; load the artifact again"):
        run_until_told()
    assert time.monotonic() < start + 10  # most of the test is the start of a process
    assert process.poll() is not None
    with pytest.raises(UserError, match="have been closed; load the artifact again"):
        session.reset()


def test_workers_end_with_the_model(folder):
    exe = tvm_fusion.load(folder)
    (process,) = processes(exe)
    del exe
    gc.collect()
    assert process.poll() == 0


def test_numbers_of_workers_that_do_not_fit(folder):
    with pytest.raises(UserError, match=r"workers=4 for artifact .*, which is made for 2 workers"):
        tvm_fusion.load(folder, workers=4)
    with pytest.raises(UserError, match="other weights for artifact"):
        tvm_fusion.load(folder, weights={"constant": np.zeros(1)})


def test_another_artifact_for_one_worker(folder, monkeypatch):
    """The folder is replaced between the first worker's look and the others'."""
    read = manifest.read

    def changed(path):
        return {**read(path), "sha256": "0" * 64}

    monkeypatch.setattr(manifest, "read", changed)
    with pytest.raises(UserError, match=r"worker 1 found another artifact in .* than worker 0"):
        tvm_fusion.load(folder)
