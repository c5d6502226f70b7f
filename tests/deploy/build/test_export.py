"""Writing an artifact: whatever happens, the old one or none is there."""

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from relax_modules import main_module
from tiny_models import dense_data
from tvm import relax

import tvm_fusion
from tvm_fusion.deploy.build import artifact as module
from tvm_fusion.deploy.build import build
from tvm_fusion.deploy.runtime.artifact import manifest, weights_file
from tvm_fusion.errors import UserError

FILES = {"manifest.json", "model.so", "weights.bin"}


def loads(folder):
    return tvm_fusion.load(folder)(data=dense_data(2))["scores"].shape == (2, 32)


def contents(place):
    return sorted(path.name for path in Path(place).iterdir())


def test_an_artifact_is_a_folder_of_three_files(dense_artifact, tmp_path):
    folder = dense_artifact.export(str(tmp_path / "new" / "deep" / "dense"))
    assert {path.name for path in folder.iterdir()} == FILES
    assert contents(folder.parent) == ["dense"]
    assert loads(folder)


def test_permissions_follow_the_umask(dense_artifact, tmp_path):
    old = os.umask(0o027)
    try:
        folder = dense_artifact.export(tmp_path / "dense")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert (folder / "weights.bin").stat().st_mode & 0o777 == 0o640


def _unary(operator):
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))
    return main_module([x], operator(x))


@pytest.mark.slow
def test_another_model_exported_to_the_same_place_is_the_one_that_runs(tmp_path):
    """The dynamic loader knows libraries by the name that they had."""
    x = np.random.default_rng().normal(size=(3, 5)).astype("float32")
    for operator, reference in ((relax.op.exp, np.exp), (relax.op.sin, np.sin)):
        folder = tvm_fusion.compile(_unary(operator), "cpu").export(tmp_path / "model")
        (found,) = tvm_fusion.load(folder)(x=x).values()
        np.testing.assert_allclose(found, reference(x), rtol=1e-5, atol=1e-6)


def test_an_artifact_is_replaced_while_it_is_in_use(dense_artifact, dense_copy):
    inode = dense_copy.stat().st_ino
    executable = tvm_fusion.load(dense_copy)
    before = executable(data=dense_data(3))["scores"]
    dense_artifact.export(dense_copy)
    assert dense_copy.stat().st_ino != inode
    assert contents(dense_copy.parent) == ["dense"]
    np.testing.assert_array_equal(executable(data=dense_data(3))["scores"], before)
    assert loads(dense_copy)


