"""One quantized file with a number of threads, in a process of its own: checks, then times.

The reference is ONNX Runtime without graph optimizations: each pair of QuantizeLinear and
DequantizeLinear as the file has it, in float32.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu_half.worker import relative_error, timed

_REASON = 160  # characters of an error that are kept, the last ones

Call = Callable[[], list[Any]]


def main(place: str, name: str, form: str, threads: str, first: str) -> None:
    """Print a row of JSON."""
    count, folder = int(threads), Path(place, name)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[int(first) :][:count])
    os.environ |= {"TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    import numpy as np
    import onnxruntime as ort

    import tvm_fusion

    path = folder / f"{form}.onnx"
    executable = tvm_fusion.load(folder / form)
    with np.load(folder / "inputs.npz") as stored:
        feeds = {spec.name: stored[spec.name] for spec in executable.signatures["main"].inputs}
    exact = onnxruntime(path, feeds, count, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)()
    plain = onnxruntime(folder / "float.onnx", feeds, count)()
    sides: dict[str, Call] = {"ours": lambda: [*executable.run(feeds).values()]}
    refused = {}
    for peer in (onnxruntime, openvino):
        try:
            sides[peer.__name__] = peer(path, feeds, count)
        # guard: a peer that cannot be had, or not take a file, leaves its column empty
        except Exception as error:
            refused[peer.__name__] = " ".join(str(error).split())[-_REASON:]
    errors = {side: relative_error(call(), exact) for side, call in sides.items()}
    row = {
        "threads": count,
        "quantization": relative_error(exact, plain),
        "errors": errors,
        "refused": refused,
        "ms": timed(sides),
    }
    print(json.dumps(row), flush=True)


def onnxruntime(path: Path, feeds: dict[str, Any], threads: int, level: Any = None) -> Call:
    """Start a session, with all optimizations by default."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if level is not None:
        options.graph_optimization_level = level
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def openvino(path: Path, feeds: dict[str, Any], threads: int) -> Call:
    """Compile a file as OpenVINO's users get it: float parts in the precision that it chooses."""
    import openvino as ov

    core = ov.Core()
    given = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(core.read_model(path), "CPU", given)
    request = compiled.create_infer_request()

    def call() -> list[Any]:
        request.infer(feeds, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return call


if __name__ == "__main__":
    main(*sys.argv[1:])
