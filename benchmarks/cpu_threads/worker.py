"""One model with a number of threads: an engine a process, checked, then timed in turns.

Engines in one process would wait for each other's threads, which spin behind a call.
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

OURS, PEERS = "ours", ("onnxruntime", "openvino", "openvino-default")
ROUNDS, BUDGET = 5, 0.15  # turns of each engine, seconds of a turn
READY_SECONDS = 60.0  # until an engine has loaded or compiled a model


def main(folder: str, name: str, threads: str, first: str) -> None:
    """Print a row of JSON."""
    from benchmarks.harness import arrays, measure
    from benchmarks.harness.client import Client
    from benchmarks.harness.engines import ENGINES, TOLERANCES

    from .prepare import INPUTS, MODEL, RIGHT, SEED

    count, place = int(threads), Path(folder, name)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[int(first) :][:count])
    job = {"name": name, "model": str(place / MODEL), "inputs": str(place / INPUTS)}
    job |= {"threads": count, "seed": SEED}
    right = arrays.load(place / RIGHT)
    settings = {"rounds": ROUNDS, "budget": BUDGET}
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        engines: dict[str, measure.Engine] = {}
        for side in (OURS, *PEERS):
            engine = f"{__spec__.name}:ours" if side == OURS else ENGINES[side]
            engines[side] = client = Client(engine, count, Path(scratch, side), READY_SECONDS)
            stack.callback(client.close)
            allowed = TOLERANCES.get(side, measure.Settings.tolerance)
            checked = measure.Settings(**settings, tolerance=allowed)
            results[side] = measure.check(client, job, right, checked)
        measure.time_interleaved(engines, results, measure.Settings(**settings))
    right_ones = {side: one for side, one in results.items() if not one["reason"]}
    row = {
        "threads": count,
        "ms": {side: one["latency_ms"]["median"] for side, one in right_ones.items()},
        "refused": {side: one["reason"] for side, one in results.items() if one["reason"]},
        "errors": {side: one["error"] for side, one in right_ones.items()},
    }
    print(json.dumps(row), flush=True)


def ours(job: Any) -> Any:
    """Load the artifact that lies beside the model."""
    import numpy as np

    import tvm_fusion
    from benchmarks.harness.engines import Prepared

    from .prepare import ARTIFACT

    executable, feeds = tvm_fusion.load(job.model.parent / ARTIFACT), dict(job.inputs)
    return Prepared(
        run=lambda: executable.run(feeds),
        outputs=lambda found: {name: np.asarray(array) for name, array in found.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
