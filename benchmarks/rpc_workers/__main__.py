"""Time the same trials by one, two and three RPC servers on this machine.

Run as ``python -m benchmarks.rpc_workers``. A trial builds two libraries here, and measures them on
a server. Boards that are measured by RPC have processors of their own; servers on this machine have
none. So a trial holds its server for some seconds without computing, as one that waits for a board
to cool down: what grows is what waits, until builds take all cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tvm
from tvm import relax

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.markdown import table
from benchmarks.records import text
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.measure.timing import Effort
from tvm_fusion.tuning import rpc_bench
from tvm_fusion.tuning.rpc_bench import RpcBench
from tvm_fusion.tuning.tasks import survey

from .servers import servers

HERE = Path(__file__).parent
EFFORT = Effort(seconds=0.05, fewest=3, most=10, timeout=600.0)


def main() -> int:
    """Measure and write the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rpc_workers", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0, help="that a trial holds its server")
    options = parser.parse_args()
    path = HERE / "results" / "rpc_workers.json"
    record: dict[str, Any] = {
        "environment": environment.describe(ROOT),
        "cores": len(os.sched_getaffinity(0)),
        "trials": options.trials,
        "held_seconds": options.seconds,
        "load": round(os.getloadavg()[0], 1),
        "workers": {},
    }
    for count in options.workers:
        record["workers"][str(count)] = round(_timed(count, options.trials, options.seconds), 2)
        print(count, record["workers"][str(count)], file=sys.stderr, flush=True)
    path.write_text(text(record))
    (HERE / "README.md").write_text(render(json.loads(path.read_text())))
    return 0


def _model() -> tvm.IRModule:
    weight = np.random.default_rng(0).standard_normal((256, 384)).astype("float32")
    x = relax.Var("x", relax.TensorType((64, 256), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(output)
    return builder.get()


def _timed(count: int, trials: int, held: float) -> float:
    """Time trials on so many servers, in seconds."""
    spec, config = parse("cpu"), FusionConfig()
    (task,) = survey(import_model(_model(), config), spec, config).tasks
    in_turns = rpc_bench._in_turns

    def held_in_turns(*args: Any) -> list[float]:
        time.sleep(held)
        return in_turns(*args)

    with (
        tempfile.TemporaryDirectory() as folder,
        servers(count, Path(folder)) as (tracker, _),
        mock.patch.object(rpc_bench, "_in_turns", held_in_turns),
    ):
        bench = RpcBench(task, spec, 0, tracker)
        begin = time.monotonic()
        found = list(bench.trials(task.configs[1 : 1 + trials], EFFORT))
        took = time.monotonic() - begin
    assert not any(trial.error for trial in found), [trial.error for trial in found]
    return took


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    first = next(iter(record["workers"].values()))
    rows = [
        [count, f"{took:.1f}", f"{60 * record['trials'] / took:.1f}", f"{first / took:.2f}"]
        for count, took in record["workers"].items()
    ]
    lines = [
        "# Trials by RPC servers",
        "",
        "Generated from `results/rpc_workers.json` by `python -m benchmarks.rpc_workers`; edits",
        "are lost.",
        "",
        f"The same {record['trials']} trials of one product, all servers on the loopback",
        f"interface of one machine of {record['cores']} cores (load average {record['load']}).",
        f"Each trial holds its server for {record['held_seconds']:g} s without computing, as a",
        "board that cools down, besides timing: servers of one machine share the cores that build",
        "candidates for them, boards do not.",
        "",
        *table(["servers", "seconds", "trials a minute", "times one server"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
