"""The command line: export candidates; compile with what was measured; keep the times.

python -m benchmarks.gpu_tuning export --out DIR --only bert_128_batch_1 --trials 40
python3 DIR/candidates/MODEL/measure.py                         where the GPU is
python -m benchmarks.gpu_tuning compile --out DIR               with the records.jsonl of each
python3 -m benchmarks.gpu_models.run DIR/default --records DIR/records --no-rival   there
python -m benchmarks.gpu_tuning table --out DIR gpu_models.json
"""

import argparse
import json
import sys
from pathlib import Path

from .table import found, keep

TARGET, SIDES = "cuda:sm_90a", ("default", "records")


def main(arguments: list[str] | None = None) -> int:
    """Run one of the steps; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("export", "compile", "table"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--target", default=TARGET)
        command.add_argument("--only", nargs="*", default=[], help="names of models")
        if name == "export":
            command.add_argument("--trials", type=int, default=40, help="candidates of a model")
        if name == "compile":
            command.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
        if name == "table":
            command.add_argument("result", type=Path, help="what benchmarks.gpu_models.run wrote")
            command.add_argument("--remark", default="", help="a paragraph of the page")
    options = parser.parse_args(arguments)
    if options.command == "table":
        whole = json.loads(options.result.read_text())
        about = {name: whole["about"][name] for name in ("device", "target", "torch")}
        about["remark"] = options.remark
        keep({"about": about, "models": found(whole, options.out)})
        return 0
    from . import steps

    if options.command == "export":
        steps.export(options.out, options.target, options.only, options.trials)
    else:
        steps.compile_models(options.out, options.target, options.only, options.sides)
    return 0


if __name__ == "__main__":
    sys.exit(main())
