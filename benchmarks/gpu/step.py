"""Check and time a work as a user calls it: with the host's part, and what stays in place bound."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

import tvm_fusion

from .decoder import DecodeStep
from .run import COPY_BYTES, captured, copies, difference, leaves, poisoned

ROUNDS, CALLS = 15, 20


def measure(work: DecodeStep, folder: Path, rival: bool) -> dict[str, Any]:
    """Check one work, then time it; the row of the table.

    PyTorch's compiler runs in a CUDA graph; ours decides for itself what is one.
    """
    arguments = work.draw(0, "cuda")
    exact = [a.double() if a.is_floating_point() else a for a in arguments]
    expected = leaves(work.function(*exact)) + [exact[i] for i in work.in_place]
    del exact
    ours = _ours(work, folder, arguments)
    moving = arguments[: work.static[0]]
    row: dict[str, Any] = {"name": work.name, "dtype": work.dtype, "wrong": None}
    row |= {"floor": work.floor, "limit_us": work.limit_us}
    results = poisoned(ours, moving)
    found = results + [arguments[i] for i in work.in_place]
    errors = [difference(r, e, work.allowed_error) for r, e in zip(found, expected, strict=True)]
    row["error"] = max(errors)
    if not row["error"] <= work.allowed:
        return row | {"wrong": f"errors of {errors} times what is allowed"}
    size = work.touched(arguments, results)
    sides: dict[str, Callable[[], Any]] = {"ours": lambda: ours(*moving)}
    if rival:
        torch._dynamo.reset()
        compiled = torch.compile(work.function, dynamic=False)
        sides["inductor"] = captured(compiled, [arguments]).replay
    sides["copy"] = copies(2, COPY_BYTES).replay
    us = alternate(sides)
    us["copy"] *= size / COPY_BYTES / 2
    return row | {"bytes": size, "us": us, "of_copy": us["copy"] / us["ours"], "turns": 1}


def _ours(work: DecodeStep, folder: Path, arguments: list[torch.Tensor]) -> Callable[..., Any]:
    executable = tvm_fusion.load(folder)
    names = [spec.name for spec in executable.signatures["main"].inputs]
    bound = executable.bind({names[i]: arguments[i] for i in work.static})
    moving = names[: work.static[0]]
    kept = {*executable.manifest["functions"]["main"]["in_place"].values()}

    def call(*tensors: torch.Tensor) -> list[Any]:
        with tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.current_stream())):
            outputs = bound.run(dict(zip(moving, tensors, strict=True)))
        return [value for name, value in outputs.items() if name not in kept]

    return call


def alternate(sides: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time sides in turns; the median microseconds of one call of each."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            side()
            torch.cuda.synchronize()
            start.record()
            for _ in range(CALLS):
                side()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1e3 * start.elapsed_time(end) / CALLS)
    return {name: statistics.median(found) for name, found in times.items()}
