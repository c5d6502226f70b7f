"""Bundles and loads of libraries for CPUs of another family."""

import shutil
from importlib.metadata import version

import pytest
from tiny_models import dense

import tvm_fusion
from tvm_fusion.deploy.build import bundle
from tvm_fusion.deploy.build.bundle import cross_settings
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device import elf
from tvm_fusion.device.probe import machine
from tvm_fusion.errors import UserError

CODES = {"x86_64": 62, "aarch64": 183}
OTHER = next(name for name in CODES if name != machine())


@pytest.fixture
def foreign_folder(dense_copy, monkeypatch):
    """An artifact as another family's machine would have made it; its hashes are not looked at."""
    library = dense_copy / manifest.LIBRARY
    content = bytearray(library.read_bytes())
    content[18:20] = CODES[OTHER].to_bytes(2, "little")
    library.write_bytes(content)
    monkeypatch.setattr(manifest, "verify", lambda *_: None)
    return dense_copy


def test_the_runner_s_sources_are_found():
    """They lie in another folder, where the wheel has them as data."""
    assert (bundle.SOURCES / "CMakeLists.txt").is_file()
    assert (bundle.SOURCES / "main.cc").is_file()


def test_reads_the_family(dense_folder, foreign_folder, tmp_path):
    assert elf.machine_of(dense_folder / manifest.LIBRARY) == machine()
    assert elf.machine_of(foreign_folder / manifest.LIBRARY) == OTHER
    (tmp_path / "text").write_text("no library")
    assert elf.machine_of(tmp_path / "text") is None


def test_refuses_another_family_without_wheels(foreign_folder, tmp_path):
    """What would come out is a runner of this machine's next to a model that it cannot load."""
    words = (
        f"is for {OTHER}, .* here for {machine()}; "
        f"expected --wheels FOLDER with those for {OTHER}; "
        f"run `pip download .* manylinux_2_28_{OTHER} --dest wheels apache-tvm==.*`, or bundle it"
    )
    with pytest.raises(UserError, match=words):
        bundle.bundle(foreign_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refuses_another_family_without_a_cross_compiler(foreign_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = f"no C\\+\\+ compiler for {OTHER}; expected {OTHER}-linux-gnu-g\\+\\+; run `apt-get"
    with pytest.raises(UserError, match=words):
        bundle.bundle(foreign_folder, tmp_path / "out", tmp_path)


def test_refuses_a_family_that_tvm_has_no_wheels_for(tmp_path):
    with pytest.raises(UserError, match=r"is for riscv64, .*; expected an artifact for x86_64 or "):
        cross_settings("riscv64", tmp_path, tmp_path)


def test_refuses_folders_without_wheels(tmp_path):
    with pytest.raises(UserError, match=rf"has no apache_tvm-.*{machine()}.whl; expected TVM's wh"):
        cross_settings(None, tmp_path, tmp_path)
    (tmp_path / f"apache_tvm-{version('apache-tvm')}-py3-{machine()}.whl").write_text("text")
    with pytest.raises(UserError, match=r"whl' is no wheel .*; expected a wheel"):
        cross_settings(None, tmp_path, tmp_path)


def test_needs_nothing_for_this_machine(tmp_path):
    assert cross_settings(None, None, tmp_path) == cross_settings(machine(), None, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no cross compiler here")
def test_refuses_what_was_compiled_for_another_family(tmp_path):
    artifact = tvm_fusion.compile(dense(), "cpu:neoverse-n1", dims={"batch": 2})
    with pytest.raises(UserError, match="is for aarch64"):
        bundle.bundle(artifact.export(tmp_path / "model"), tmp_path / "out")
