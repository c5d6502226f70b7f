"""Whole calls of an artifact for AMD GPUs: its own runtime on a HIP that delays all work."""

import gc
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from scaled_chain import RESULT, ROWS, WIDTH, expected
from tvm import relax

import tvm_fusion
from tvm_fusion.deploy.runtime import staged, tensors
from tvm_fusion.deploy.runtime.artifact import manifest, weights_file
from tvm_fusion.deploy.runtime.executable import release_pools
from tvm_fusion.deploy.runtime.function import Function
from tvm_fusion.deploy.runtime.profile import clocks, profile
from tvm_fusion.deploy.runtime.tensors import copy_to, to_numpy, to_tensor
from tvm_fusion.signature import Signature, TensorSpec


def data():
    return np.random.default_rng().standard_normal((ROWS, WIDTH)).astype("float32")


def close(found, x):
    np.testing.assert_allclose(to_numpy(found), expected(x), rtol=1e-6)


def test_results_are_right_and_memory_goes_with_the_model(hip, chain_folder):
    gc.collect()
    release_pools()
    before = hip.allocations()
    executable = tvm_fusion.load(chain_folder)
    assert executable.device.type == "rocm"
    for _ in range(3):
        x = data()
        close(executable(x=x)[RESULT], x)
    assert hip.allocations() > before
    del executable
    gc.collect()
    assert hip.allocations() == before


