"""Check and time a folder of candidates on this machine's GPU, each against its default.

``python3 -m benchmarks.gpu_sweep.run DIR [--json FILE]`` needs PyTorch and TVM's runtime, no
compiler. Results are compared with float64 and with the default's, in memory that held NaNs. Only
then a shape's candidates are timed together: calls over buffers that take turns, more than the last
cache holds, are captured in a CUDA graph each; the graphs take turns, and the medians are kept.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from benchmarks.gpu.run import about, alternate, captured, difference, leaves, poisoned, turns
from benchmarks.gpu.works import Work
from tvm_fusion._tvm.cuda import load_cudart

from .shapes import HELD_OUT, INDEX, swept

ROUNDS, SECONDS = 11, 0.008
_POOLED = 2  # memory allocator of TVM's virtual machine


def main() -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: gpu_sweep.json in $OUT, if it is set")
    parser.add_argument("--only", default="", help="a part of the names of those to run")
    options = parser.parse_args()
    path = options.json or Path(os.environ.get("OUT", "."), "gpu_sweep.json")
    index = json.loads((options.folder / INDEX).read_text())
    known = swept()
    record: dict[str, Any] = {"about": {"target": index["target"], **about()}, "shapes": []}
    _open_runtime()
    for shape in index["shapes"]:
        if options.only not in shape["name"]:
            continue
        row = measure(known[shape["name"]], shape, options.folder)
        record["shapes"].append(row)
        print(_line(row), flush=True)
        path.write_text(json.dumps(record) + "\n")
        torch.cuda.empty_cache()
    return int(any(c["wrong"] for row in record["shapes"] for c in row["candidates"]))


def measure(work: Work, shape: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Check the candidates of one shape, then time those that are right."""
    arguments = work.draw(0, "cuda")
    exact = [a.double() if a.is_floating_point() else a for a in arguments]
    expected = leaves(work.reference(*exact))
    del exact
    default: list[torch.Tensor] | None = None
    calls, rows, size = {}, [], 0
    for number, candidate in enumerate(shape["candidates"]):
        row = {k: v for k, v in candidate.items() if k != "file"} | {"wrong": None}
        rows.append(row)
        try:
            call = _call(folder / candidate["file"], shape["order"], shape["inputs"])
            results = poisoned(call, arguments)
        # guard: a candidate that does not run is a row of the table
        except Exception as error:
            row["wrong"] = f"{type(error).__name__}: {str(error).splitlines()[-1][:200]}"
            continue
        results = [r.view(e.shape) for r, e in zip(results, expected, strict=True)]  # the group's
        default = default or [r.double() for r in results]
        pairs = zip(results, expected, default, strict=True)
        found = [
            max(difference(r, e, work.allowed_error), difference(r, d, 2 * work.allowed_error))
            for r, e, d in pairs
        ]
        row["error"] = round(max(found), 3)
        if not row["error"] <= 1:
            row["wrong"] = f"errors of {found} times what is allowed"
            continue
        calls[number] = call
        size = work.touched(arguments, results)
    del expected, default
    sets = [work.draw(seed, "cuda") for seed in range(turns(size))] if size else []
    graphs = {str(number): captured(call, sets) for number, call in calls.items()}
    for number, us in alternate(graphs, ROUNDS, SECONDS).items():
        rows[int(number)]["us"] = round(us / len(sets), 3)
    held_out = work.name in {one.name for one in HELD_OUT}
    flops = getattr(work, "flops", 0)
    return {"name": work.name, "flops": flops, "held_out": held_out, "candidates": rows}


def _open_runtime() -> None:
    """Load TVM's runtime; its compiler stays out."""
    load_cudart()
    found = importlib.util.find_spec("tvm")
    assert found is not None
    assert found.origin is not None
    for name in ("tvm_runtime", "tvm_runtime_cuda"):
        path = Path(found.origin).parent / "lib" / f"lib{name}.so"
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _call(
    path: Path, order: Sequence[int], inputs: Sequence[Sequence[int]]
) -> Callable[..., list[Any]]:
    """Load a candidate; it is called with the work's arguments."""
    library = tvm_ffi.load_module(str(path))
    machine = library["vm_load_executable"]()
    devices = [tvm_ffi.device("cuda", 0), tvm_ffi.device("cpu", 0)]
    setup = [n for d in devices for n in (d.dlpack_device_type(), d.index, _POOLED)]
    machine["vm_initialization"](*setup)
    function = machine["main"]

    def call(*tensors: torch.Tensor) -> list[Any]:
        views = [tensors[i].view(shape) for i, shape in zip(order, inputs, strict=True)]
        given = [tvm_ffi.from_dlpack(view) for view in views]
        stream = torch.cuda.current_stream()
        with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
            result = function(*given)
        return [result] if hasattr(result, "dtype") else list(result)  # shaped as the group's

    call.library = library  # type: ignore[attr-defined]  # it must outlive its functions
    return call


def _line(row: dict[str, Any]) -> str:
    times = [f"{c['us']:.2f}" if not c["wrong"] else "WRONG" for c in row["candidates"]]
    return f"{row['name']:44} " + " ".join(times)


if __name__ == "__main__":
    sys.exit(main())
