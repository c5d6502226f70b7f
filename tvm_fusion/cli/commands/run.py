"""Run: execute an artifact and time it."""

import argparse
import io
import math
import secrets
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...errors import UserError
from ...words import counted
from ..executable import (
    add_artifact_argument,
    add_function_argument,
    executable_of,
    function_of,
)
from ..inputs import (
    UNREADABLE,
    add_input_arguments,
    add_threads_argument,
    choose_threads,
    chosen_dims,
    dims_line,
    not_finite,
    not_finite_line,
    read_inputs,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_artifact_argument(parser)
    add_input_arguments(parser)
    add_function_argument(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--repeat", type=int, default=10, metavar="N", help="timed runs (default: 10)"
    )
    length.add_argument(
        "--duration",
        type=_seconds,
        metavar="SECONDS",
        help="time runs for this long: 10, 10s or 2m",
    )
    parser.add_argument(
        "--warmup", type=int, default=2, metavar="N", help="untimed runs before them (default: 2)"
    )
    add_threads_argument(parser)
    parser.add_argument("--output", metavar="FILE.npz", help="write the outputs there")


def _seconds(text: str) -> float:
    """Read a time in seconds, or in the unit behind it, as budgets have them."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        return float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected seconds, such as 10 or 10s") from None


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run and time.

    Returns
    -------
    dict
        ``latency_ms``: ``min``, ``mean``, ``median``, ``p90``, ``p99``, ``max`` in milliseconds;
        ``throughput``: runs per second; ``repeat``: how many were timed; ``threads`` of a CPU's
        kernels, 0 on a GPU; ``outputs``: by name ``shape``, ``dtype``, ``mean``, ``std``, and how
        many values are ``nan`` and ``inf``; ``dims``: by symbolic dimension the ``extent`` that was
        run, of ``min`` to ``max``.
    """
    from ...deploy.runtime.tensors import to_numpy
    from ...threads import team_size

    if options.repeat < 1 or options.warmup < 0:
        raise UserError(f"--repeat {options.repeat} --warmup {options.warmup}", "at least 1 and 0")
    if options.duration is not None and not 0 < options.duration < math.inf:
        raise UserError(f"--duration {options.duration:g}", "seconds, more than 0")
    choose_threads(options)
    executable = executable_of(options)
    function = function_of(options, executable)
    signature = executable.signatures[function]
    inputs = read_inputs(options, signature, executable.dims)
    for _ in range(options.warmup):
        executable.run(inputs, function=function)
    executable.synchronize()
    milliseconds: list[float] = []
    began = end = time.perf_counter()
    while not _is_over(options, len(milliseconds), end - began):
        start = time.perf_counter()
        outputs = executable.run(inputs, function=function)
        executable.synchronize()
        end = time.perf_counter()
        milliseconds.append((end - start) * 1e3)
    arrays = {
        name: value if isinstance(value, np.ndarray) else to_numpy(value)
        for name, value in outputs.items()
    }
    if options.output:
        _write(options.output, arrays)
    return {
        "latency_ms": {
            "min": min(milliseconds),
            "mean": float(np.mean(milliseconds)),
            **{
                name: float(np.percentile(milliseconds, percent))
                for name, percent in (("median", 50), ("p90", 90), ("p99", 99))
            },
            "max": max(milliseconds),
        },
        "throughput": len(milliseconds) / (end - began),
        "repeat": len(milliseconds),
        "threads": team_size() if executable.manifest["target"]["kind"] == "llvm" else 0,
        "dims": chosen_dims(inputs, signature, executable.dims),
        "outputs": {name: _summary(array) for name, array in arrays.items()},
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print latencies and what came out."""
    told = {name: _significant(value) for name, value in result["latency_ms"].items()}
    console.print(
        f"latency of {counted(result['repeat'], 'run')}: min {told['min']}, "
        f"median [bold]{told['median']}[/], p90 {told['p90']}, p99 {told['p99']}, "
        f"max {told['max']} ms"
    )
    threads = f" on {counted(result['threads'], 'thread')}" if result["threads"] else ""
    console.print(f"  {_significant(result['throughput'])} runs per second{threads}")
    if line := dims_line(result["dims"]):
        console.print(f"  {line}", markup=False, highlight=False)
    for name, output in result["outputs"].items():
        console.print(
            f"  {name}: {output['dtype']} {tuple(output['shape'])}, "
            f"mean {output['mean']:.4g}, std {output['std']:.4g}",
            markup=False,
        )
    for name, output in result["outputs"].items():
        if line := not_finite_line(name, output, math.prod(output["shape"])):
            console.print(f"  warning: {line}", style="yellow", markup=False, highlight=False)


def _significant(value: float) -> str:
    """Write three digits or more, without an exponent: ``0.0512``, ``14,142``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _is_over(options: argparse.Namespace, runs: int, seconds: float) -> bool:
    if options.duration is None:
        return bool(runs >= options.repeat)
    return runs > 0 and bool(seconds >= options.duration)


def _write(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file, or none; unlike ``numpy.savez``, of any names, such as ``file``.

    An interrupt or a full disk leaves what was there before.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                array = array.view("V1") if array.dtype.str == UNREADABLE else array
                np.lib.format.write_array(member, array, allow_pickle=False)
    place = Path(path)
    try:
        if place.exists() and not place.is_file():  # a device or a pipe
            place.write_bytes(content.getbuffer())
            return
        place = place.resolve()
        staging = place.with_name(f".{secrets.token_hex(8)}.part")
        try:
            staging.write_bytes(content.getbuffer())
            staging.replace(place)
        finally:
            staging.unlink(missing_ok=True)
    except OSError as error:
        advice = "name a file in a folder that you may write to, with space left"
        raise UserError(f"cannot write {path!r} ({error.strerror})", None, advice) from error


def _summary(array: np.ndarray) -> dict[str, Any]:
    values = array.astype(np.float64) if array.size else np.zeros(1)
    with np.errstate(invalid="ignore", over="ignore"):  # a warning of ours says more
        mean, std = float(values.mean()), float(values.std())
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "mean": mean,
        "std": std,
        **not_finite(array),
    }
