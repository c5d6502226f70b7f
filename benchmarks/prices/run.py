"""Measure a folder of groups where the device is, with TVM's runtime alone.

``python3 -m benchmarks.prices.run DIR [--json FILE] [--seconds N] [--threads N]``; the result goes
to ``prices.json`` in $OUT by default. The alternatives of a group read the same inputs, and the
same weights where they take them in the same form; their results are compared, then they are timed
in turns. A process measures group after group; a crash costs the group.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker
from tvm_fusion.deploy.runtime.executable import join_team
from tvm_fusion.tuning.candidate_bench.tensors import Draw, Runtime, difference
from tvm_fusion.tuning.candidate_bench.worker import MOST_ROUNDS, Clock

INDEX = "index.json"
GROUP_SECONDS = 60.0  # until a group counts as hanging
TIMED_SECONDS = 0.03  # of the calls of a group
TURNED_BYTES = 1 << 28  # of weights, before the first ones are read again: no cache has them
CPU_BYTES = 1 << 26  # the same of a CPU: its cores' own caches have not
FUSED = "fused"
SEED = 1


def main() -> int:
    """Measure all groups; returns the exit code: 1 where results differ or a group fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: prices.json in $OUT, if it is set")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--threads", type=int, help="of a CPU; default: one a core")
    parser.add_argument("--worker", action="store_true", help="answer the names of groups")
    options = parser.parse_args()
    if options.worker:
        _work(options.folder)
        return 0
    path = options.json or Path(os.environ.get("OUT", "."), "prices.json")
    record = measure(options.folder, path, options.seconds, options.threads)
    failed = [row for row in record["rows"].values() if "us" not in row]
    print(f"{len(record['rows']) - len(failed)} groups measured, {len(failed)} failed")
    return 1 if failed else 0


def measure(
    folder: Path, path: Path, seconds: float = float("inf"), threads: int | None = None
) -> dict[str, Any]:
    """Measure a folder's groups, each answer written at once; returns the record."""
    index = json.loads((folder / INDEX).read_text())
    keys = [key for key, group in index["groups"].items() if _is_built(group)]
    end = time.monotonic() + seconds
    record: dict[str, Any] = {"target": index["target"], "device": "", "rows": {}}
    worker: Worker | None = None
    for key in keys:
        if time.monotonic() > end:
            print("no time is left for the other groups", flush=True)
            break
        if worker is None:
            worker = _started(folder, threads)
            first = json.loads(worker.line(GROUP_SECONDS) or "{}")
            if "device" not in first:
                raise SystemExit(f"nothing can be measured here: {first.get('error')}")
            of = f", {threads} threads" if threads else ""
            record["device"] = f"{first['device']}{of}"
        worker.send(key)
        line = worker.line(GROUP_SECONDS)
        row = (
            json.loads(line) if line else {"error": "the process ended" if line == "" else "hangs"}
        )
        record["rows"][key] = row
        if "us" not in row:  # nothing in the process can be relied on
            worker.close()
            worker = None
        path.write_text(json.dumps(record))
        print(_line(index["groups"][key], row), flush=True)
    if worker is not None:
        worker.close()
    return record


def _is_built(group: dict[str, Any]) -> bool:
    return "library" in group["functions"].get(FUSED, {})


def _started(folder: Path, threads: int | None) -> Worker:
    module = ("-m", "benchmarks.prices.run", str(folder.resolve()), "--worker")
    environment = {"TVM_NUM_THREADS": str(threads)} if threads else {}
    environment["TVM_BIND_THREADS"] = "0"  # by default to the first cores, which others may use
    return Worker(*module, environment=environment, folder=Path.cwd())


def _line(group: dict[str, Any], row: dict[str, Any]) -> str:
    title = group["title"][:60]
    if "us" not in row:
        return f"{title}: {row['error']}"
    us = ", ".join(f"{name} {value:.1f}" for name, value in row["us"].items())
    wrong = "".join(f"; {name}: {told}" for name, told in row["wrong"].items())
    return f"{title}: {group['prices'][FUSED]['us']:.1f} predicted, {us}{wrong}"


