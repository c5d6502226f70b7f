"""What goes wrong on AMD GPUs is one sentence: found, expected, what to do."""

import ctypes
import gc
import shutil

import numpy as np
import pytest
from scaled_chain import RESULT, ROWS, WIDTH, expected

import tvm_fusion
from tvm_fusion.deploy.runtime import load as load_module
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.deploy.runtime.tensors import to_numpy
from tvm_fusion.device import hip as hip_module
from tvm_fusion.errors import UserError
from tvm_fusion.report import doctor

X = np.zeros((ROWS, WIDTH), "float32")
ELF = b"\x7fELF\x02\x01\x01\x40"  # of AMD's operating system


def refusal(call):
    with pytest.raises(UserError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def without_hip(monkeypatch):
    def missing(name, mode=0):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)


def test_no_hip(hip, chain_folder, monkeypatch):
    load_module._open_library("tvm_runtime")
    without_hip(monkeypatch)
    assert refusal(lambda: tvm_fusion.load(chain_folder)) == (
        f"artifact {str(chain_folder)!r} is made for rocm:gfx90a,gfx942, but HIP's runtime library "
        "does not load (libamdhip64.so.7: cannot open shared object file); expected libamdhip64.so "
        "of ROCm 6.3 or newer; install ROCm, or name its folder by the environment variable "
        "ROCM_PATH."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 60243483}, "but ROCm 6.2 is installed; expected libamdhip64.so of ROCm 6.3"),
        ({"devices": 0}, "this machine has no visible AMD GPU: run it on one that has"),
        ({"arch": "gfx1100"}, "this device is gfx1100: compile it for that"),
    ],
)
def test_another_machine(hip, chain_folder, changes, words):
    hip.configure(**changes)
    assert words in refusal(lambda: tvm_fusion.load(chain_folder))


def test_out_of_memory(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    hip.configure(memory=1 << 20)
    x = np.zeros((ROWS, WIDTH), "float32")
    hip.fail("hipMalloc", 2)
    assert refusal(lambda: executable(x=x)).startswith(
        "8192 bytes were not allocated (HIP error 2: out of memory); the GPU has 0 MiB free of 1 "
        "MiB; end other programs that use it, or run smaller inputs"
    )
    hip.configure()
    np.testing.assert_allclose(to_numpy(executable(x=x)[RESULT]), expected(x), rtol=1e-5)


def test_weights_that_do_not_fit(hip, chain_folder):
    gc.collect()
    hip.configure(memory=1 << 12)
    assert "bytes were not allocated" in refusal(lambda: tvm_fusion.load(chain_folder))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("hipModuleLaunchKernel", r"kernel '.*_kernel' was not launched on 8 x 1 x 1 blocks of "),
        ("hipStreamBeginCapture", "a HIP graph was not begun"),
        ("hipStreamEndCapture", "kernels were not recorded as a HIP graph"),
        ("hipGraphInstantiate", "a HIP graph was not made"),
        ("hipMemcpyAsync", "memory was not copied"),
        ("hipStreamSynchronize", "memory was not copied"),
    ],
)
def test_functions_that_fail(hip, chain_folder, function, words):
    executable = tvm_fusion.load(chain_folder)
    hip.fail(function, 719)
    with pytest.raises(UserError, match=rf"{words}.* \(HIP error 719: unspecified launch failure"):
        executable(x=X)
    np.testing.assert_allclose(to_numpy(executable(x=X)[RESULT]), expected(X), rtol=1e-5)


