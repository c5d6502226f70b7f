"""The command line: plan graphs, write ``results/literature.json.xz`` and ``README.md``.

Graphs that are not named keep what the record has of them. No device is needed; of Table 5 the
transformers, and all unseen models, take the extra ``zoo``. ``--measure TARGET`` compiles and times
instead, on the device of this machine; ``--record FILE`` writes elsewhere than into the record, and
``--keep FILE`` takes what was measured elsewhere into it.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tvm

from benchmarks.records import read, write
from tvm_fusion._tvm.ffi_speed import speed_up_ffi

from . import unseen
from .counting import DTYPES, TARGETS, WAYS, figures
from .expressions import EXPRESSIONS
from .measure import measured, works
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
    "unseen": (unseen.names(), unseen.module, ["none", "search"]),
}


def main(arguments: list[str] | None = None) -> int:
    """Plan and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.literature", description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--names", nargs="*", metavar="NAME", help="default: all of the parts")
    parser.add_argument("--measure", metavar="TARGET", help="compile and time, instead of planning")
    parser.add_argument("--processes", type=int, default=2, help="that compile (default: 2)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of compiling, at most")
    parser.add_argument("--record", type=Path, default=RECORD, help="a JSON file to write into")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="a JSON file of --record")
    options = parser.parse_args(arguments)
    speed_up_ffi()
    wrong = 0
    if options.keep is not None:
        for target, rows in read(options.keep)["measured"].items():
            for name, row in rows.items():
                _keep(RECORD, ("measured", target), name, row)
    elif options.measure is not None:
        wrong = _measure(options)
        if options.record != RECORD:
            return wrong
    else:
        _plan(options)
    PAGE.write_text(render(stored()))
    return wrong


def _measure(options: argparse.Namespace) -> int:
    names = [name for name in works() if options.names is None or name in options.names]
    how = options.measure, options.processes, options.seconds
    wrong = 0
    for name, row in measured(names, *how):
        _keep(options.record, ("measured", options.measure), name, row)
        print(name, row, file=sys.stderr, flush=True)
        wrong |= "wrong" in row
    return wrong


def _plan(options: argparse.Namespace) -> None:
    for part in options.parts:
        names, _, _ = PARTS[part]
        for name in names if options.names is None else [n for n in names if n in options.names]:
            _keep(RECORD, (part,), name, planned(part, name))
            print(part, name, file=sys.stderr, flush=True)


def _keep(path: Path, place: Sequence[str], name: str, found: Any) -> None:
    """Write what was found of a name into a record."""
    record = read(path) if path.exists() else {}
    rows = record
    for key in place:
        rows = rows.setdefault(key, {})
    rows[name] = found
    write(path, {key: dict(sorted(record[key].items())) for key in sorted(record)})


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
