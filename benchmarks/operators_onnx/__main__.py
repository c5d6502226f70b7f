"""The command line: sweep, write ``results/verdicts.json.xz``, regenerate ``README.md``.

Stock TVM's verdicts change with TVM and onnx only and are taken from the file that is there.
"""

import argparse
import re
import sys
from collections.abc import Iterable

from benchmarks.records import write
from tvm_fusion.errors import UserError

from . import excluded
from .cases import CONSTANTS, operators
from .pool import Verdict, judge_all
from .record import RECORD, load, make, verdicts_of
from .table import README, render


def main(arguments: list[str] | None = None) -> int:
    """Sweep and render; returns 1 where a case is wrong, crashes or hangs."""
    options = _parser().parse_args(arguments)
    known = operators()
    try:
        if options.only:
            return _try_some(known, options)
        if options.backend:
            shipped = [name for name in known if not name.endswith(CONSTANTS)]
            kept = {*shipped} - {*excluded.excluded()} if options.refused else set()
            found = _judge([name for name in shipped if name not in kept], "backend", options)
            return int(not excluded.write_record(found | dict.fromkeys(kept, ("right", ""))))
        if not options.table:
            kept = _kept(known) if options.refused else {}
            ours = kept | _judge([name for name in known if name not in kept], "ours", options)
            write(RECORD, make(known, ours, _stock(known, options)))
        record = load()
        README.write_text(render(record, known))
        failed = {*verdicts_of(record, "ours", known).values()} & {"wrong", "crash", "hang"}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def _kept(known: dict[str, str]) -> dict[str, Verdict]:
    """Return the verdicts of the cases that the record has as right."""
    found = verdicts_of(load(), "ours", known)
    return {name: (verdict, "") for name, verdict in found.items() if verdict == "right"}


def _stock(known: dict[str, str], options: argparse.Namespace) -> dict[str, Verdict]:
    if options.stock:
        return _judge(known, "stock", options)
    return {name: (v, "") for name, v in verdicts_of(load(), "stock", known).items()}


def _judge(known: Iterable[str], engine: str, options: argparse.Namespace) -> dict[str, Verdict]:
    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return judge_all(known, engine, options.workers, options.timeout, log)


def _try_some(known: dict[str, str], options: argparse.Namespace) -> int:
    """Print the verdicts of the cases that match; nothing is written."""
    names = [name for name in known if re.search(options.only, name)]
    engine = "stock" if options.stock else "backend" if options.backend else "ours"
    found = judge_all(names, engine, options.workers, options.timeout)
    for name, (verdict, reason) in found.items():
        print(f"{verdict:8}{name}  {reason}")
    return int(any(verdict in ("wrong", "crash", "hang") for verdict, _ in found.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators_onnx", description=__doc__
    )
    parser.add_argument("--stock", action="store_true", help="judge stock TVM anew, too")
    parser.add_argument("--table", action="store_true", help="only regenerate the page")
    parser.add_argument(
        "--refused", action="store_true", help="judge only the cases that were not right"
    )
    parser.add_argument("--only", metavar="REGEX", help="print the verdicts of some cases")
    parser.add_argument(
        "--backend",
        action="store_true",
        help="run the cases by the ONNX backend and write results/excluded.json.xz",
    )
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a case; %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
