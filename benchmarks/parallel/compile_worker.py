"""Compile a case for some workers in a process of its own; answers a line of JSON.

``python -m benchmarks.parallel.compile_worker CASE WORKERS TARGET FOLDER``
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import tvm_fusion
from benchmarks.llm.models import drawn_on, pack_linear

from .cases import Case


def device_of(target: str) -> str:
    """Name PyTorch's device that draws weights."""
    return "cpu" if target.startswith("cpu") else "cuda"


def drawn(case: Case, device: str) -> Any:
    """Draw a case's model, the same one in every process; in float32 for a CPU."""
    model = drawn_on(device, case.model, case.layers, case.vocabulary, case.length)
    if case.has_int4:
        pack_linear(model)
    return model.float() if device == "cpu" else model


def compiled(case: Case, size: int, target: str, folder: Path) -> dict[str, Any]:
    """Compile and export; returns seconds, kernels and launches, and what is split."""
    start = time.perf_counter()
    torch.set_grad_enabled(False)
    model = drawn(case, device_of(target))
    programs = tvm_fusion.models.causal_lm(model, case.length, chunk=max(3, case.prompt))
    exported = time.perf_counter()
    names = ("prefill", "decode") if case.prompt else ("decode",)
    artifact = tvm_fusion.compile(
        {name: programs[name] for name in names},
        target,
        in_place=programs.caches,
        dims={"tokens": case.prompt} if case.prompt else {},
        **({"workers": size, "shards": {"*": "split"}} if size > 1 else {}),
    )
    done = time.perf_counter()
    artifact.export(folder)
    functions = artifact.manifest["functions"]
    return {
        "draw_s": exported - start,
        "compile_s": done - exported,
        "write_s": time.perf_counter() - done,
        "kernels": {name: functions[name]["kernels"] for name in names},
        "launches": {name: functions[name]["host_launches"] for name in names},
    }


def main(case: str, size: str, target: str, folder: str) -> None:
    """Answer one line."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        row = compiled(Case.of_json(case), int(size), target, Path(folder))
    except Exception as error:  # guard: who asks goes on with the other cases
        row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    print(json.dumps(row), file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
