"""The command line: count, write ``results/counts.json.xz``, regenerate ``README.md``.

Stock TVM's counts of models change with TVM only and are taken from the file that is there.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import write
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

from . import counting
from .case import TARGETS
from .figures import CPU, MODELS
from .graphs import GRAPHS, SIZES
from .table import COUNTS, README, SCHEMA, load, render

_PACKAGES = ("tvm_fusion", "apache-tvm")


def main(arguments: list[str] | None = None) -> int:
    """Count and render; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.table:
            record = load(options.json)
        else:
            record = _count(options.json, options.models, options.stock)
            write(options.json, record)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.readme.write_text(render(record))
    return 0


def _count(path: Path, names: list[str], recount_stock: bool) -> dict[str, Any]:
    for name in names:
        if name not in MODELS:
            raise UserError(f"unknown model {name}", f"one of {', '.join(MODELS)}")
    found = environment.describe(ROOT)
    where = {key: found[key] for key in ("date", "commit", "dirty")}
    # Which kernels pay on the CPU depends on its vectors.
    where["vector_bits"] = parse(CPU).device.vector_bits
    where["features"] = list(parse(CPU).device.features)
    where["versions"] = {package: version(package) for package in _PACKAGES}
    old = load(path) if path.is_file() else {"models": {}, "environment": {"versions": {}}}
    same_tvm = old["environment"]["versions"].get("apache-tvm") == version("apache-tvm")
    models = {}
    for name in MODELS:
        known = old["models"].get(name)
        if known and name not in names:
            models[name] = known
        elif name in names:
            kept = known["stock"] if known and same_tvm and not recount_stock else None
            models[name] = {
                "stock": kept or _sides(counting.model_stock, name),
                "ours": _sides(counting.model_ours, name),
            }
    graphs = {
        name: {
            size: {
                "stock": _sides(counting.graph_stock, graph.case(size)),
                "ours": _sides(counting.graph_ours, graph.case(size)),
            }
            for size in SIZES
        }
        for name, graph in GRAPHS.items()
    }
    return {"schema": SCHEMA, "environment": where, "models": models, "graphs": graphs}


def _sides(counter: Callable[[Any, str], dict[str, Any]], what: Any) -> dict[str, Any]:
    return {target: _one(counter, what, target) for target in TARGETS}


def _one(counter: Callable[[Any, str], dict[str, Any]], what: Any, target: str) -> dict[str, Any]:
    print(f"{counter.__name__} {what} {target}", file=sys.stderr, flush=True)
    try:
        return counter(what, target)
    # guard: one model that fails must not cost the counts of the others; the table tells the reason
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"not_counted": f"{type(error).__name__}: {lines[-1]}"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), metavar="NAME", help="default: all"
    )
    parser.add_argument("--stock", action="store_true", help="count stock TVM's models again")
    parser.add_argument("--table", action="store_true", help="only regenerate the page")
    parser.add_argument("--json", type=Path, default=COUNTS, help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=README, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
