"""One process: calls of an artifact, each behind a call of another library; prints milliseconds.

``python -m benchmarks.shared_cores.process`` is started by ``benchmarks.shared_cores``.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import tvm_fusion
from benchmarks import zoo

SECONDS = 1.0  # of warm calls
PAUSE = 0.01  # in place of another library's call


def other(name: str, model: str, inputs: dict[str, Any], threads: int) -> Callable[[], Any]:
    """Return what is called between ours: ``ort``, ``ort-passive``, ``ort-1``, ``omp``, a pause."""
    if name == "alone":
        return lambda: time.sleep(PAUSE)
    if name == "omp":
        import torch

        torch.set_num_threads(threads)
        square = torch.ones(512, 512)
        return lambda: square @ square + 1
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if name == "ort-1" else threads
    if name == "ort-passive":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def main() -> None:
    """Measure: folder, ONNX file, the zoo's name, the other library, and its threads."""
    folder, model, name, library, threads = sys.argv[1:]
    ours, inputs = tvm_fusion.load(folder), zoo.inputs(name)
    theirs, found = other(library, model, inputs, int(threads)), []
    for _ in range(3):
        theirs()
        ours.run(inputs)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        theirs()
        begin = time.perf_counter()
        ours.run(inputs)
        found.append(1e3 * (time.perf_counter() - begin))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
