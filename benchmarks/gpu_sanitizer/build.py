"""Compile the cases, each with a configuration of its family, where there is no GPU."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.once import INDEX

from .cases import CASES, Case


def build(folder: Path, target: str, only: Sequence[str], processes: int) -> list[str]:
    """Compile cases into a folder; give what could not be compiled, and why."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        number
        for number, case in enumerate(CASES)
        if not only or any(part in case.work.name for part in only)
    ]
    processes = min(processes, os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_compile, *zip(*((folder, target, n) for n in chosen), strict=True)))
    path = folder / INDEX
    index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    index["target"] = target
    for number, (config, reason) in zip(chosen, found, strict=True):
        case = CASES[number]
        told = {"family": case.family, "config": config, "failed": reason}
        index["cases"][case.work.name] = told
    index["names"] = [name for name, told in index["cases"].items() if not told["failed"]]
    path.write_text(json.dumps(index, indent=1) + "\n")
    cases = index["cases"].items()
    return [f"{name}: {told['failed']}" for name, told in cases if told["failed"]]


def _compile(folder: Path, target: str, number: int) -> tuple[dict[str, Any] | None, str | None]:
    import tvm_fusion

    case = CASES[number]
    try:
        with TemporaryDirectory() as temporary:
            db = Path(temporary) / "tune.db"
            config = _ask(case, target, db) if case.asked else None
            artifact = tvm_fusion.compile(
                case.work.exported(),
                target=target,
                allow=case.work.allow,
                db=db if case.asked else None,
                cuda_graph=False,
            )
        artifact.export(folder / case.work.name)
    # guard: a case that is not compiled is a row of the page
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    return config, None


def _ask(case: Case, target: str, db: Path) -> dict[str, Any]:
    """Record the first configuration that the family has as that of the work's kernel."""
    from tvm_fusion.config import FusionConfig
    from tvm_fusion.device import parse
    from tvm_fusion.frontend import import_model
    from tvm_fusion.fusion.database.records import Records
    from tvm_fusion.fusion.database.tuning_records import TuningRecords
    from tvm_fusion.tuning.tasks import survey

    config = FusionConfig(db=None, profile=None, allow=case.work.allow)
    spec = parse(target).permitting(case.work.allow)
    for task in survey(import_model(case.work.exported(), config), spec, config).tasks:
        found = [c for c in task.configs if case.asked.items() <= c.items()]
        if found:
            with Records.open(db) as records:
                TuningRecords(records).put_best(task.key, task.title, found[0], 1.0, 2.0)
            return dict(found[0])
    raise ValueError(f"no configuration has {dict(case.asked)}")
