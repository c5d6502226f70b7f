"""Run a folder of compiled functions on this machine's device and compare what they return.

``python3 -m benchmarks.gpu_check.run DIR [--json FILE]`` needs numpy and TVM's runtime, no
compiler. Every function is called several times: outputs of some calls are filled with
different bytes before their memory is given back, where two more calls find it; those must
give the same bits, or something was not written or depends on the order of threads.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check import archive, drawing, expected

_POISON = (0xFF, 0x7E)  # as bytes of a float: NaNs, and large numbers
_ROUNDS = 6  # outputs of equal size take turns in more pieces of memory than there are outputs


def main() -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: gpu_check.json in $OUT, if it is set")
    parser.add_argument("--only", default="", help="a part of the names of those to run")
    options = parser.parse_args()
    record = run(options.folder, options.only)
    path = options.json
    if path is None and os.environ.get("OUT"):
        path = Path(os.environ["OUT"], "gpu_check.json")
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if record["failures"] else 0


def run(folder: Path, only: str = "") -> dict[str, Any]:
    """Run all functions of a folder whose names contain ``only``; print failures and a summary."""
    start = time.perf_counter()
    content = archive.read(folder)
    runner = Runner(folder, content["about"]["target"])
    results = []
    for entry in content["entries"]:
        if only in entry["name"]:
            result = runner.check(entry)
            results.append(result)
            if result["status"] != "right":
                print(f"{result['status']}: {entry['name']}: {result['reason']}", flush=True)
    for one in content["left_out"]:
        print(f"left out at {one['stage']}: {one['name']}: {one['reason']}")
    summary = _summary(results)
    for kind, line in summary.items():
        print(f"{kind}: {line}")
    return {
        "about": content["about"],
        "device": runner.name,
        "seconds": round(time.perf_counter() - start, 1),
        "failures": sum(result["status"] != "right" for result in results),
        "summary": summary,
        "results": results,
        "left_out": content["left_out"],
    }


class Runner:
    """Loads libraries and calls their functions."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        self._on_gpu = target.startswith("cuda")
        self._machines: dict[str, Any] = {}
        if self._on_gpu:
            # Before TVM's CUDA library, which finds its driver functions in the order of loading.
            self._counter = ctypes.CDLL(str(folder / archive.COUNTER), ctypes.RTLD_GLOBAL)
            self._counter.launches_so_far.restype = ctypes.c_long
        import tvm

        self._tvm = tvm
        if self._on_gpu:
            from tvm_fusion._tvm.cuda import load_cudart

            load_cudart()
            library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        self._device = tvm.cuda(0) if self._on_gpu else tvm.cpu(0)
        if not self._device.exist:
            raise SystemExit(f"no device for {target} here")
        self.name = self._device.device_name if self._on_gpu else "cpu"

    def check(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Run one function; a JSON-ready result with ``status`` right, wrong or failed."""
        result: dict[str, Any] = {k: entry[k] for k in ("name", "kind", "groups", "about")}
        result |= {"status": "right", "reason": None, "expected_launches": entry["launches"]}
        result["outputs"] = len(entry["outputs"])
        arguments = drawing.draw(entry["arguments"], entry["seed"])
        if drawing.checksum(arguments) != entry["checksum"]:
            return result | _fail("failed", "this numpy draws other numbers")
        try:
            found = self._call(entry, arguments)
        # guard: one function that fails is a finding; the others are run all the same
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return result | _fail("failed", f"{type(error).__name__}: {lines[-1][:300]}")
        result |= {k: found[k] for k in ("launches", "poisoned")}
        problems, worst = [], 0.0
        if len(found["outputs"]) != len(entry["outputs"]):
            return result | _fail("wrong", f"{len(found['outputs'])} outputs")
        for number, wanted in enumerate(entry["outputs"]):
            problem, units = expected.compare(found["outputs"][number], wanted)
            worst = max(worst, units)
            if problem:
                problems.append(f"output {number}: {problem}")
        if found["differs"]:
            problems.append("two calls with the same inputs give different bits")
        if found["changed"]:
            problems.append(f"arguments {found['changed']} were written to")
        if found["launches"] is not None and found["launches"] != entry["launches"]:
            problems.append(f"{found['launches']} launches instead of {entry['launches']}")
        result["error"] = min(worst, 1e30)  # in units of the tolerance
        return result | (_fail("wrong", "; ".join(problems)) if problems else {})

    def _call(self, entry: dict[str, Any], arguments: list[Any]) -> dict[str, Any]:
        tensor = self._tvm.runtime.tensor
        function = self._machine(entry["library"])[entry["function"]]
        passed = [
            value if isinstance(value, int) else tensor(value, self._device) for value in arguments
        ]
        # The machine keeps a call's outputs until the next one: memory comes back in turns.
        poisoned: set[int] = set()
        fixed = _addresses(passed) | self._fixed(function, passed)
        for number in range(_ROUNDS):
            byte = _POISON[number % len(_POISON)]
            poisoned |= self._poison(function, passed, byte, fixed)
        before = self._launches()
        once = _outputs(function(*passed))
        self._device.sync()
        launches = None if before is None else self._launches() - before
        results = [value.numpy() for value in once]
        again = _outputs(function(*passed))
        same = all(
            one.tobytes() == other.numpy().tobytes()
            for one, other in zip(results, again, strict=True)
        )
        hit = sum(value.data_ptr() in poisoned for value in once)
        changed = [
            position
            for position, (value, given) in enumerate(zip(passed, arguments, strict=True))
            if not isinstance(value, int) and value.numpy().tobytes() != np.asarray(given).tobytes()
        ]
        return {
            "outputs": results,
            "launches": launches,
            "poisoned": hit,
            "differs": not same,
            "changed": changed,
        }

    def _fixed(self, function: Any, arguments: list[Any]) -> set[int]:
        """Return where outputs lie whatever else is in memory: constants."""
        held = _outputs(function(*arguments))
        return _addresses(held) & _addresses(_outputs(function(*arguments)))

    def _poison(self, function: Any, arguments: list[Any], byte: int, fixed: set[int]) -> set[int]:
        """Call once, and fill the outputs with a byte before their memory is given back."""
        outputs = [o for o in _outputs(function(*arguments)) if o.data_ptr() not in fixed]
        for output in outputs:
            array = output.numpy()
            is_bool = array.dtype == np.bool_  # whose bytes are 0 or 1
            array.reshape(-1).view(np.uint8)[:] = byte & 1 if is_bool else byte
            output.copyfrom(array)
        return _addresses(outputs)

    def _machine(self, library: str) -> Any:
        if library not in self._machines:
            from tvm.runtime import vm

            module = self._tvm.runtime.load_module(str((self._folder / library).resolve()))
            self._machines[library] = vm.VirtualMachine(module, self._device)
        return self._machines[library]

    def _launches(self) -> Any:
        return self._counter.launches_so_far() if self._on_gpu else None


def _outputs(result: Any) -> list[Any]:
    return [result] if hasattr(result, "data_ptr") else list(result)


def _addresses(values: list[Any]) -> set[int]:
    return {value.data_ptr() for value in values if not isinstance(value, int)}


def _fail(status: str, reason: str) -> dict[str, str]:
    return {"status": status, "reason": reason}


def _summary(results: list[dict[str, Any]]) -> dict[str, str]:
    """Tell per kind how many are right, the largest error and the launches."""
    lines = {}
    for kind in dict.fromkeys(result["kind"] for result in results):
        mine = [result for result in results if result["kind"] == kind]
        right = sum(result["status"] == "right" for result in mine)
        worst = max((result.get("error", 0.0) for result in mine), default=0.0)
        launches = sum(result.get("launches") or 0 for result in mine)
        wanted = sum(result["expected_launches"] for result in mine)
        groups = sum(result["groups"] for result in mine)
        poisoned = sum(result.get("poisoned", 0) for result in mine)
        outputs = sum(result["outputs"] for result in mine)
        lines[kind] = (
            f"{right} of {len(mine)} right, {groups} groups, largest error {worst:.2g} of its "
            f"tolerance, {launches} launches of {wanted} counted, {poisoned} of "
            f"{outputs} outputs in poisoned memory"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