def test_a_graph_that_is_not_launched(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    executable(x=X)
    hip.fail("hipGraphLaunch", 719)
    assert "a HIP graph was not launched" in refusal(lambda: executable(x=X))


def test_a_kernel_that_fails_is_told_where_the_host_waits(hip, chain_folder):
    def fault(*_):
        raise ValueError("memory fault")

    hip.run_kernels_by(fault)
    executable = tvm_fusion.load(chain_folder)
    result = executable(x=X)[RESULT]
    assert "(HIP error 719: unspecified launch failure)" in refusal(lambda: to_numpy(result))


def renamed(code):
    return code.replace(b"kernel.kd\0", b"kernal.kd\0")


def for_gfx1100(code):
    return code[:48] + bytes([0x41]) + code[49:]  # e_flags


def not_amds(code):
    return code[:18] + b"\x3e\0" + code[20:]  # e_machine: x86-64


def short(code):
    return b"\xff" * 16 + code[16:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (renamed, "there is no kernel '.*_kernel'; HIP error 500: named symbol not found"),
        (for_gfx1100, "does not load on this GPU, which is gfx942; HIP error 209: no kernel image"),
        (not_amds, "does not load on this GPU, which is gfx942; HIP error 200: device kernel im"),
        (short, "does not load on this GPU, which is gfx942; HIP error 200: device kernel image"),
    ],
)
def test_code_objects_that_were_tampered_with(hip, chain_folder, tmp_path, change, words):
    """With the hashes of what is there now, as who tampers would write them."""
    folder = shutil.copytree(chain_folder, tmp_path / "a")
    replace_code(folder, change)
    executable = tvm_fusion.load(folder)
    with pytest.raises(UserError, match=rf"the AMD code of model.so is damaged \(.*{words}"):
        executable(x=X)


@pytest.mark.parametrize("what", ["format", "parameter", "extent", "length"])
def test_descriptions_of_kernels_that_were_tampered_with(hip, chain_folder, tmp_path, what):
    folder = shutil.copytree(chain_folder, tmp_path / "a")
    path = folder / manifest.LIBRARY
    before = path.read_bytes()
    at = before.index(b"\x05\0\0\0\0\0\0\0hsaco")
    changed = {
        "format": before.replace(b"\x05\0\0\0\0\0\0\0hsaco", b"\x05\0\0\0\0\0\0\0hello"),
        # Handles of 64 bits in one lane become 8 lanes.
        "parameter": before[:at] + before[at:].replace(b"\x03\x40\x01\0", b"\x03\x40\x08\0"),
        "extent": before.replace(b"\x0a\0\0\0\0\0\0\0blockIdx.x", b"\x0a\0\0\0\0\0\0\0blackIdx.x"),
        "length": before.replace(
            b"\x0a\0\0\0\0\0\0\0blockIdx.x", b"\x0a\0\0\0\0\0\0\x7fblockIdx.x"
        ),
    }[what]
    assert changed != before
    path.write_bytes(changed)
    sign(folder)
    words = {
        "format": "it has the format 'hello'",
        "parameter": "has a parameter of type handle",
        "extent": "is launched with 'blackIdx.x'",
        "length": "it ends too early",
    }[what]
    assert words in refusal(lambda: tvm_fusion.load(folder))


def replace_code(folder, change):
    path = folder / manifest.LIBRARY
    parts = path.read_bytes().split(ELF)
    assert len(parts) == 3  # the library's own and two code objects
    changed = [change(ELF + part) for part in parts[1:]]
    assert changed[0] != ELF + parts[1]
    path.write_bytes(parts[0] + b"".join(changed))
    sign(folder)


def sign(folder):
    content = manifest.read(folder)
    content["files"][manifest.LIBRARY]["sha256"] = manifest.sha256(folder / manifest.LIBRARY)
    manifest.write(folder, content)


def test_doctor_tells_what_hip_shows(hip, monkeypatch):
    (finding,) = (f for f in doctor.examine() if f.topic == "run on rocm")
    assert (finding.ok, finding.found) == (True, "fake gfx942 (gfx942); ROCm 6.4")
    hip.configure(devices=0)
    (finding,) = (f for f in doctor.examine() if f.topic == "run on rocm")
    assert not finding.ok
    assert finding.found.endswith("and none that HIP shows to this process; ROCm 6.4")
    hip.configure(version=60043483)
    (finding,) = (f for f in doctor.examine() if f.topic == "run on rocm")
    assert (finding.ok, finding.found) == (False, "no AMD GPU; ROCm 6.0 is installed")


def test_a_copy_that_is_there_already_is_taken(hip):
    assert hip_module.hip_version(hip_module.open_hip()) == (6, 4)
