"""AMX's tile registers: asked for where an artifact that needs them is loaded; or one sentence."""

import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion.deploy.runtime import load as load_module
from tvm_fusion.device import Device, cpu, parse, probe
from tvm_fusion.device.cpu_features import capabilities
from tvm_fusion.errors import UserError

TARGET = "cpu:x86-64-v3,+amx-bf16"
# Lets Linux answer EPERM to arch_prctl(ARCH_REQ_XCOMP_PERM), as a sandbox's filter may.
SANDBOX = """
import ctypes, struct
rows = [(0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023),
        (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
"""
LOAD = """
import sys, numpy as np, ml_dtypes, tvm_fusion
try:
    loaded = tvm_fusion.load(sys.argv[1])
except tvm_fusion.UserError as error:
    sys.exit(str(error))
ones = np.ones((16, 32), ml_dtypes.bfloat16)
def run():
    (found,) = loaded(a=ones, b=ones).values()
    return (found == 32).all()
"""


def call(name, *args):
    return T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


@I.ir_module(s_tir=True)
class Product:
    """A product of bfloat16 tiles, B in the order of AMX."""

    @T.prim_func(s_tir=True)
    def product(
        A: T.Buffer((16, 32), "bfloat16"),
        B: T.Buffer((16, 32), "bfloat16"),
        C: T.Buffer((16, 16), "float32"),
    ):
        with T.sblock("root"):
            Config = T.sblock_alloc_buffer((64,), "uint8", scope="local")
            for i in range(64):
                Config[i] = T.uint8(0)
            Config[0] = T.uint8(1)
            for i in range(3):
                Config[16 + 2 * i] = T.uint8(64)
                Config[48 + i] = T.uint8(16)
            call("ldtilecfg", T.address_of(Config[0]))
            call("tilezero", T.uint8(0))
            call("tileloadd64", T.uint8(1), T.address_of(A[0, 0]), T.int64(64))
            call("tileloadd64", T.uint8(2), T.address_of(B[0, 0]), T.int64(64))
            call("tdpbf16ps", T.uint8(0), T.uint8(1), T.uint8(2))
            call("tilestored64", T.uint8(0), T.address_of(C[0, 0]), T.int64(64))
            call("tilerelease")

    @R.function
    def main(a: R.Tensor((16, 32), "bfloat16"), b: R.Tensor((16, 32), "bfloat16")) -> R.Tensor(
        (16, 16), "float32"
    ):
        with R.dataflow():
            c = R.call_tir(Product.product, (a, b), out_ty=R.Tensor((16, 16), "float32"))
            R.output(c)
        return c


@T.prim_func
def configure(config: T.handle):
    T.func_attr({"global_symbol": "main"})
    Config = T.match_buffer(config, (64,), "uint8")
    call("ldtilecfg", T.address_of(Config[0]))


@pytest.fixture(scope="module")
def artifact():
    return tvm_fusion.compile(Product, TARGET)


@pytest.fixture(scope="module")
def folder(artifact, tmp_path_factory):
    return artifact.export(tmp_path_factory.mktemp("product") / "a")


@pytest.fixture
def need_tiles(tiles):
    if not tiles.is_native("amx-bf16"):
        pytest.skip("this CPU has no AMX")


def alone(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def like(device, *features):
    can = capabilities(device.arch, {f for f in device.features if "amx" not in f} | {*features})
    return Device("llvm", device.arch, device.name, cores=device.cores, **can)


def test_an_artifact_names_what_its_kernels_use(artifact):
    target = artifact.manifest["target"]
    assert {"amx-bf16", "amx-tile", "avx2"} <= set(target["features"])
    assert "amx-int8" not in target["features"]
    assert {"amx_bf16", "amx_tile"} <= set(target["cpuinfo"])


def test_float32_kernels_need_no_tiles(dense_file):
    found = tvm_fusion.compile(dense_file, TARGET, dims={"batch": 1}).manifest["target"]
    assert "avx2" in found["features"]
    assert not any(feature.startswith("amx") for feature in found["features"])


def test_a_new_process_asks(need_tiles, folder):
    done = alone(LOAD + "assert run()", folder)
    assert done.returncode == 0, done.stderr


OPEN = """
import ctypes, sys, tvm_ffi
from tvm_fusion.deploy.runtime.load import _open_library
_open_library("tvm_runtime")
library = tvm_ffi.load_module(sys.argv[1] + "/model.so")
permitted = ctypes.c_uint64()  # ARCH_GET_XCOMP_PERM
assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(permitted)) == 0
assert permitted.value >> 18 & 1
"""


def test_a_library_asks_whoever_opens_it(need_tiles, folder):
    """Benches of candidates and RPC servers open libraries without the loader of artifacts."""
    done = alone(OPEN, folder)
    assert done.returncode == 0, done.stderr


def test_a_sandbox_that_refuses(need_tiles, folder):
    done = alone(SANDBOX + LOAD, folder)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "with AMX, whose tile registers this process may not use (Operation not permitted); run it "
        "on Linux 5.16 or later, where no sandbox forbids arch_prctl, or compile it for a CPU "
        "without AMX, such as cpu:x86-64-v4."
    )


