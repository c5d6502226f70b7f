"""The command line: time the fusion stage, write ``results/planning.json`` and ``README.md``."""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.transform import Sequential

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import write
from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.frontend import import_model

from .decoder import decoder

HERE = Path(__file__).parent
LAYERS = (6, 12, 24, 48, 96)
MODELS = ("gpt2", "bert_base", "efficientnet_b0")
TARGETS = ("cpu", "cuda:sm_90a")
BAR = 40  # characters of the longest bar


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    record: dict[str, Any] = {
        "environment": environment.describe(ROOT),
        "rounds": options.rounds,
        "models": {},
        "layers": {},
    }
    for name in MODELS:
        mod = import_model(zoo.load(name, 0), FusionConfig()).mod
        record["models"][name] = {t: _measure(mod, t, options.rounds) for t in TARGETS}
    for layers in LAYERS:
        record["layers"][str(layers)] = _measure(decoder(layers), TARGETS[1], options.rounds)
    write(HERE / "results" / "planning.json", record)
    (HERE / "README.md").write_text(render(record))
    return 0


def _measure(mod: tvm.IRModule, target: str, rounds: int) -> dict[str, Any]:
    """Time the fusion stage alone, on one core, in the median of some rounds."""
    with parse(target).tvm_target():
        before = [transform.NormalizeImport(), transform.Rewrite(), transform.Legalize()]
        mod = Sequential(before)(mod)
        seconds = []
        for _ in range(rounds):
            start = time.process_time()
            transform.FuseOperators()(mod)
            seconds.append(time.process_time() - start)
    main_function = mod["main"]
    graph = Graph(mod, main_function, main_function.body.blocks[0])
    return {"operators": len(graph.operators), "seconds": statistics.median(seconds)}


def render(record: dict[str, Any]) -> str:
    """Write the tables of a record."""
    rows = record["layers"]
    most = max(row["seconds"] for row in rows.values())
    lines = [
        "# Planning time",
        "",
        "Generated from `results/planning.json` by `python -m benchmarks.planning`; edits are"
        " lost.",
        "",
        "Seconds of one core for the fusion stage (`FuseOperators`), medians. The floor is 10 s for"
        " GPT-2.",
        "",
        f"| model | operators | {' | '.join(TARGETS)} |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in record["models"].items():
        times = " | ".join(f"{row[t]['seconds']:.2f}" for t in TARGETS)
        lines.append(f"| {name} | {row[TARGETS[0]]['operators']} | {times} |")
    lines += [
        "",
        "## Growth with depth",
        "",
        f"GPT-2's decoder built with so many layers, for `{TARGETS[1]}`.",
        "",
        "| layers | operators | seconds | ms an operator | seconds, plotted |",
        "| --- | --- | --- | --- | --- |",
    ]
    for layers, row in rows.items():
        each = 1e3 * row["seconds"] / row["operators"]
        bar = "█" * max(1, round(BAR * row["seconds"] / most))
        count, seconds = row["operators"], row["seconds"]
        lines.append(f"| {layers} | {count} | {seconds:.2f} | {each:.2f} | `{bar}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
