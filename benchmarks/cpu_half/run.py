"""Compile the models in both precisions, then check and time each with 1, 2 and 16 threads.

``python3 -m benchmarks.cpu_half.run DIR [--only NAME ...] [--threads 1 2 16] [--jobs 16]`` needs
PyTorch, transformers, TVM with its compiler and, for the peer, OpenVINO; the record goes to
``cpu_half.json`` in $OUT. A folder that has artifacts is not compiled again; ``--prepare`` compiles
alone. ``--at-once 4`` measures four models side by side, on cores of their own.
"""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker, gather
from tvm_fusion.device import parse

PEER = "openvino"
PREPARED = ("fp32", "bf16", PEER)  # what is made of a model, each in a process
THREADS = (1, 2, 16)
SECONDS = 90.0  # for one row


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if any model is missing."""
    from .models import MODELS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the artifacts")
    parser.add_argument("--only", nargs="*", help="names")
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--at-once", type=int, default=1, help="models that are measured at once")
    parser.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--json", type=Path, help="default: cpu_half.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    path = options.json or Path(os.environ.get("OUT", "."), "cpu_half.json")
    names = options.only or [*MODELS]
    work = [(name, made, options.folder / name / made) for name in names for made in PREPARED]
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        failed = [found for found in pool.map(_compile, *zip(*work, strict=True)) if found]
    print("\n".join(failed), flush=True)
    if options.prepare:
        return int(bool(failed))
    device = {"name": parse("cpu").device.arch, "machine": platform.processor()}
    record: dict[str, Any] = {"about": device | {"failed": failed}, "rows": []}
    left_out = {line.split(" ", 1)[0] for line in failed if line.split(" ", 2)[1] != f"{PEER}:"}
    for threads in options.threads:
        cores = itertools.count(0, threads)

        def serve(left: Iterator[str], threads: int = threads, cores: Iterator[int] = cores):
            first = next(cores)
            for name in left:
                if name not in left_out and time.monotonic() < end:
                    yield _row(name, threads, first, options.folder)

        at_once = max(1, min(options.at_once, len(os.sched_getaffinity(0)) // threads))
        for row in gather(names, at_once, serve):
            print(row if isinstance(row, str) else _text(row), flush=True)
            (record["about"]["failed"] if isinstance(row, str) else record["rows"]).append(row)
            path.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(record["about"]["failed"]))


def _row(name: str, threads: int, first: int, folder: Path) -> dict[str, Any] | str:
    """Measure a model on some cores, from the first one; returns what failed as text."""
    arguments = name, str(threads), str(first), str(folder)
    worker = Worker("-m", "benchmarks.cpu_half.worker", *arguments, environment={})
    line = worker.line(SECONDS)
    if not line:
        ended = worker.ended() if line == "" else f"over {SECONDS:.0f} s"
        worker.close()
        return f"{name} {threads}: {ended}"
    worker.close()
    return json.loads(line)


def _compile(name: str, made: str, folder: Path) -> str:
    """Compile one model, or write what its peer and its check need; returns what failed."""
    if folder.exists():
        return ""
    import torch

    import tvm_fusion

    from .models import built
    from .worker import SEED

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    try:
        module, inputs = built(name, SEED)
        if made == PEER:
            write_peer(module, inputs, folder)
        else:
            program = torch.export.export(module, inputs)
            tvm_fusion.compile(program, target="cpu", precision=made).export(folder)
    # guard: a model that is not compiled is a line of the page
    except Exception as error:
        return f"{name} {made}: {error}"
    return ""


def write_peer(module: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    """Write inputs, PyTorch's first output, and OpenVINO's model where it can be had."""
    import numpy as np
    import torch

    exact = module(*inputs)[0].double().numpy()
    place = folder.with_name("case.npz")
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez(place, exact=exact, **{str(i): x.numpy() for i, x in enumerate(inputs)})
    import openvino

    model = openvino.convert_model(torch.export.export(module, inputs))
    folder.mkdir()
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def _text(row: dict[str, Any]) -> str:
    ms = "  ".join(f"{side} {value:8.2f}" for side, value in row["ms"].items())
    errors = "  ".join(f"{side} {value:.1e}" for side, value in row["errors"].items())
    return f"{row['name']:14} {row['threads']:2} threads  {ms} ms  errors {errors}"


if __name__ == "__main__":
    sys.exit(main())
