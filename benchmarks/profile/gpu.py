"""What the profile database decides for models on a GPU that is elsewhere.

python -m benchmarks.profile.gpu export --out DIR --only bert_128_batch_1
python3 DIR/MODEL.NUMBER/measure.py                      where the GPU is
python -m benchmarks.profile.gpu compile --out DIR ...   with the records.jsonl of each
python3 -m benchmarks.gpu_models.run DIR/default --records DIR/records --json DIR/whole.json ...
python -m benchmarks.profile.gpu table --out DIR ...

Answers may change a plan, which then asks further questions: export again until there are none.
The third step, where the GPU is, times both ways in turns; it may be left out, as where compiling
shows that the answers changed no kernel.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_models.build import INDEX, compile_model
from benchmarks.gpu_models.models import MODELS
from benchmarks.gpu_tuning.steps import note
from benchmarks.records import read, write
from tvm_fusion.config import FusionConfig
from tvm_fusion.report.planned import plan_model
from tvm_fusion.tuning.candidates import export_candidates
from tvm_fusion.tuning.exchange import import_lines

from .decisions import answers, kernels
from .table import render

HERE = Path(__file__).parent
TARGET = "cuda:sm_90a"
DEVICE = "NVIDIA H200"
LINES, WHOLE = "records.jsonl", "whole.json"
SIDES = ("default", "records")
MOST = "trials=60"  # questions of a model at a time


def main() -> int:
    """Run one of the steps; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=("export", "compile", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=sorted(MODELS), required=True)
    parser.add_argument("--device", default=DEVICE, help="what measured, for the page")
    options = parser.parse_args()
    path = HERE / "results" / "profile.json.xz"
    record = read(path)
    for name in options.only:
        db = options.out / f"{name}.db"
        for lines in sorted(options.out.glob(f"{name}.*/{LINES}")):
            import_lines(db, lines)
        if options.step == "compile":
            for side, known in zip(SIDES, (None, db), strict=True):
                told = compile_model(MODELS[name], options.out / side / name, TARGET, known)
                note(options.out / side / INDEX, name, told, TARGET)
                print(name, side, told, flush=True)
            continue
        exported, _ = MODELS[name].exported()
        if options.step == "export":
            number = len(list(options.out.glob(f"{name}.*/")))
            config, folder = FusionConfig(profile=MOST), options.out / f"{name}.{number}"
            print(export_candidates(exported, TARGET, folder, config, db=db, budget="trials=1"))
        else:
            record.setdefault("gpu", {"target": TARGET, "models": {}})
            whole = {"device": options.device, **whole_model(options.out, name)}
            record["gpu"]["models"][name] = decided(exported, db) | whole
            write(path, record)
            (HERE / "README.md").write_text(render(record))
    return 0


def decided(model: Any, db: Path) -> dict[str, Any]:
    """Plan a model without and with its answers."""
    plain = kernels(plan_model(model, TARGET))
    with answers() as found:
        plan = plan_model(model, TARGET, FusionConfig(db=db))
        profiled = kernels(plan)
    changed = [answer for answer in found if answer.is_changed]
    return {
        **plan.profile,
        "layouts": sum(answer.is_layout for answer in found),
        "kernels": plain,
        "kernels_profiled": profiled,
        "changed": len(changed),
        "changes": [answer.row() for answer in changed],
    }


def whole_model(out: Path, name: str) -> dict[str, Any]:
    """Tell what the answers changed of a model that was compiled without and with them."""
    libraries = [out / side / name / "model.so" for side in SIDES]
    if not all(library.exists() for library in libraries):
        return {}
    first, second = (library.read_bytes() for library in libraries)
    found: dict[str, Any] = {"same_code": first == second}
    rows = json.loads((out / WHOLE).read_text())["rows"] if (out / WHOLE).exists() else []
    for row in rows:
        if row["name"] == name:
            found["us"] = [round(row["us"][side], 1) for side in ("ours", "records")]
    return found


if __name__ == "__main__":
    sys.exit(main())
