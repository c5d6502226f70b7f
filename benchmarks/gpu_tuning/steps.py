"""Candidates of the models' kernels, and the models compiled without and with their records."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_models.build import INDEX, compile_model
from benchmarks.gpu_models.models import MODELS
from tvm_fusion.tuning.candidates import export_candidates
from tvm_fusion.tuning.exchange import import_lines

from .table import CANDIDATES, LINES


def export(out: Path, target: str, only: Sequence[str], trials: int) -> None:
    """Build candidates of each model into ``OUT/candidates/MODEL``."""
    for name in only or MODELS:
        exported, _ = MODELS[name].exported()
        folder, db = out / CANDIDATES / name, out / f"{name}.db"
        told = export_candidates(exported, target, folder, db=db, budget=f"trials={trials}")
        print(name, told, flush=True)


def compile_models(out: Path, target: str, only: Sequence[str], sides: Sequence[str]) -> None:
    """Compile each model into ``OUT/default``, and with what was measured into ``OUT/records``."""
    for name in only or sorted(path.name for path in (out / CANDIDATES).iterdir()):
        for side in sides:
            db = out / f"{name}.db" if side == "records" else None
            if db is not None:
                import_lines(db, out / CANDIDATES / name / LINES)
            told = compile_model(MODELS[name], out / side / name, target, db)
            note(out / side / INDEX, name, told, target)
            print(name, side, told, flush=True)


def note(path: Path, name: str, told: Mapping[str, Any], target: str) -> None:
    """Add a model to the index that :mod:`benchmarks.gpu_models.run` reads."""
    index = json.loads(path.read_text()) if path.exists() else {"models": {}, "failed": {}}
    index["models"][name] = told
    path.write_text(json.dumps({**index, "target": target}, indent=1) + "\n")
