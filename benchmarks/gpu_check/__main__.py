"""The command line: collect, compile, write the folder that travels; keep what came back."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tvm_fusion.errors import UserError

from .archive import compile_counter, prepare, write
from .batches import Batches
from .entry import Entry, LeftOut
from .sources import MODELS
from .table import keep

SCHEMA = 1
_PACKAGES = ("tvm_fusion", "apache-tvm", "apache-tvm-ffi", "numpy")
SOURCES = ("graphs", "zoo", "fuzz")


def main(arguments: list[str] | None = None) -> int:
    """Build or render; returns the exit code.

    It is 1 where something was left out for another reason than size.
    """
    options = _parser().parse_args(arguments)
    if options.command == "table":
        keep(options.result)
        return 0
    try:
        left_out = _build(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if any(one.stage != "limit" for one in left_out) else 0


def _build(options: argparse.Namespace) -> list[LeftOut]:
    folder: Path = options.out
    prepare(folder)
    start = time.perf_counter()

    def log(line: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {line}", file=sys.stderr, flush=True)

    batches, left_out = Batches(folder, options.target, log, options.assemble), []
    for one in _collect(options):
        if isinstance(one, LeftOut):
            left_out.append(one)
            log(f"{one.name}: {one.stage}: {one.reason}")
        else:
            batches.add(one)
    log("collected")
    batches.finish()
    left_out += batches.failed
    compile_counter(folder)
    entries = [
        {"library": library, "function": function, **entry.as_json()}
        for entry, (library, function) in sorted(batches.placed.items(), key=lambda item: item[1])
    ]
    about = {
        "schema": SCHEMA,
        "target": options.target,
        "seed": options.seed,
        "versions": {n: version(n) for n in _PACKAGES},
        "seconds": round(time.perf_counter() - start),
    }
    lost = [asdict(one) for one in left_out]
    write(folder, {"about": about, "entries": entries, "left_out": lost})
    size = sum(path.stat().st_size for path in folder.iterdir())
    log(_summary(entries, left_out, size))
    return left_out


def _collect(options: argparse.Namespace) -> Iterator[Entry | LeftOut]:
    from . import graphs, sources
    from .groups import Distinct

    target, seed = options.target, options.seed
    if "graphs" in options.sources:
        yield from graphs.collect(target, seed)
    distinct, made = Distinct(target), 0
    if "zoo" in options.sources:
        share = round(options.groups * sources.ZOO_SHARE)
        for one in sources.zoo_groups(tuple(options.models), share, distinct, target, seed):
            made += isinstance(one, Entry)
            yield one
    if "fuzz" in options.sources:
        yield from sources.fuzz_groups(options.groups - made, distinct, target, seed)


def _summary(entries: list[dict[str, Any]], left_out: list[LeftOut], size: int) -> str:
    kinds = Counter(entry["kind"] for entry in entries)
    groups = sum(entry["groups"] for entry in entries)
    counted = ", ".join(f"{number} of kind {kind}" for kind, number in kinds.items())
    stages = Counter(one.stage for one in left_out)
    lost = ", ".join(f"{number} at {stage}" for stage, number in stages.items()) or "nothing"
    return f"{counted}; {groups} distinct groups; left out: {lost}; {size / 2**20:.1f} MiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    table = commands.add_parser("table", help="keep a result and write README.md")
    table.add_argument("result", type=Path, help="what benchmarks.gpu_check.run wrote")
    build = commands.add_parser("build", help="collect and compile")
    build.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="new, or of an earlier build, which goes",
    )
    build.add_argument("--groups", type=int, default=200, help="distinct groups (default: 200)")
    build.add_argument("--seed", type=int, default=0, help="of inputs, weights and graphs")
    build.add_argument("--target", default="cuda:sm_90a", help="default: %(default)s")
    build.add_argument(
        "--assemble", metavar="ARCH", help="run code of an older target on this architecture"
    )
    build.add_argument("--models", nargs="+", default=list(MODELS), help="of the zoo")
    build.add_argument(
        "--sources", nargs="+", default=SOURCES, choices=SOURCES, help="default: all"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
