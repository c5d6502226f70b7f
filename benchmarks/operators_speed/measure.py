"""One process: checks cases and times them against ONNX Runtime, a line of JSON for each."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

import tvm_fusion

from .case import Case
from .catalog import catalog

THREADS = 2
ROUNDS = 10
SECONDS = 0.012  # of one turn
TOLERANCE = 2e-4  # of the largest number of a result


def main() -> None:
    """Measure the cases whose keys are the arguments."""
    wanted = sys.argv[1:]
    sizes = dict.fromkeys(key.split("/")[0] for key in wanted)
    cases = {f"{size}/{case.name}": case for size in sizes for case in catalog(size)}
    for key in wanted:
        print(json.dumps({"begin": key}), flush=True)
        try:
            found = measure(cases[key])
        except Exception as error:  # guard: the reason is the row
            found = {"failed": f"{type(error).__name__}: {error}".split("\n")[0][:160]}
        print(json.dumps({"case": key, **found}), flush=True)


def measure(case: Case) -> dict[str, Any]:
    """Compare the results of one case, then the times of a call in microseconds."""
    model = case.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, case.feeds)
    with tempfile.TemporaryDirectory() as folder:
        executable = tvm_fusion.load(tvm_fusion.compile(model).export(f"{folder}/case"))
    found = executable.run(case.feeds)
    for name, value in zip(found, expected, strict=True):
        problem = _difference(found[name], value)
        if problem:
            return {"wrong": f"{name}: {problem}"}
    feeds = case.feeds
    ours, theirs = _alternate(lambda: executable.run(feeds), lambda: session.run(None, feeds))
    return {"ours_us": ours, "theirs_us": theirs}


def _difference(found: np.ndarray, expected: np.ndarray) -> str | None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if found.dtype.kind != "f":
        wrong = (
            np.abs(found.astype("int64") - expected.astype("int64")) > 1
            if (found.dtype == np.uint8)
            else found != expected
        )
        return f"{np.mean(wrong):.2%} of integers differ" if np.any(wrong) else None
    scale = max(1.0, float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected))))
    tolerance = TOLERANCE if found.dtype != np.float16 else 2e-3
    same = np.isclose(
        found / scale, expected / scale, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    return None if np.all(same) else f"{np.mean(~same):.2%} of numbers differ"


def _alternate(ours: Callable[[], Any], theirs: Callable[[], Any]) -> list[float]:
    """Time both in turns: of each the quickest call.

    Other processes take turns on the processors as well; what disturbs a call only adds to it, and
    most where a kernel waits for its second thread.
    """
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for i, run in enumerate((ours, theirs)):
            run()  # the other's threads wait for work, busily, for some time
            calls = 0
            begin = time.perf_counter()
            while calls < 3 or time.perf_counter() - begin < SECONDS:
                start = time.perf_counter()
                run()
                best[i] = min(best[i], time.perf_counter() - start)
                calls += 1
    return [round(seconds * 1e6, 2) for seconds in best]


if __name__ == "__main__":
    main()
