"""Run an artifact on stored inputs, without the compiler: ``python -m ... FOLDER``.

Of each ``in*.npz`` it writes ``out*.npz``. With ``--times MODEL`` it times the last of them against
ONNX Runtime, in turns, at the given number of threads; with ``--times`` alone, for a GPU, itself.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvm_fusion.deploy.runtime.tensors import to_numpy

_ROUNDS, _SECONDS = (5, 200), 2.0


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", metavar="MODEL", nargs="?", const="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--constants", default="{}")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    import tvm_fusion

    executable = tvm_fusion.load(options.folder / "artifact")
    inputs = [(path, dict(np.load(path))) for path in sorted(options.folder.glob("in*.npz"))]
    if options.times is None:
        for path, given in inputs:
            found = {name: _on_host(x) for name, x in executable.run(given).items()}
            np.savez(path.with_name(path.name.replace("in", "out", 1)), **found)
        return int("tvm" in sys.modules)  # the compiler is not to be there
    _, given = inputs[-1]
    runs = {"ours_ms": lambda: [_on_host(x) for x in executable.run(given).values()]}
    if options.times:
        runs["onnxruntime_ms"] = _onnxruntime(options, given)
    medians = _alternate(*runs.values())
    print(json.dumps({name: 1e3 * x for name, x in zip(runs, medians, strict=True)}))
    return 0


def _on_host(result: Any) -> np.ndarray:
    """Return a result as it is, or what a GPU holds as a copy."""
    return result if isinstance(result, np.ndarray) else to_numpy(result)


def _onnxruntime(options: argparse.Namespace, given: dict[str, Any]) -> Callable[[], Any]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    # Threads that spin after their work would slow whatever runs next in this process.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        options.times, settings, providers=["CPUExecutionProvider"]
    )
    feeds = with_constants(session, given, json.loads(options.constants))
    return lambda: session.run(None, feeds)


def with_constants(session: Any, given: dict[str, Any], constants: dict[str, int]) -> Any:
    """Add the inputs that the artifact has bound."""
    types = {info.name: info.type for info in session.get_inputs()}
    dtypes = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32"}
    bound = {name: np.asarray(value, dtypes[types[name]]) for name, value in constants.items()}
    return {**given, **bound}


def _alternate(*runs: Callable[[], Any]) -> list[float]:
    """Return medians of runs that take turns."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    least, most = _ROUNDS
    while len(times[0]) < least or (
        len(times[0]) < most and time.perf_counter() - start < _SECONDS * len(runs)
    ):
        for run, found in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin)
    return [statistics.median(found) for found in times]


if __name__ == "__main__":
    raise SystemExit(main())
