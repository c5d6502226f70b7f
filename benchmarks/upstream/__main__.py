"""The command line: run test suites of a TVM checkout with stock pipelines and with ours.

``python -m benchmarks.upstream CHECKOUT SUITE...`` runs ``tests/python/relax/SUITE.py`` of a source
tree whose version fits the installed TVM; suites that fail to import with it are left out by
pytest. ``--modules`` builds the modules that the tests import or compare by both instead.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.records import write
from benchmarks.workers import ROOT
from tvm_fusion.errors import UserError

from .plugin import MODE, VERDICTS
from .table import RECORD, merged, render

_RELAX = Path("tests/python/relax")
_THREADS = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}


def main(arguments: list[str] | None = None) -> int:
    """Run the suites; returns 1 where stock passes a test that fails with ours."""
    options = _parser().parse_args(arguments)
    try:
        folder = Path(options.checkout) / _RELAX
        missing = [name for name in options.suites if not (folder / f"{name}.py").is_file()]
        if missing:
            raise UserError(f"no suite {missing[0]} in {folder}", "a source tree of TVM")
        if options.modules:
            ours = _run(options, "modules", [f"{_RELAX}/{name}.py" for name in options.suites])
            stock: dict[str, dict[str, str]] = {}
        else:
            ours = _run(options, "ours", [f"{_RELAX}/{name}.py" for name in options.suites])
            failed = [name for name, found in ours.items() if found["verdict"] == "failed"]
            stock = _run(options, "stock", [f"{_RELAX}/{name}" for name in failed])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    record = merged(ours, stock)
    write(RECORD, record)
    (ROOT / "benchmarks/upstream/README.md").write_text(render(record))
    return int(bool(record["failed"]))


def _run(options: argparse.Namespace, mode: str, tests: list[str]) -> dict[str, dict[str, str]]:
    """Run tests in one mode; one that ends the process is a crash, and the rest goes on."""
    found: dict[str, dict[str, str]] = {}
    while tests:
        with tempfile.TemporaryDirectory() as folder:
            verdicts, names = Path(folder, "verdicts"), Path(folder, "tests")
            names.write_text("\n".join(tests))
            crashed = [f"--deselect={_RELAX}/{n}" for n in found if found[n]["verdict"] == "crash"]
            known = {"PYTHONPATH": str(ROOT), MODE: mode, VERDICTS: str(verdicts), **_THREADS}
            pytest = [sys.executable, "-m", "pytest", "-q", "-o", "addopts="]
            plugins = ["-p", "benchmarks.upstream.plugin", "-p", "no:cacheprovider"]
            subprocess.run(
                [*pytest, *plugins, "--continue-on-collection-errors", *crashed, f"@{names}"],
                env={**os.environ, **known},
                cwd=options.checkout,
                stdout=sys.stderr,
                check=False,
            )
            lines = [json.loads(x) for x in verdicts.read_text().splitlines()]
        for line in lines:
            if "verdict" in line:
                found[line.get("module") or line["test"]] = line
        began = [line["started"] for line in lines if "started" in line]
        if not began or any(line.get("test") == began[-1] for line in lines):
            return found
        found[began[-1]] = {"verdict": "crash", "reason": "the process ended"}
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__)
    parser.add_argument("checkout", help="folder of TVM's sources")
    parser.add_argument("suites", nargs="+", help="such as test_frontend_onnx")
    parser.add_argument("--modules", action="store_true", help="compare modules, not verdicts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
