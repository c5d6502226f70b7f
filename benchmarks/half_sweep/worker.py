"""One worker process: reads lines ``framework dtype name...``, writes a line of JSON for each."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import tvm_fusion

from .case import Case, Run, judge


def main() -> None:
    """Serve until the input ends: ``ready``, then answers, ``{"end": 0}`` the last of a task."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what TVM and LLVM print is no answer
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    print("ready", file=answers)
    for line in sys.stdin:
        framework, dtype, *names = line.split()
        judged = of_onnx(names, dtype) if framework == "onnx" else of_torch(names, dtype)
        for name, found in judged:
            print(json.dumps({"name": name, **found}), file=answers)
        print(json.dumps({"end": 0}), file=answers)


def of_onnx(names: list[str], dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judge cases of ONNX, a program each."""
    from . import onnx_cases

    for name in names:
        case = onnx_cases.case(name, dtype)
        yield name, {"outcome": "no case"} if case is None else judged_alone(case)


def of_torch(names: list[str], dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judge samples of PyTorch, all in one program; each for itself where that is refused."""
    import torch

    from . import torch_cases

    torch.set_num_threads(1)
    made = {name: torch_cases.case(name, dtype) for name in names}
    yield from ((name, {"outcome": "no case"}) for name, found in made.items() if found is None)
    cases = {name: found for name, found in made.items() if found is not None}
    runs: list[Run] = []
    try:
        runs = torch_cases.compiled([part for _, part in cases.values()])
    except Exception:  # guard: which of them it is, is found out below
        yield from ((name, judged_alone(case)) for name, (case, _) in cases.items())
    for (name, (case, _)), run in zip(cases.items(), runs, strict=False):
        yield name, _judged(case, run)


def judged_alone(case: Case) -> dict[str, Any]:
    """Compile and judge one case; a failure is its outcome."""
    try:
        run = case.compile()
    except tvm_fusion.UserError as error:
        return {"outcome": "refused", "reason": str(error)}
    except Exception as error:  # guard: a crash is an outcome, and is recorded
        if type(error).__name__ == "NoProgram":
            return {"outcome": "no case"}
        return {"outcome": "crash", "reason": _line(error)}
    return _judged(case, run)


def _judged(case: Case, run: Run) -> dict[str, Any]:
    try:
        return judge(case, run)
    except Exception as error:  # guard: a crash is an outcome, and is recorded
        return {"outcome": "crash", "reason": _line(error)}


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


if __name__ == "__main__":
    main()