def test_an_empty_folder_and_a_link_are_written_through(dense_artifact, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert dense_artifact.export(tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    assert loads(tmp_path / "real")


def a_file(place):
    (place / "file").write_text("mine")
    return place / "file"


def below_a_file(place):
    return a_file(place) / "dense"


def a_full_folder(place):
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine")
    return place / "full"


def a_folder_with_a_manifest_of_another_kind(place):
    (a_full_folder(place) / "manifest.json").write_text("{}")
    return place / "full"


def a_half_artifact_without_manifest(place):
    (place / "half").mkdir()
    (place / "half" / "model.so").write_text("mine")
    return place / "half"


def below_proc(place):
    return Path("/proc/dense")


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (a_file, "exists and is not an artifact; name another output folder"),
        (below_a_file, r"cannot write to .*/file' \(Not a directory\); name a folder that you may"),
        (a_full_folder, "exists and is not an artifact"),
        (a_folder_with_a_manifest_of_another_kind, "exists and is not an artifact"),
        (a_half_artifact_without_manifest, "exists and is not an artifact"),
        (below_proc, r"cannot write to '/proc' \("),
    ],
)
def test_what_is_in_the_way_stays(dense_artifact, tmp_path, obstacle, words):
    target = obstacle(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for attempt in (module.check_destination, dense_artifact.export):
        with pytest.raises(UserError, match=words):
            attempt(target)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_current_folder_is_refused(dense_artifact, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is the current folder"):
        dense_artifact.export(".")


@pytest.mark.parametrize("place", [3, None, b"folder"])
def test_what_is_no_path_is_refused(dense_artifact, place):
    with pytest.raises(UserError, match=f"a folder of type {type(place).__name__}; expected its"):
        dense_artifact.export(place)


def test_looking_whether_a_place_is_free_leaves_no_trace(tmp_path):
    module.check_destination(tmp_path / "new" / "dense")
    assert contents(tmp_path) == []


def fail_with(error):
    def fail(*_args, **_options):
        raise error

    return fail


def full_disk():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


STEPS = {
    "library": (None, None),
    "weights": (weights_file, "write"),
    "hash": (manifest, "sha256"),
    "manifest": (manifest, "write"),
    "rename": (module, "_replace"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [full_disk(), KeyboardInterrupt(), RuntimeError("defect")])
@pytest.mark.parametrize("replacing", [True, False])
def test_a_failure_leaves_the_old_artifact_or_none(
    dense_artifact, dense_copy, tmp_path, monkeypatch, step, error, replacing
):
    place, name = STEPS[step]
    if name is None:
        dense_artifact = replace(dense_artifact, export_library=fail_with(error))
    else:
        monkeypatch.setattr(place, name, fail_with(error))
    target = dense_copy if replacing else tmp_path / "new"
    expected = UserError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        dense_artifact.export(target)
    if expected is UserError:
        assert str(caught.value) == (
            f"cannot write {str(target)!r} (No space left on device); free space there or name "
            "another place."
        )
    assert contents(tmp_path) == ["dense"]
    monkeypatch.undo()
    assert loads(dense_copy)


@pytest.mark.parametrize("at", [1, 2])
def test_a_failure_between_the_renames_brings_the_old_one_back(
    dense_artifact, dense_copy, monkeypatch, at
):
    rename, count = Path.rename, iter(range(1, 9))

    def interrupted(self, target):
        if next(count) == at:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dense_artifact.export(dense_copy)
    assert contents(dense_copy.parent) == ["dense"]
    assert loads(dense_copy)


def test_a_linker_that_fails_is_one_sentence(dense_artifact, dense_copy, monkeypatch):
    def link(*_args, **_options):
        raise RuntimeError(
            "Compilation error:\n/usr/bin/ld: final link failed: No space left on device\n"
            "collect2: error: ld returned 1 exit status\nCommand line: g++ -shared ..."
        )

    class Tools:
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

    Tools.link = staticmethod(link)
    monkeypatch.setattr(build, "toolchain", lambda spec: Tools())
    with pytest.raises(UserError) as caught:
        dense_artifact.export(dense_copy)
    assert str(caught.value) == (
        "linking model.so failed (/usr/bin/ld: final link failed: No space left on device)."
    )
    assert contents(dense_copy.parent) == ["dense"]


@pytest.mark.parametrize("size", [100, 5000])
def test_a_limit_on_file_sizes_stops_the_weights(dense_artifact, dense_copy, size):
    """The kernel itself refuses the bytes, as on a full disk."""
    library = (dense_copy / "model.so").read_bytes()
    prelinked = replace(dense_artifact, export_library=lambda path: path.write_bytes(library[:50]))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .* \(File too large\)"):
            prelinked.export(dense_copy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert contents(dense_copy.parent) == ["dense"]
    assert loads(dense_copy)


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from tvm_fusion.deploy.build.artifact import Artifact
    from tvm_fusion.deploy.runtime.artifact import manifest

    folder, step = sys.argv[1:]
    def die(*_args):
        os.kill(os.getpid(), signal.SIGKILL)
    weights = {"weight": np.zeros(99, "float32")}
    library = lambda path: path.write_bytes(b"library")
    if step == "library":
        library = die
    elif step == "manifest":
        manifest.write = die
    else:  # between the two renames
        rename, calls = Path.rename, []
        def once(self, target):
            if calls:
                die()
            calls.append(target)
            return rename(self, target)
        Path.rename = once
    content = {"schema": 2, "target": {"archs": ["x"]}, "architectures": {}}
    Artifact(content, weights, {"x": {}}, library, 0.0).export(folder)
    """
)


@pytest.mark.parametrize("step", ["library", "manifest", "renames"])
def test_a_killed_export_leaves_the_old_one_or_none_and_the_next_succeeds(
    dense_artifact, dense_copy, step
):
    done = subprocess.run([sys.executable, "-c", KILLED, dense_copy, step])
    assert done.returncode == -signal.SIGKILL
    if step == "renames":
        assert not dense_copy.exists()
    else:
        assert loads(dense_copy)
    dense_artifact.export(dense_copy)
    assert loads(dense_copy)
