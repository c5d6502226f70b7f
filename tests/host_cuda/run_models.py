"""Run ONNX models on made-up CUDA devices whose kernels are the host's.

Usage: ``python run_models.py FOLDER CASES RESULTS``: a pickle of pairs of a serialized model and a
list of inputs by name; becomes a pickle of the list of outputs by name, for each pair. A process of
its own, because the stand-ins for CUDA must be loaded before TVM. Prints the case that it begins.
"""

import ctypes
import pickle
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "deploy" / "count")]

from fake_cuda.build import build as build_stand_ins  # noqa: E402
from fake_cuda.build import load as load_stand_ins  # noqa: E402

from tvm_fusion.deploy.toolchain.host import require_compiler  # noqa: E402

FOLDER = Path(sys.argv[1])
COMPILER = require_compiler()
build_stand_ins(shutil.which("cc") or "gcc", FOLDER)
driver = load_stand_ins(FOLDER)

import host_kernels  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402

import tvm_fusion  # noqa: E402
from tvm_fusion.deploy.runtime import load  # noqa: E402
from tvm_fusion.deploy.toolchain import cuda  # noqa: E402
from tvm_fusion.device import GPUS  # noqa: E402

ARCH = "sm_80"


def compile_for_host(code: str, _archs: tuple[str, ...]) -> bytes:
    library = FOLDER / f"kernels{len(list(FOLDER.glob('kernels*.so')))}.so"
    host_kernels.build(code, COMPILER, library)
    return str(library).encode() + b"\0"


def on_host(tensor) -> np.ndarray:
    """Copy a tensor whose device's memory is this process's."""
    dtype, shape = np.dtype(str(tensor.dtype)), tuple(tensor.shape)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(tensor.data_ptr(), size), dtype).reshape(shape)


def main(cases: Path, results: Path) -> None:
    cuda.choose_compiler = lambda archs: ("the host's", compile_for_host)
    load.load_cudart = lambda: None
    load.cuda_devices = lambda: (GPUS[ARCH],)
    launcher = host_kernels.Launcher(driver)
    found = []
    for number, (text, draws) in enumerate(pickle.loads(cases.read_bytes())):
        artifact = tvm_fusion.compile(onnx.load_from_string(text), f"cuda:{ARCH}")
        path = artifact.export(FOLDER / f"artifact{number}")
        outputs = []
        for inputs in draws:
            print(f"case {number}", flush=True)
            # Loaded anew: a second call would launch a graph, which the stand-ins only count.
            run = tvm_fusion.load(path).run(inputs)
            outputs.append({name: on_host(tensor) for name, tensor in run.items()})
        found.append(outputs)
    results.write_bytes(pickle.dumps((found, launcher.launched)))


if __name__ == "__main__":
    main(Path(sys.argv[2]), Path(sys.argv[3]))
