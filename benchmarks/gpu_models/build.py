"""Compile the models ahead of time, where there is no GPU, into a folder without weights."""

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_fusion.deploy.runtime.artifact import manifest

from . import weights
from .models import MODELS, Model

INDEX = "models.json"


def build(folder: Path, target: str, only: Sequence[str] = ()) -> dict[str, str]:
    """Compile and export models into a folder, one after the other.

    Parameters
    ----------
    folder
        Gets one artifact each, and an index.
    target
        As of :func:`tvm_fusion.device.parse`.
    only
        Parts of names; empty: all.

    Returns
    -------
    dict of str to str
        What could not be compiled, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compiled, failed = {}, {}
    for name, model in MODELS.items():
        if only and not any(part in name for part in only):
            continue
        try:
            compiled[name] = compile_model(model, folder / name, target)
        # guard: one model that is not compiled is a line of the page
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
        print(name, compiled.get(name) or failed[name], flush=True)
        index = {"target": target, "models": compiled, "failed": failed}
        (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return failed


def compile_model(
    model: Model, folder: Path, target: str, db: Path | None = None
) -> dict[str, Any]:
    """Compile one model; returns what its compilation took and how many kernels there are.

    Parameters
    ----------
    target
        As of :func:`tvm_fusion.device.parse`.
    db
        Records of its kernels.
    """
    import tvm_fusion

    exported, module = model.exported()
    before = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    artifact = tvm_fusion.compile(exported, target=target, db=db)
    after = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    artifact.export(folder)
    weights.drop(folder, {n: p.numpy() for n, p in module.named_parameters()})
    counts = json.loads((folder / manifest.MANIFEST).read_text())["functions"]["main"]
    used = sum(
        a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime
        for a, b in zip(after, before, strict=True)
    )
    return {
        "compile_s": round(artifact.seconds, 1),
        "processor_s": round(used, 1),
        "kernels": counts["kernels"],
        "host_launches": counts["host_launches"],
    }
