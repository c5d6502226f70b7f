"""The command line: plan graphs, write ``results/literature.json.xz`` and ``README.md``.

Graphs that are not named keep what the record has of them. No device is needed; of Table 5 the
transformers take the extra ``zoo``.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tvm

from benchmarks.records import read, write
from tvm_fusion._tvm.ffi_speed import speed_up_ffi

from .counting import DTYPES, TARGETS, WAYS, figures
from .expressions import EXPRESSIONS
from .table import render
from .table5 import MODELS
from .taso import GRAPHS, graph

HERE = Path(__file__).parent
RECORD, PAGE = HERE / "results" / "literature.json.xz", HERE / "README.md"
#: What there is to plan: names, how a module is built for a precision, and the ways to rewrite it.
PARTS: dict[str, tuple[Iterable[str], Callable[[str, str], tvm.IRModule], Iterable[str]]] = {
    "taso": (GRAPHS, lambda name, precision: graph(name, DTYPES[precision]), WAYS),
    "table5": (MODELS, lambda name, precision: MODELS[name].build(precision), ["search"]),
    "expressions": (
        EXPRESSIONS,
        lambda name, precision: EXPRESSIONS[name].module(DTYPES[precision]),
        ["search", "reassociate"],
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Plan and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.literature", description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--names", nargs="*", metavar="NAME", help="default: all of the parts")
    options = parser.parse_args(arguments)
    speed_up_ffi()
    for part in options.parts:
        names, _, _ = PARTS[part]
        for name in names if options.names is None else [n for n in names if n in options.names]:
            found = planned(part, name)
            record = stored()
            record.setdefault(part, {})[name] = found
            write(RECORD, {key: dict(sorted(record[key].items())) for key in sorted(record)})
            print(part, name, file=sys.stderr, flush=True)
    PAGE.write_text(render(stored()))
    return 0


def planned(part: str, name: str) -> dict[str, Any]:
    """Plan a graph for all targets: figures by target and way."""
    _, build, ways = PARTS[part]
    found: dict[str, Any] = {}
    for target, precision in TARGETS.items():
        mod = build(name, precision)
        found[target] = {way: figures(mod, target, way) for way in ways}
    return found


def stored() -> dict[str, Any]:
    """Read the record: figures by part, name, target and way."""
    return read(RECORD) if RECORD.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
