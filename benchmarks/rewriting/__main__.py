"""The command line: count, time and compare, write ``results/rewriting.json.xz`` and ``README.md``.

Models that are not named, and parts that are left out, keep what the record has of them.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import read, write
from tvm_fusion.frontend import import_model

from . import counting, depth, latency
from .table import drawing, render

HERE = Path(__file__).parent
RECORD, README = HERE / "results" / "rewriting.json.xz", HERE / "README.md"
MODELS = (
    "bert_base",
    "gpt2",
    "t5_small_enc",
    "llama_4l",
    "vit_b16",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "convnext_tiny",
    "unet2d",
)
PARTS = ("counts", "latency", "depth")


def main(arguments: list[str] | None = None) -> int:
    """Measure and render; returns the exit code."""
    options = _parser().parse_args(arguments)
    record = read(options.json) if options.json.is_file() else _empty()
    if options.parts:
        record["environment"] = environment.describe(ROOT)
    for name in options.models:
        found = record["models"].setdefault(name, {})
        if "counts" in options.parts:
            _say(f"counts {name}")
            mod = import_model(zoo.load(name)).mod
            found["counts"] = {way: counting.figures(mod, way) for way in counting.WAYS}
            write(options.json, record)
        if "latency" in options.parts:
            _say(f"latency {name}")
            found["latency"] = latency.measure(name)
            write(options.json, record)
    if "depth" in options.parts:
        for layers in depth.LAYERS:
            _say(f"{layers} layers")
            record["depths"][str(layers)] = depth.growth(layers, options.rounds)
            write(options.json, record)
    order = {name: i for i, name in enumerate(MODELS)}
    known = sorted(record["models"].items(), key=lambda item: order[item[0]])
    record["models"] = {name: model for name, model in known if "counts" in model}
    options.readme.write_text(render(record))
    plot = drawing(record)
    if plot is not None:
        (options.json.parent / "depths.svg").write_text(plot)
    return 0


def _empty() -> dict[str, Any]:
    return {"environment": {}, "models": {}, "depths": {}}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewriting", description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=MODELS, metavar="NAME",
        help="default: all",
    )  # fmt: skip
    parser.add_argument(
        "--parts", nargs="*", default=list(PARTS), choices=PARTS, metavar="PART",
        help=f"of {', '.join(PARTS)}; default: all; none: only render",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, help="of depth (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RECORD, help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=README, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
