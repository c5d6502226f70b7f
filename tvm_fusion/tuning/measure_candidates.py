"""Measure a folder of candidates where the device is; needs numpy, tvm_ffi and TVM's runtime.

    python measure.py            measures what is not measured yet, and writes records.jsonl
    python measure.py --budget 600

``tvm-fusion tune --export-candidates`` writes the folder; ``tvm-fusion tune --import`` takes the
records where the compiler is. Each candidate is measured beside its task's default, in
turns, in a process of its own, which is killed after a time-out; results must agree. Lines are
written as soon as a task is done, so that a run that is killed is continued by the next.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULT = "records.jsonl"
BATCHES, BATCH_SECONDS, MOST_CALLS = 7, 0.01, 2000
EVICTED = 4 << 20  # bytes written before calls of a CPU
_POOLED = 2  # memory allocator of TVM's virtual machine


def main() -> int:
    """Measure all tasks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of one candidate")
    parser.add_argument("--batches", type=int, default=BATCHES, help="of calls, in turns")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = json.loads((HERE / "candidates.json").read_text())
    if options.one:
        task = data["tasks"][options.one[0]]
        candidate = task["candidates"][options.one[1]]
        print(json.dumps(compared(data, task, candidate["file"], options.batches)))
        return 0
    end = time.monotonic() + options.budget
    result = HERE / RESULT
    lines = result.read_text().splitlines() if result.exists() else []
    done = [json.loads(line)["key"] for line in lines]
    for number, task in enumerate(data["tasks"]):
        if task["key"] in done:
            continue
        if time.monotonic() > end:
            print("the budget is spent; run it again for the rest")
            break
        line = measured(number, task, data["gain"], options)
        with result.open("a") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")
        ok = sum(trial[1] is not None for trial in line["trials"])
        best = line["tuned"]
        gain = f", {best[2] / best[1]:.3f}x" if best else ""
        print(f"{task['title']}: {ok} of {len(line['trials'])} measured{gain}", flush=True)
    return 0


def measured(number: int, task: dict[str, Any], gain: float, options: Any) -> dict[str, Any]:
    """Measure a task's candidates, and race what is better than the default twice more."""
    first, *others = task["candidates"]
    trials: list[list[Any]] = [
        [candidate["config"], *_isolated(number, place, options)]
        for place, candidate in enumerate(others, start=1)
    ]
    times = [trial[2] for trial in trials if trial[2] is not None]
    alone = [min(times), min(times), ""] if times else _isolated(number, 0, options)
    trials.insert(0, [first["config"], *alone])
    passed = [(t[1] / t[2], i) for i, t in enumerate(trials) if t[1] is not None]
    default = trials[0]
    tuned = None if default[1] is None else [default[0], default[2], default[2]]
    for ratio, place in sorted(passed)[:3]:
        if ratio >= gain or place == 0:
            break
        again = [_isolated(number, place, options) for _ in range(2)]
        ratios = [ratio, *(us / base if us and base else 2.0 for us, base, _ in again)]
        if max(ratios) < gain:
            base = trials[place][2]
            tuned = [trials[place][0], base * max(ratios), base]
            break
    return {"key": task["key"], "title": task["title"], "trials": trials, "tuned": tuned}


