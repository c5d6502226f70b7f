"""One model in a process of its own, which tells before and after each of its cells."""

import logging
import os
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from torch import Tensor
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import tvm_fusion
from benchmarks.broken_claims import broken_claims
from benchmarks.largest_error import error
from tvm_fusion.device import parse

from .catalog import build, exported

#: Largest error over the largest value of an output, by precision.
LIMITS = {"fp32": 1e-4, "fp16": 2e-2}
#: How much larger than that of eager PyTorch in float16 an error may be, where that is larger.
WITHIN = 2


@torch.no_grad()
def eager(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Run a model in PyTorch with weights and inputs of a dtype."""
    module, inputs = build(name)
    # Before float64 is asked for, for the dtype in which a module makes its own constants.
    results = module.to(dtype)(*(x.to(dtype) if x.is_floating_point() else x for x in inputs))
    return [x.detach() for x in results]


def reference(name: str) -> tuple[list[Tensor], str]:
    """Run a model in float64, or in float32 where that fails; returns results and dtype.

    A mask of float64's lowest number is minus infinity to a softmax that a model computes in
    float32, and whole rows of it are NaN.
    """
    try:
        exact = eager(name, torch.float64)
    except Exception:  # guard: a model that makes float32 constants mixes dtypes; float32 stands
        return eager(name, torch.float32), "float32"
    if all(bool(x.isfinite().all()) for x in exact):
        return exact, "float64"
    single = eager(name, torch.float32)
    return (single, "float32") if _finite(single) > _finite(exact) else (exact, "float64")


def _finite(results: Sequence[Tensor]) -> int:
    return sum(int(x.isfinite().sum()) for x in results)


def limit(name: str, precision: str, expected: Sequence[Tensor]) -> float:
    """Return the error that a precision allows a model."""
    if precision == "fp32":
        return LIMITS[precision]
    try:
        half = [x.float().numpy() for x in eager(name, torch.float16)]
    except Exception:  # guard: PyTorch lacks some operators in float16 on CPUs; the limit stands
        return LIMITS[precision]
    measured = error(half, expected)
    return max(LIMITS[precision], WITHIN * measured) if np.isfinite(measured) else LIMITS[precision]


def compiled(
    program: torch.export.ExportedProgram, inputs: tuple[torch.Tensor, ...]
) -> Callable[[], list[Any]]:
    """Compile for this machine; returns a function that calls it with the inputs."""
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=False)
    target = tvm.target.Target({"kind": "llvm", **dict(*parse("cpu").attrs), "num-cores": 1})
    with target:
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_default_pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.tensor(x.numpy()) for x in inputs]

    def call() -> list[Any]:
        results = machine["main"](*given)
        results = [results] if hasattr(results, "numpy") else list(results)
        return [x.numpy() for x in results]

    return call


_ROUNDS = 7


class Case:
    """One exported model and what has been made of it.

    Parameters
    ----------
    name
        One of :data:`benchmarks.robustness.catalog.NAMES`.
    """

    def __init__(self, name: str, folder: str):
        self.name, self.folder = name, folder
        self.expected, self.dtype = reference(name)
        self.program, self.inputs = exported(name)
        self._ours: Callable[[], list[Any]] | None = None

    def cell(self, target: str, precision: str) -> dict[str, Any]:
        """Compile for a target; where that is this machine, run and compare, too."""
        start = time.process_time()
        artifact = tvm_fusion.compile(self.program, target, precision=precision)
        if broken := broken_claims(artifact.manifest["decisions"]):
            raise RuntimeError(broken[0])
        path = artifact.export(f"{self.folder}/{precision} {target.partition(':')[0]}")
        functions = artifact.manifest["functions"].values()
        row: dict[str, Any] = {"seconds": round(time.process_time() - start, 1)}
        row["kernels"] = sum(f["kernels"] for f in functions if isinstance(f.get("kernels"), int))
        if target != "cpu":
            return {"outcome": "compiles", **row}
        call = self._loaded(path)
        if precision == "fp32":
            self._ours = call
        found, allowed = error(call(), self.expected), limit(self.name, precision, self.expected)
        row["error"] = float(f"{found:.2g}")
        if found <= allowed:
            return {"outcome": "right", **row}
        reason = f"an error of {found:.1e}, {allowed:.1e} allowed"
        return {"outcome": "wrong", **row, "reason": reason}

    def beside_stock(self) -> dict[str, Any]:
        """Compile with TVM's own importer and pipeline; compare results and times."""
        if self._ours is None:
            self.cell("cpu", "fp32")
        start = time.process_time()
        theirs = compiled(self.program, self.inputs)
        row: dict[str, Any] = {"seconds": round(time.process_time() - start, 1)}
        found = error(theirs(), self.expected)
        row["error"] = float(f"{found:.2g}")
        assert self._ours is not None
        times: dict[Any, list[float]] = {self._ours: [], theirs: []}
        for call in list(times) * _ROUNDS:
            start = time.perf_counter()
            call()
            times[call].append(time.perf_counter() - start)
        row["gain"] = round(min(times[theirs]) / min(times[self._ours]), 2)
        return {"outcome": "right" if found <= limit(self.name, "fp32", ()) else "wrong", **row}

    def _loaded(self, path: Any) -> Callable[[], list[Any]]:
        executable = tvm_fusion.load(path)
        signature = self.program.graph_signature
        given = dict(zip(signature.user_inputs, self.inputs, strict=True))
        kept = {**self.program.state_dict, **self.program.constants}
        # Artifacts call buffers as the module does.
        given |= {b: kept[b] for b in signature.inputs_to_buffers.values()}
        taken = {s.name: given[s.name].numpy() for s in executable.signatures["main"].inputs}
        return lambda: list(executable.run(taken).values())


def work(name: str, cells: Sequence[str], answers: Any) -> None:
    """Work through cells such as ``cpu:fp32``.

    Parameters
    ----------
    cells
        Targets with precisions, and ``stock``.
    answers : multiprocessing.connection.Connection
        Gets ``(cell, None)`` before a cell and ``(cell, row)`` after it.
    """
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in () if os.environ.get("TRACEBACK") else (1, 2):
        os.dup2(silence, stream)  # TVM and LLVM print much.
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            case = Case(name, folder)
        except Exception as failure:  # guard: torch's own failures are no finding; reported
            answers.send(("export", {"outcome": "no program", "reason": _first_line(failure)}))
            os._exit(0)
        answers.send(("export", {"outcome": "right", "reference": case.dtype}))
        for cell in cells:
            answers.send((cell, None))
            answers.send((cell, outcome(case, cell)))
    os._exit(0)  # what goes wrong while libraries are unloaded is not what is looked for


def outcome(case: Case, cell: str) -> dict[str, Any]:
    """Say what becomes of a cell; no failure ends the process."""
    target, _, precision = cell.rpartition(":")
    try:
        return case.beside_stock() if cell == "stock" else case.cell(target, precision)
    except tvm_fusion.UserError as refusal:
        return {"outcome": "refused", "reason": str(refusal)[:300]}
    except Exception as failure:  # guard: what is looked for
        if cell == "stock":
            return {"outcome": "failed", "reason": _first_line(failure)}
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        if os.environ.get("TRACEBACK"):
            traceback.print_exc()
        return {"outcome": "crash", "reason": f"{where}: {_first_line(failure)}"}


def _first_line(failure: BaseException) -> str:
    lines = [line.strip() for line in str(failure).strip().splitlines() if line.strip()]
    # The last line of TVM's errors says what was wrong; of others the first does.
    text = lines[-1 if "Traceback" in (lines or [""])[0] else 0] if lines else ""
    return re.sub(r"\s+", " ", f"{type(failure).__name__}: {text}")[:250]
