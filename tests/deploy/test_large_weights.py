"""Weights are mapped into memory and never copied: models larger than memory's share for them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

WITHOUT_TORCH = Path(__file__).parents[1] / "without_torch"
MIB = 1 << 20
ROWS = 3

COMPILE = """
import sys
import tvm_fusion

def peak():  # of this program; that of getrusage() begins with what the parent process had
    lines = [line.split() for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    return int(lines[0][1]) / 1024

model, folder, small = sys.argv[1:]
tvm_fusion.compile(small).export(folder + "-small")
before = peak()
tvm_fusion.compile(model).export(folder)
print(peak() - before)
"""

RUN = """
import json, sys
import numpy as np
import tvm_fusion

def used():  # MiB of the process's own, and of the mapped weights: all of them, and in memory
    found, name = dict.fromkeys(("own", "Size:", "Rss:"), 0.0), ""
    for line in map(str.split, open("/proc/self/smaps")):
        if "-" in line[0] and not line[0].endswith(":"):
            name = line[-1]
        elif line[0] in ("Anonymous:", "Swap:"):
            found["own"] += int(line[1]) / 1024
        elif line[0] in found and name == folder + "/weights.bin":
            found[line[0]] += int(line[1]) / 1024
    return found

folder, data, result = sys.argv[1:]
tvm_fusion.load(folder + "-small")  # and the runtime
steps = [used()]
executable = tvm_fusion.load(folder)
steps.append(used())
outputs = executable(x=np.load(data))
steps.append(used())
np.save(result, outputs["y"])
print(json.dumps(steps))
"""


def chain(folder, count, width):
    """Write ``tanh(... tanh(x @ w0) ... @ wn)``, its weights in a file next to it."""
    drawn = np.random.default_rng(0).standard_normal((width, width), dtype="float32")
    drawn /= np.float32(np.sqrt(width))
    nodes, tensors = [], []
    with (folder / "weights.data").open("wb") as file:
        for k in range(count):
            weight = np.roll(drawn, k, 0)  # no two are equal
            tensor = T(name=f"w{k}", data_type=T.FLOAT, dims=weight.shape)
            tensor.data_location = T.EXTERNAL
            place = ("weights.data", file.tell(), weight.nbytes)
            for key, value in zip(("location", "offset", "length"), place, strict=True):
                tensor.external_data.add(key=key, value=str(value))
            file.write(weight.data)
            tensors.append(tensor)
            nodes.append(
                helper.make_node("MatMul", ["x" if not k else f"y{k - 1}", f"w{k}"], ["m"])
            )
            nodes[-1].output[0] = f"m{k}"
            last = "y" if k == count - 1 else f"y{k}"
            nodes.append(helper.make_node("Tanh", [f"m{k}"], [last]))
    graph = helper.make_graph(nodes, "chain", [_value("x", width)], [_value("y", width)], tensors)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "m.onnx")


def _value(name, width):
    return helper.make_tensor_value_info(name, T.FLOAT, [ROWS, width])


def expected(folder, x, count, width):
    weights = np.memmap(folder / "weights.data", "float32", "r").reshape(count, width, width)
    for weight in weights:
        x = np.tanh(x @ weight.astype("float64"))
    return x


def call(code, *arguments):
    """Run a program in a process of its own, without PyTorch's memory."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WITHOUT_TORCH), env.get("PYTHONPATH")]))
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def compiled_loaded_and_run(folder, count, width):
    size = 4 * count * width * width / MIB
    (folder / "small").mkdir()
    chain(folder / "small", 1, 512)
    chain(folder, count, width)
    peak = call(COMPILE, folder / "m.onnx", folder / "artifact", folder / "small" / "m.onnx")
    # Once as ONNX, once as constants; and the compiler's own, 68 MiB from eight kernels on.
    assert peak < 2.2 * size + 80
    x = np.random.default_rng().standard_normal((ROWS, width)).astype("float32")
    np.save(folder / "x.npy", x)
    start, loaded, run = call(RUN, folder / "artifact", folder / "x.npy", folder / "y.npy")
    assert loaded["own"] - start["own"] + loaded["Rss:"] < 0.02 * size
    # A run reads all of them: as pages of the file, which memory can do without.
    assert run["Size:"] >= size
    assert run["own"] - start["own"] < 0.1 * size
    actual, wanted = np.load(folder / "y.npy"), expected(folder, x.astype("float64"), count, width)
    assert np.abs(actual - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.slow
def test_128_mib(tmp_path):
    compiled_loaded_and_run(tmp_path, 8, 2048)


@pytest.mark.slow
def test_2112_mib_beyond_what_one_protobuf_holds(tmp_path):
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = {line.split(":")[0]: int(line.split()[1]) for line in lines}["MemAvailable"]
    if free < 8 * MIB or shutil.disk_usage(tmp_path).free < 8 << 30:
        pytest.skip("needs 8 GiB of memory and of disk")
    try:
        compiled_loaded_and_run(tmp_path, 33, 4096)
    finally:
        shutil.rmtree(tmp_path)
