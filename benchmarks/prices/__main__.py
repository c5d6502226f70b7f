"""The command line: compile a folder of groups, take what was measured, print the page.

    python -m benchmarks.prices --models bert swin --target cuda:sm_90a --out DIR
    python3 -m benchmarks.prices.run DIR                     where the device is
    python -m benchmarks.prices --out DIR --take DIR/prices.json

After a change to the models of cost, ``--again`` prices what a folder has, ``--take`` as above.

CPUs, where they are: two parts, each within nine minutes of 16 cores.

    python -m benchmarks.prices --target cpu --out DIR --jobs 16 --seconds 500
    for n in 2 16; do
        python -m benchmarks.prices.run DIR --threads $n --seconds 250 --json DIR/prices_$n.json
    done

and what was measured of a number of threads, at prices for as many cores:

    python -m benchmarks.prices --out DIR --cores 2 --take DIR/prices_2.json
"""

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="*", help="names, zoo:NAME or graphnet:FOLDER")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--out", type=Path, help="folder of the groups")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="after which compiling ends"
    )
    parser.add_argument("--again", action="store_true", help="price the groups of --out again")
    parser.add_argument("--cores", type=int, help="of a CPU, for which prices are")
    parser.add_argument("--take", type=Path, metavar="FILE", help="what was measured of --out")
    parser.add_argument("--table", action="store_true", help="print the page, no more")
    options = parser.parse_args(arguments)
    if options.again or options.cores:
        from .build import price_again

        price_again(options.out, _log, options.cores)
    elif options.out and not options.take:
        from .build import build
        from .models import CPU, MODELS

        models = options.models or [*(CPU if options.target.startswith("cpu") else MODELS)]
        build(options.out, options.target, models, options.jobs, _log, options.seconds)
    if options.take:
        from .results import take

        take(options.out, options.take, options.cores)
    if options.take or options.table:
        from .table import page

        print(page())
    return 0


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