def _work(folder: Path) -> None:
    """Answer each line, the name of a group, by a line of its times."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    index = json.loads((folder / INDEX).read_text())
    try:
        bench = Bench(folder, index["target"])
    except Exception as error:  # guard: who asks ends with this sentence
        send({"error": str(error)})
        return
    send({"device": bench.name})
    for line in sys.stdin:
        try:
            send(bench.times(index["groups"][line.strip()]))
        except Exception as error:  # guard: a group that fails is a row
            lines = str(error).strip().splitlines() or [""]
            send({"error": f"{type(error).__name__}: {lines[-1]}"[:200]})


class Bench:
    """The device, and the libraries that are loaded."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        kind = {"cpu": "llvm"}.get(target.partition(":")[0], target.partition(":")[0])
        self._runtime = Runtime(kind)
        self._clock = Clock.of(self._runtime)
        self._machines: dict[str, Any] = {}
        self.name = _device_name() if kind == "cuda" else _processor() or kind

    def times(self, group: dict[str, Any]) -> dict[str, Any]:
        """Time the alternatives of a group; what gives other results is told and not timed."""
        functions = {n: f for n, f in group["functions"].items() if "library" in f}
        draw = Draw(SEED)
        inputs = [self._runtime.tensor(draw.input(*one)) for one in functions[FUSED]["inputs"]]
        digests = {digest: drawn for f in functions.values() for digest, drawn in f["weights"]}
        arrays = {digest: draw.weight(*drawn) for digest, drawn in digests.items()}
        sides: dict[str, list[Any]] = {}
        wrong: dict[str, str] = {}
        expected: list[Any] = []
        count = 0
        for name, function in functions.items():
            own = [digest for digest, _ in function["weights"]]
            size = sum(arrays[digest].nbytes for digest in own)
            sets = [[self._runtime.tensor(arrays[d]) for d in own]]
            call = self._call(function, inputs, sets[0])
            results = self._results(call)
            is_comparable = set(own) == {d for d, _ in functions[FUSED]["weights"]}
            if name == FUSED:
                expected = results
                count = self._clock.count(call, max(size, 1))
            elif is_comparable and (told := _told(results, expected, group["tolerance"])):
                wrong[name] = told
            turned, most = (
                (CPU_BYTES, MOST_ROUNDS) if self._runtime.kind == "llvm" else (TURNED_BYTES, count)
            )
            while len(sets) < min(most, max(2, turned // max(size, 1))) and own:
                sets.append([self._runtime.tensor(arrays[d]) for d in own])
            turns = [self._call(function, inputs, one) for one in sets]
            if count > 1:
                timed = self._clock.timed([turns[i % len(turns)] for i in range(count)])
            else:
                timed = _next_of(turns)
            sides[name] = [timed]
        us = self._clock.alternate([side[0] for side in sides.values()], TIMED_SECONDS)
        found = {n: float(f"{t / count:.4g}") for n, t in zip(sides, us, strict=True)}
        return {"us": found, "wrong": wrong, "turns": count}

    def _call(self, function: dict[str, Any], inputs: list[Any], weights: list[Any]) -> Any:
        library = function["library"]
        if library not in self._machines:
            module, self._machines[library] = self._runtime.machine(self._folder / library)
            join_team(module)
        called = self._machines[library][function["function"]]
        arguments = (*inputs, *weights)
        return lambda: called(*arguments)

    def _results(self, call: Any) -> list[Any]:
        """Call where earlier results lay, which are NaN now: unwritten elements are seen."""
        for leaf in self._clock.run(call):
            self._runtime.poison(leaf)
        return [self._runtime.array(leaf) for leaf in self._clock.run(call)]


def _next_of(calls: list[Any]) -> Any:
    """Make a call that does the next of some calls each time."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _device_name() -> str:
    """Name the first GPU, as the driver does."""
    name = ctypes.create_string_buffer(256)
    ctypes.CDLL("libcuda.so.1").cuDeviceGetName(name, len(name), 0)
    return name.value.decode()


def _processor() -> str:
    """Name the processor, as Linux does."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _told(results: list[Any], expected: list[Any], tolerance: float) -> str:
    """Tell of results that differ; empty where they do not."""
    for one, other in zip(results, expected, strict=True):
        error, scale = difference(one, other)
        if not error <= max(8 * tolerance, 1e-5) * scale:
            return f"its results differ by {error:.3g} of {scale:.3g}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