def _isolated(number: int, place: int, options: Any) -> tuple[float | None, float | None, str]:
    """Measure one candidate in a process of its own: its time, the default's, or the error."""
    timeout, script = options.timeout, str(HERE / Path(__file__).name)
    command = [sys.executable, script, "--one", str(number), str(place)]
    command += ["--batches", str(options.batches)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None, None, f"took longer than {timeout:g} seconds"
    if run.returncode < 0:
        return None, None, f"ended by signal {-run.returncode}"
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return None, None, last[:200]
    us, default_us = json.loads(run.stdout.splitlines()[-1])
    return us, default_us, ""


def compared(data: dict[str, Any], task: dict[str, Any], file: str, batches: int) -> list[float]:
    """Time a candidate and the default in turns, after their results are compared."""
    import numpy as np
    import tvm_ffi

    _open(data["kind"])
    cpu = tvm_ffi.device("cpu", 0)
    device = cpu if data["kind"] == "llvm" else tvm_ffi.device(data["kind"], 0)
    generator = np.random.default_rng(data["seed"])
    inputs = [_tensor(_random(generator, *one), device) for one in task["inputs"]]
    files = [file, task["candidates"][0]["file"]]
    calls = [_call(HERE / name, inputs, device, cpu) for name in files]
    results = [[_numpy(leaf, cpu) for leaf in _leaves(call())] for call in calls]
    for one, other in zip(*results, strict=True):
        _check(one, other, data["tolerance"].get(str(other.dtype), 0.0))

    def wait() -> None:
        if device != cpu:
            tvm_ffi.get_global_func("runtime.Device_StreamSync")(device, 0)

    us = _in_turns(calls, wait, device == cpu, batches)
    return [one / task["repeats"] for one in us]


def _in_turns(calls: list[Any], wait: Any, is_cpu: bool, batches: int) -> list[float]:
    """Take the least of some batches, in turns; one call of a CPU is a batch, caches evicted."""
    counts = []
    for call in calls:
        wait()
        begin = time.perf_counter()
        call()
        wait()
        took = max(time.perf_counter() - begin, 1e-6)
        counts.append(1 if is_cpu else max(1, min(MOST_CALLS, int(BATCH_SECONDS / took))))
    junk = bytearray(EVICTED)
    best = [float("inf")] * len(calls)
    for _ in range(batches if not is_cpu else 4 * batches):
        for number, call in enumerate(calls):
            if is_cpu:
                junk[:] = bytes(EVICTED)
            wait()
            begin = time.perf_counter()
            for _ in range(counts[number]):
                call()
            wait()
            best[number] = min(best[number], (time.perf_counter() - begin) / counts[number])
    return [seconds * 1e6 for seconds in best]


def _call(path: Path, inputs: list[Any], device: Any, cpu: Any) -> Any:
    import tvm_ffi

    library = tvm_ffi.load_module(str(path))
    machine = library["vm_load_executable"]()
    places = [device] if device == cpu else [device, cpu]
    setup = [n for d in places for n in (d.dlpack_device_type(), d.index, _POOLED)]
    machine["vm_initialization"](*setup)
    function = machine["main"]

    def call() -> Any:
        return function(*inputs)

    call.library = library  # type: ignore[attr-defined]  # it must outlive its functions
    return call


def _open(kind: str) -> None:
    """Load TVM's runtime; its compiler stays out."""
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise SystemExit("TVM's runtime is not installed: pip install apache-tvm")
    names = ["tvm_runtime"] + ([f"tvm_runtime_{kind}"] if kind != "llvm" else [])
    for name in names:
        path = Path(found.origin).parent / "lib" / f"lib{name}.so"
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _random(generator: Any, shape: list[int], dtype: str) -> Any:
    import numpy as np

    kind = _dtype(dtype)
    if kind.kind in "iub":  # indices: zero is within every range
        return np.zeros(shape, kind)
    return generator.standard_normal(shape).astype(kind)


def _dtype(name: str) -> Any:
    """Find numpy's dtype; names that it does not know are those of ml_dtypes, if installed."""
    import numpy as np

    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


def _tensor(array: Any, device: Any) -> Any:
    import numpy as np
    import tvm_ffi

    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    array = np.ascontiguousarray(array)
    tensor = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), device, None)
    copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
    copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return tensor


def _numpy(tensor: Any, cpu: Any) -> Any:
    import numpy as np
    import tvm_ffi

    array = np.empty(tuple(tensor.shape), _dtype(str(tensor.dtype)))
    copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
    copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return array


def _leaves(result: Any) -> list[Any]:
    if hasattr(result, "dtype"):
        return [result]
    return [leaf for part in result for leaf in _leaves(part)]


def _check(one: Any, other: Any, tolerance: float) -> None:
    import numpy as np

    a, b = one.astype("float64"), other.astype("float64")
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    error = np.abs(a[finite] - b[finite]).max(initial=0.0)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not error <= tolerance * scale:
        raise ValueError(f"its results differ from the default's by {error:.3g} of {scale:.3g}")


if __name__ == "__main__":
    sys.exit(main())
