"""One model with a number of threads, in a process of its own: checks, then times in turns."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, SECONDS = 9, 0.06  # calls in turns; of each side in a round, at least one call
SEED = 1129

Call = Callable[[], list[Any]]


def main(folder: str, name: str, threads: str, first: str) -> None:
    """Print a row of JSON."""
    count = int(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[int(first) :][:count])
    os.environ |= {"TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    import numpy as np

    place = Path(folder, name)
    with np.load(place / "case.npz") as stored:
        arrays = [stored[str(i)] for i in range(len(stored.files) - 1)]
        exact = [stored["exact"]]
    sides = {precision: _ours(place / precision, arrays) for precision in ("fp32", "bf16")}
    try:
        sides |= _openvino(place / "openvino" / "model.xml", arrays, count)
    # guard: a peer that cannot be had, or not take a model, leaves its columns empty
    except Exception as error:
        print(f"OpenVINO: {error}", file=sys.stderr)
    errors = {side: relative_error(call(), exact) for side, call in sides.items()}
    row = {"name": name, "threads": count, "errors": errors, "ms": timed(sides)}
    print(json.dumps(row), flush=True)


def _ours(folder: Path, arrays: list[Any]) -> Call:
    import tvm_fusion

    executable = tvm_fusion.load(folder)
    signature = executable.signatures["main"]
    named = dict(zip((spec.name for spec in signature.inputs), arrays, strict=True))
    return lambda: [*executable.run(named).values()]


def _openvino(path: Path, arrays: list[Any], threads: int) -> dict[str, Call]:
    """Compile a model in float32, and in the precision that its users get by default."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    given = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}

    def side(options: dict[str, Any]) -> Call:
        compiled = core.compile_model(model, "CPU", {**given, **options})
        request = compiled.create_infer_request()

        def call() -> list[Any]:
            request.infer(arrays, share_inputs=True)
            return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

        return call

    return {"openvino_f32": side({"INFERENCE_PRECISION_HINT": "f32"}), "openvino": side({})}


def relative_error(found: list[Any], exact: list[Any]) -> float:
    """Root of the summed squares of the error of the first output, relative to its own."""
    import numpy as np

    one = np.from_dlpack(found[0]) if not isinstance(found[0], np.ndarray) else found[0]
    difference = one.astype("float64") - exact[0]
    return float(np.linalg.norm(difference) / np.linalg.norm(exact[0]))


def timed(sides: dict[str, Call]) -> dict[str, float]:
    """Time sides in turns: medians of the rounds' least, in milliseconds."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 1):
        for side, call in sides.items():
            end = time.perf_counter() + SECONDS
            least = float("inf")
            while least == float("inf") or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                least = min(least, time.perf_counter() - start)
            if number:  # the first round warms up
                times[side].append(1e3 * least)
    return {side: round(statistics.median(found), 3) for side, found in times.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
