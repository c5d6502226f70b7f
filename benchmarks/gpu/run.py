"""Check and time a folder of artifacts on this machine's GPU, against a copy and PyTorch.

``python3 -m benchmarks.gpu.run DIR [--json FILE]`` needs PyTorch and TVM's runtime, no compiler.
Results are compared with the same function in float64, on fresh inputs, in memory that held NaNs.
Only then it is timed: each side's calls over buffers that take turns, more than the last cache
holds, are captured in a CUDA graph; the graphs take turns, and the medians are kept.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

import tvm_fusion

from .catalog import works
from .once import INDEX
from .works import Work

L2_TIMES = 4  # how much memory is gone through before a buffer's turn comes again
COPY_BYTES = 1 << 28  # read and written, together
PAGE = 4096
ROUNDS, SECONDS = 15, 0.02
BARE = ("cublas", "addmm")  # peers that leave the epilogue out, or all of it but a residual
OF_PEERS = 8.0  # how much larger errors may be than ours may


def main() -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: gpu.json in $OUT, if it is set")
    parser.add_argument("--only", default="", help="a part of the names of those to run")
    parser.add_argument("--rival", action="store_true", help="PyTorch's compiler, too")
    options = parser.parse_args()
    path = options.json or Path(os.environ.get("OUT", "."), "gpu.json")
    index = json.loads((options.folder / INDEX).read_text())
    names = index.pop("names")
    record: dict[str, Any] = {"about": {**index, **about()}, "rows": []}
    known = {work.name: work for work in works(index["seed"], index["count"])}
    for name in names:
        if name in index["failed"] or options.only not in name:
            continue
        row = _measured(known[name], options.folder / name, options.rival)
        record["rows"].append(row)
        print(_line(row), flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(row["wrong"] for row in record["rows"]))


def _measured(work: Work, folder: Path, rival: bool) -> dict[str, Any]:
    from . import step  # which uses what is below

    called = isinstance(work, step.DecodeStep)
    return step.measure(work, folder, rival) if called else measure(work, folder, rival)


def measure(work: Work, folder: Path, rival: bool) -> dict[str, Any]:
    """Check one work, then time it; the row of the table."""
    arguments = work.draw(0, "cuda")
    exact = [a.double() if a.is_floating_point() else a for a in arguments]
    expected = leaves(work.reference(*exact))
    row: dict[str, Any] = {"name": work.name, "dtype": work.dtype, "wrong": None}
    row |= {"floor": work.floor, "limit_us": work.limit_us, "flops": getattr(work, "flops", 0)}
    row |= {"seed": work.seed}
    ours = _ours(folder)
    try:
        results = poisoned(ours, arguments)
    # guard: a kernel that does not run is a row of the table
    except Exception as error:
        return row | {"wrong": f"{type(error).__name__}: {str(error).splitlines()[-1][:200]}"}
    found = [difference(r, e, work.allowed_error) for r, e in zip(results, expected, strict=True)]
    row["error"] = max(found)
    if not row["error"] <= 1:
        return row | {"wrong": f"errors of {found} times what is allowed"}
    size = work.touched(arguments, results)
    del exact, results
    sides: dict[str, Callable[..., Any]] = {"ours": ours}
    if rival:
        torch._dynamo.reset()
        for name, peer in work.peers().items():
            own = work.given(name, arguments)
            wrong = _refused(peer, own, None if name in BARE else expected, work)
            if wrong is None:
                sides[name] = peer
            else:
                row["refused"] = {**row.get("refused", {}), name: wrong}
    del expected
    count = turns(size)
    sets = [work.draw(seed, "cuda") for seed in range(count)]
    graphs = {
        name: captured(side, [work.given(name, some) for some in sets])
        for name, side in sides.items()
    }
    graphs["copy"], graphs["copy_alike"] = copies(2, COPY_BYTES), copies(count, size)
    calls = {"copy": 2}
    us = {name: t / calls.get(name, count) for name, t in alternate(graphs).items()}
    us["copy"] *= size / COPY_BYTES
    return row | {"bytes": size, "us": us, "of_copy": us["copy"] / us["ours"], "turns": count}


def _ours(folder: Path) -> Callable[..., Any]:
    executable = tvm_fusion.load(folder)
    names = [spec.name for spec in executable.signatures["main"].inputs]

    def call(*tensors: torch.Tensor) -> list[Any]:
        stream = torch.cuda.current_stream()
        with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
            outputs = executable.run(dict(zip(names, tensors, strict=True)))
        return [*outputs.values()]

    return call


def _refused(
    peer: Callable[..., Any],
    arguments: list[torch.Tensor],
    expected: list[torch.Tensor] | None,
    work: Work,
) -> str | None:
    """Say why a peer is not timed: it does not take the arguments, or gives something else."""
    try:
        results = leaves(peer(*arguments))
        torch.cuda.synchronize()
    # guard: what a library does not take is no row of the table
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    if expected is None:
        return None
    pairs = zip(results, expected, strict=True)
    worst = max(difference(r, e, work.allowed_error) for r, e in pairs)
    return None if worst <= OF_PEERS else f"errors of {worst:.1f} times what is allowed of ours"


def copies(count: int, size: int) -> torch.cuda.CUDAGraph:
    """Capture copies of different memory, each of as many bytes, read and written together."""
    pages = -(-size // 2 // PAGE) * PAGE  # whole ones are copied at full speed
    pieces = torch.empty(count, 2, pages, dtype=torch.uint8, device="cuda")
    return captured(lambda piece: piece[1].copy_(piece[0]), [[p] for p in pieces])


def poisoned(function: Callable[..., Any], arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """Call a function whose results lie where NaNs lay before."""
    for _ in range(3):
        for result in function(*arguments):
            poison = torch.from_dlpack(result)
            poison.fill_(float("nan") if poison.is_floating_point() else -1)
    results = [torch.from_dlpack(result).clone() for result in function(*arguments)]
    torch.cuda.synchronize()
    return results


def difference(found: torch.Tensor, exact: torch.Tensor, epsilon: float) -> float:
    """Return the largest error in units of what is allowed.

    That is two roundings of the result, or one of the largest intermediate that half types hold.
    """
    scale = exact.abs().max().clamp(min=1e-30)
    allowed = 2 * epsilon * exact.abs() + epsilon * scale
    worst = ((found.double() - exact).abs() / allowed).max()
    return float(worst) if torch.isfinite(worst) else float("inf")


def captured(function: Callable[..., Any], sets: list[list[torch.Tensor]]) -> torch.cuda.CUDAGraph:
    """Capture a call for each set of arguments; all results stay where they are."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            held = [function(*arguments) for arguments in sets]
        held.append(function(*sets[0]))  # what a machine keeps of its last call
        del held
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        graph.held = [function(*arguments) for arguments in sets]
    graph.read = sets  # stays where it is, too
    return graph


def alternate(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int = ROUNDS) -> dict[str, float]:
    """Time graphs in turns; the median microseconds of one replay of each."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    repeats = {name: max(1, int(SECONDS / _seconds(g, 1))) for name, g in graphs.items()}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(_seconds(graph, repeats[name]))
    return {name: 1e6 * statistics.median(found) for name, found in times.items()}


def _seconds(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def turns(size: int) -> int:
    """Count the buffers that exceed the last cache several times."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, -(-L2_TIMES * cache // size))


def leaves(result: Any) -> list[torch.Tensor]:
    """List the tensors of a result."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def about() -> dict[str, Any]:
    """Name the device, and what it runs with."""
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _line(row: dict[str, Any]) -> str:
    if row["wrong"]:
        return f"{row['name']:44} WRONG: {row['wrong']}"
    us = "  ".join(f"{name} {value:8.2f}" for name, value in row["us"].items())
    return (
        f"{row['name']:44} {us} us  {100 * row['of_copy']:5.1f} % of copy  err {row['error']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