def test_kernels_are_recorded_once_and_launched_as_a_graph(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    entry = executable.manifest["functions"]["main"]
    assert (entry["kernels"], entry["host_launches"]) == (6, 3)
    for call in range(3):
        x = data()
        close(executable(x=x)[RESULT], x)
        assert (hip.captures(), hip.graph_launches()) == (1, call)
    assert hip.launches() == 3 * entry["kernels"]


def test_kernels_of_another_architecture_are_not_loaded(hip, chain_folder):
    before = hip.modules()
    for arch in ("gfx942", "gfx90a"):
        hip.configure(arch)
        x = data()
        close(tvm_fusion.load(chain_folder)(x=x)[RESULT], x)  # the GPU refuses other code
    assert hip.modules() <= before + 2


def test_a_call_waits_for_nothing(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    x = data()
    given = to_tensor(x, executable.device)
    close(executable(x=given)[RESULT], x)
    launched = hip.launches()
    result = executable(x=given)[RESULT]
    assert hip.launches() == launched
    assert hip.pending() == 6
    executable.synchronize()
    assert hip.pending() == 0
    close(result, x)


def test_arrays_of_the_host_are_copied_to_memory_that_stays(hip, chain_folder, monkeypatch):
    executable, first = tvm_fusion.load(chain_folder), data()
    close(executable(x=first)[RESULT], first)

    def refuse(*_):
        raise AssertionError("memory was allocated")

    monkeypatch.setattr(tensors, "copy_to", refuse)
    monkeypatch.setattr(staged, "copy_to", refuse)
    inputs = [data() for _ in range(4)]
    results = [executable(x=x)[RESULT] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        close(result, x)
    changing = inputs[0].copy()
    result = executable(x=changing)[RESULT]
    changing[...] = 0
    close(result, inputs[0])


def test_results_that_lie_where_inputs_do_are_the_callers_own(hip, chain_folder):
    device = tvm_fusion.load(chain_folder).device
    spec = TensorSpec("x", (3,), "float32")
    signature = Signature((spec,), (replace(spec, name="one"), replace(spec, name="other")))
    given = Function("main", signature, {}, device, [], lambda _: lambda x: tvm_ffi.convert([x, x]))
    arrays = [np.arange(3, dtype="float32") + n for n in range(2)]
    found = [given.run({"x": array}) for array in arrays]
    for array, results in zip(arrays, found, strict=True):
        for result in results.values():
            np.testing.assert_array_equal(to_numpy(result), array)
    assert len({result.data_ptr() for results in found for result in results.values()}) == 4


def test_kernels_run_on_the_current_stream(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    device, first = executable.device, data()
    given = to_tensor(first, device)
    close(executable(x=given)[RESULT], first)
    create = tvm_ffi.get_global_func("runtime.Device_StreamCreate")
    free = tvm_ffi.get_global_func("runtime.Device_StreamFree")
    wait = tvm_ffi.get_global_func("runtime.Device_StreamSyncFromTo")
    one, other = create(device), create(device)
    launched = hip.launches()
    with tvm_ffi.use_raw_stream(device, one):
        result = executable(x=given)[RESULT]
    wait(device, one, other)
    executable.synchronize()  # of the default stream, where nothing is
    assert hip.launches() == launched
    with tvm_ffi.use_raw_stream(device, other):
        copied = copy_to(result, device)  # behind the event, behind the kernels
        close(copied, first)
    assert hip.launches() == launched + 6
    free(device, one)
    free(device, other)


def test_several_threads_have_graphs_of_their_own(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    faults = []

    def call():
        try:
            for _ in range(3):
                x = data()
                close(executable(x=x)[RESULT], x)
        except Exception as error:  # guard: told by the main thread
            faults.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
    assert faults == []
    assert hip.captures() == 3


def test_the_timer_asks_the_gpu(hip, chain_folder):
    executable = tvm_fusion.load(chain_folder)
    x = to_tensor(data(), executable.device)
    close(executable(x=x)[RESULT], to_numpy(x))
    machine = executable._machines._local.machine
    suffix, weights = executable.manifest["suffix"], executable._functions["main"]._weight_arguments
    evaluator = machine.time_evaluator("main" + suffix, executable.device, number=1, repeat=2)
    # Each step on the fake takes a millisecond: six kernels and the second event.
    assert evaluator(x, *weights).results == pytest.approx([0.007, 0.007])


def test_a_profile_launches_kernels_between_events(hip, chain_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where the device's rates are kept
    monkeypatch.setattr(clocks, "_DELAY_BYTES", 1 << 12)
    monkeypatch.setattr(profile, "_COPIED_ON_GPU", 1 << 12)
    before = hip.allocations()
    executable = tvm_fusion.load(chain_folder)
    executable(x=data())
    found = executable.profile({"x": data()}, runs=2)
    assert (found.device, found.clock) == ("fake gfx942", "hip events")
    names = {kernel for row in found.rows for kernel in row.kernels}
    assert len(names) == 1
    # An event and a kernel take a millisecond each on the fake, and two events around nothing one.
    assert {row.least_us for row in found.rows} == {1000.0}
    assert "HIP gives the kernels of a graph no times of their own" in found.notes[0]
    assert hip.captures() == 1
    del executable, found
    gc.collect()
    release_pools()
    assert hip.allocations() <= before


def test_attributes_of_the_device(hip, chain_folder):
    tvm_fusion.load(chain_folder)
    attribute = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
    rocm = tvm_ffi.device("rocm", 0).dlpack_device_type()
    found = [attribute(rocm, 0, kind) for kind in range(16)]
    assert found == [
        *(1, 256, 64, 65536, "9.4", "fake gfx942", 2100000, 304, "[1024, 1024, 1024]", 65536),
        *("gfx942", 604, None, 4194304, 1 << 30, found[15]),
    ]
    assert attribute(rocm, 1, 0) == 0


def test_tvm_s_own_virtual_machine_runs_it(hip, chain_folder):
    loaded = tvm.runtime.load_module(str(chain_folder / manifest.LIBRARY))
    device = tvm.device("rocm", 0)
    machine = relax.VirtualMachine(loaded, device)
    found = manifest.of_architecture(manifest.read(chain_folder), "gfx942")
    x, weights = data(), weights_file.read(chain_folder, found)
    order = found["functions"]["main"]["weights"]
    given = [tvm.runtime.tensor(np.array(weights[name]), device) for name in order]
    result = machine["main" + found["suffix"]](tvm.runtime.tensor(x, device), given)
    np.testing.assert_allclose(result.numpy(), expected(x), rtol=1e-6)


def test_no_compiler_is_needed(rocm, chain_folder, tmp_path):
    """In a process of its own, and twice: the second artifact finds what the first one brought."""
    x = data()
    np.save(tmp_path / "x.npy", x)
    code = f"""
import sys
import numpy as np
import tvm_fusion
from tvm_fusion.deploy.runtime.tensors import to_numpy
x = np.load({str(tmp_path / "x.npy")!r})
models = [tvm_fusion.load({str(chain_folder)!r}) for _ in range(2)]
found = [to_numpy(model(x=x)[{RESULT!r}]) for model in models * 2]
assert "tvm" not in sys.modules
print(*[bool((found[0] == result).all()) for result in found])
np.save({str(tmp_path / "y.npy")!r}, found[0])
"""
    environment = {**os.environ, **rocm}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 4
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(x), rtol=1e-6)