def test_an_older_cpu(monkeypatch, folder):
    old = like(probe.host_cpu())
    monkeypatch.setattr(load_module, "host_cpu", lambda: old)
    with pytest.raises(UserError, match=r"without amx-bf16, amx-tile: compile it for this machine"):
        tvm_fusion.load(folder)


def test_other_code_for_a_process_that_may_not_use_tiles(monkeypatch):
    """Of an artifact for several CPUs."""
    with_tiles, plain = parse(TARGET).device.features, parse("cpu:x86-64-v3").device.features
    target = {"machine": probe.machine(), "archs": ["v3", "amx"], "features": list(plain)}
    own = {"features": list(with_tiles), "functions": {}}
    found = {"target": target, "functions": {}, "architectures": {"amx": own}}
    here = like(probe.host_cpu(), "amx-tile", "amx-bf16")
    monkeypatch.setattr(load_module, "host_cpu", lambda: here)
    for refused, arch in (("Operation not permitted", "v3"), (None, "amx")):
        monkeypatch.setattr(load_module, "refused_tiles", lambda refused=refused: refused)
        assert load_module._choose_cpu("", found) == arch


def test_a_cpu_without_tiles_is_not_asked(monkeypatch, dense_folder):
    monkeypatch.setattr(load_module, "refused_tiles", lambda: pytest.fail("asked"))
    tvm_fusion.load(dense_folder)


def test_the_cpu_here_has_tiles_where_they_are_permitted(monkeypatch):
    here = like(probe.host_cpu(), "amx-tile", "amx-bf16", "amx-int8")
    monkeypatch.setattr(probe, "host_cpu", lambda: here)
    monkeypatch.setattr(cpu, "refused_tiles", lambda: None)
    spec = parse("cpu")
    assert spec.device.has_matrix("amx", "bfloat16")
    assert spec.device.cores
    assert cpu.refusal_note(spec) is None
    monkeypatch.setattr(cpu, "refused_tiles", lambda: "Operation not permitted")
    spec = parse("cpu")
    assert not spec.device.matrix_instructions
    assert spec.device.cores
    assert "(Operation not permitted), so kernels are without it" in cpu.refusal_note(spec)
    assert cpu.refusal_note(parse("cpu:x86-64-v3")) is None
    assert parse("cpu:sapphirerapids").device.has_matrix("amx", "int8")


THREAD = """
import threading
go, done = threading.Event(), []
thread = threading.Thread(target=lambda: (go.wait(), done.append(run())))
thread.start()
"""


def test_a_thread_that_was_started_before(need_tiles, folder):
    done = alone(THREAD + LOAD + "go.set(); thread.join()\nassert done == [True]", folder)
    assert done.returncode == 0, done.stderr


def test_a_configuration_that_another_library_left(tiles, tmp_path):
    """It is neither used nor in the way."""
    left = np.zeros(64, "uint8")
    left[0], left[16], left[48] = 1, 4, 1
    ones = np.ones((16, 32), ml_dtypes.bfloat16)

    def run():
        other = tvm.tirx.build(tvm.IRModule({"main": configure}), parse(TARGET).tvm_target())
        other["main"](tvm.runtime.tensor(left))
        folder = tvm_fusion.compile(Product, TARGET).export(tmp_path / "a")
        return load_module.load.__wrapped__(folder).run({"a": ones, "b": ones})

    (found,) = tiles.run(run).values()
    np.testing.assert_array_equal(found, np.full((16, 16), 32, "float32"))


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here")
def test_the_runner_in_cpp(need_tiles, folder, runner):
    done = subprocess.run([runner, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    start = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    done = alone(SANDBOX + start, runner, folder)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "may not use (Operation not permitted): run it on Linux 5.16 or later" in line
