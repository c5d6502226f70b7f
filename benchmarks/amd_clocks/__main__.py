"""The command line: count groups of models, write the record, print the page."""

import argparse
import sys
from datetime import date
from typing import Any

from benchmarks import zoo

from . import UNMEASURED
from .record import load, store
from .table import page

ARCHS = ("gfx90a", "gfx942", "gfx1100")
MODELS = ("bert_base", "gpt2", "llama_4l", "mobilenet_v2", "resnet50", "vit_b16", "convnext_tiny")
METHOD = f"{UNMEASURED}: clocks of machine code, counted in an interpreter; benchmarks.amd_clocks"


def main() -> int:
    """Count what is asked for and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amd_clocks", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo")
    parser.add_argument("--arch", choices=ARCHS, help="one of them alone")
    parser.add_argument("--render", action="store_true", help="print the page, no more")
    parser.add_argument("--loops", action="store_true", help="inner loops, no models")
    parser.add_argument(
        "--launches",
        action="store_true",
        help="compare the launches of models with CUDA's; compile no kernels",
    )
    options = parser.parse_args()
    options.models = options.models or (zoo.names() if options.launches else MODELS)
    data = load()
    if not options.render:
        for arch in [options.arch] if options.arch else ARCHS:
            if options.loops:
                _loops(data, arch)
            elif options.launches:
                _launches(data, arch, options.models)
            else:
                _count(data, arch, options.models)
    print(page())
    return 0


def _count(data: dict[str, Any], arch: str, models: tuple[str, ...]) -> None:
    from .sample import samples

    one = data.setdefault(arch, {})
    one |= {
        "device": {"kind": "rocm", "arch": arch, "name": ""},
        "method": METHOD,
        "date": date.today().isoformat(),
    }
    known: set[Any] = set()
    for model in models:
        rows = [row for row in one.get("rows", []) if row["model"] != model]
        for row in samples(model, arch, known):
            print(arch, row, file=sys.stderr, flush=True)
            rows.append(row)
        one["rows"] = rows
        store(data)


def _launches(data: dict[str, Any], arch: str, models: tuple[str, ...]) -> None:
    from .launches import rows

    known = {row[0]: row for row in data[arch].get("launches", [])}
    for row in rows(arch, models):
        known[row[0]] = list(row)
        data[arch]["launches"] = [known[name] for name in sorted(known)]
        store(data)


def _loops(data: dict[str, Any], arch: str) -> None:
    from .loops import rows

    data[arch]["loops"] = list(rows(arch))
    store(data)


if __name__ == "__main__":
    sys.exit(main())
