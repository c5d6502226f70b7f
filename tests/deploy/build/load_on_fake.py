"""Compile a model for several architectures, and load it on made-up devices of each.

Usage: ``python load_on_fake.py FOLDER TARGET DEVICES`` with the compiled stand-ins for CUDA in
FOLDER and devices as ``sm_80,sm_86``. Machine code is the names of the architectures that it is
for. Prints JSON: the manifest, and by device the kernels that were launched with their code.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "count"), str(HERE)]

from fake_cuda.build import load as load_stand_ins  # noqa: E402

fake = load_stand_ins(Path(sys.argv[1]))

import numpy as np  # noqa: E402
from architectures_model import model  # noqa: E402

import tvm_fusion  # noqa: E402
from tvm_fusion.deploy.runtime import load  # noqa: E402
from tvm_fusion.deploy.runtime.artifact import manifest  # noqa: E402
from tvm_fusion.deploy.runtime.profile import clocks, profile  # noqa: E402
from tvm_fusion.deploy.toolchain import cuda  # noqa: E402
from tvm_fusion.device import GPUS  # noqa: E402


def compile_nothing(code: str, archs: tuple[str, ...]) -> bytes:
    return ",".join(archs).encode() + b"\0"


def run_on(arch: str, folder: Path) -> dict[str, object]:
    load.cuda_devices = profile.cuda_devices = lambda: (GPUS[arch],)
    executable = tvm_fusion.load(folder)
    inputs = {
        spec.name: np.zeros(spec.shape, spec.dtype) for spec in executable.signatures["main"].inputs
    }
    fake.fake_reset()
    executable.run(inputs)  # which captures a CUDA graph
    launched = fake.fake_log().decode().splitlines()
    fake.fake_reset()
    executable.run(inputs)
    return {
        "code": dict(line.split() for line in launched),
        "graph_launches": fake.fake_graph_launches(),
        "counted": executable.manifest["functions"]["main"]["kernels"],
        "profile": executable.profile(inputs, runs=2).to_json(),
    }


if __name__ == "__main__":
    _, folder, target, devices = sys.argv
    cuda.choose_compiler = lambda archs: ("nothing", compile_nothing)
    load.load_cudart = lambda: None
    sys.modules["cupti"] = None  # which would ask for a driver
    os.environ["XDG_CACHE_HOME"] = folder  # where the device's rates are kept
    clocks._DELAY_BYTES = profile._COPIED_ON_GPU = 1 << 12
    artifact = tvm_fusion.compile(model(), target)
    path = artifact.export(Path(folder) / "artifact")
    loaded = {arch: run_on(arch, path) for arch in devices.split(",")}
    print(json.dumps({"manifest": manifest.read(path), "loaded": loaded}))
