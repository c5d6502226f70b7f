import pytest

from tvm_fusion.deploy.toolchain import host, toolchain
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)


def _tool(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_no_compiler_names_the_apt_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.find_compiler() is None
    with pytest.raises(UserError, match=r"a C compiler was not found.*`apt-get install -y g\+\+`"):
        host.require_compiler()


def test_a_toolchain_without_a_compiler_stops_before_any_work(monkeypatch, tmp_path):
    spec = parse("cpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install"), toolchain(spec):
        pytest.fail("the block ran")


def test_a_compiler_that_cannot_link_is_told_from_a_missing_one(monkeypatch, tmp_path):
    # What gcc without the C library's start files does.
    path = _tool(tmp_path, "gcc", "echo 'ld: cannot find crti.o' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CC", path)
    with pytest.raises(UserError, match=r"cannot link .*crti\.o.*apt-get install"):
        host.require_compiler()


def test_a_compiler_named_by_the_environment_comes_first(monkeypatch, tmp_path):
    path = _tool(tmp_path, "mycc", "exit 0")
    monkeypatch.setenv("CC", path)
    assert host.find_compiler() == path
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(UserError, match="'/nonexistent/c\\+\\+' that CXX or CC names"):
        host.require_compiler()


def test_another_machine_needs_its_own_compiler(monkeypatch, tmp_path):
    triple = "aarch64-linux-gnu"
    monkeypatch.setenv("CC", "gcc")  # is for this machine
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"for aarch64-linux-gnu.*g\+\+-aarch64-linux-gnu"):
        host.require_compiler(triple)
    path = _tool(tmp_path, f"{triple}-gcc", "exit 0")
    assert host.find_compiler(triple) == path


def test_the_linker_makes_a_library_that_loads(tmp_path):
    import tvm
    import tvm_ffi
    from tvm import te

    x = te.placeholder((5,), "float32", name="x")
    y = te.compute((5,), lambda i: x[i] + te.const(1, "float32"), name="y")
    spec = parse("cpu")
    with toolchain(spec) as tools:
        built = tvm.compile(te.create_prim_func([x, y]), spec.tvm_target())
        built.export_library(str(tmp_path / "f.so"), fcompile=tools.link)
    assert tools.device_compiler is None
    assert tvm_ffi.load_module(str(tmp_path / "f.so")).get_function("main") is not None
