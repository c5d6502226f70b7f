"""One graph in a process of its own: exported, compiled for each target, run, compared, timed."""

import logging
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tvm_fusion
from benchmarks.broken_claims import broken_claims
from benchmarks.largest_error import error
from benchmarks.workers import Worker

from .draw import VARIABLE
from .reference import beyond, in_double, moved, tensors
from .sample import load

#: Largest error over an output's largest value that is right in any case.
LIMIT = 1e-4
#: How much larger than that of eager PyTorch in the graph's own dtypes an error may be; and how
#: much more of an output may jump than does where noise of a rounding's size is added.
WITHIN = 4
#: An output of which noise moves more than this part shows nothing.
UNSTABLE = 0.05
#: Deviations of weights are these parts of those recorded, where more makes results overflow, or
#: eager PyTorch's own error larger than ``TAME`` and than units of its results' last place: then
#: nothing is shown by the comparison.
SPREADS = (1.0, 0.2, 0.04)
TAME = 1e-3
_UNITS = 4
_SECONDS = 4.0  # of timed calls a graph
_ROUNDS = (3, 15)


class Case:
    """A graph with its program and its reference.

    Parameters
    ----------
    name
        Such as ``timm/resnet18``.
    """

    def __init__(self, name: str, folder: str):
        self.folder = folder
        path = Path(os.environ[VARIABLE]) / "samples" / name
        for spread in SPREADS:
            self.module, self.inputs = load(path, spread=spread)
            self.eager = tensors(self.module(*self.inputs))
            self.expected = self._reference()
            is_finite = all(bool(x.isfinite().all()) for x in self.expected)
            floats = [x for x in self.eager if x.is_floating_point()]
            tame = max([TAME, *(_UNITS * torch.finfo(x.dtype).eps for x in floats)])
            if is_finite and error(self._eager(), self.expected) < tame:
                break
        self.program = torch.export.export(self.module, self.inputs)

    def _reference(self) -> list[Tensor]:
        """Compute in float64; as the graph stands, where it cannot be."""
        try:
            return in_double(self.module, self.inputs)
        except Exception:  # guard: casts that only its own dtypes allow; errors of eager are then 0
            return self.eager

    def cpu(self) -> dict[str, Any]:
        """Compile for this machine, run without the compiler, compare; time against eager."""
        path, row = self._compiled("cpu", "fp32")
        given = f"{self.folder}/inputs.npz"
        names = self.program.graph_signature.user_inputs
        np.savez(given, **{n: _plain(x) for n, x in zip(names, self.inputs, strict=True)})
        arguments = ("-m", "benchmarks.graphnet.run", path, given)
        worker = Worker(*arguments, environment={"TVM_USE_RUNTIME_LIB": "1"})
        try:
            worker.send(f"{self.folder}/results.npz")
            if worker.line(300) != "saved":
                return {"outcome": "crash", **row, "reason": worker.ended()[:300]}
            with np.load(f"{self.folder}/results.npz") as file:
                got = list(file.values())[: len(self.expected)]
            row |= self.compared(got)
            return row | self._times(worker) if row["outcome"] == "right" else row
        finally:
            worker.close()

    def compared(self, got: list[np.ndarray]) -> dict[str, Any]:
        """Say how results compare with the reference, output by output."""
        theirs = [error([x], [y]) for x, y in zip(self._eager(), self.expected, strict=True)]
        row = {"outcome": "right", "error": float(f"{error(got, self.expected):.2g}"),
               "eager_error": float(f"{max(theirs, default=0.0):.2g}")}  # fmt: skip
        if len(got) < len(theirs):
            return row | {"outcome": "wrong", "reason": f"{len(got)} of {len(theirs)} outputs"}
        bounds = [max(LIMIT, WITHIN * x) for x in theirs]
        errors = [error([x], [y]) for x, y in zip(got, self.expected, strict=True)]
        off = [i for i, bound in enumerate(bounds) if not errors[i] <= bound]
        noise = moved(self.module, self.inputs, self.expected, bounds) if off else []
        for i in off:
            jumps = beyond(got[i], self.expected[i], bounds[i])
            row["jumps"] = max(float(f"{jumps:.2g}"), row.get("jumps", 0.0))
            if noise[i] > UNSTABLE or jumps > WITHIN * noise[i]:
                reason = f"an error of {errors[i]:.1e}, {bounds[i]:.1e} allowed, in output {i}: "
                reason += f"in {jumps:.1%} of it, where noise moves {noise[i]:.1%}"
                return row | {"outcome": "wrong", "reason": reason}
        return row

    def sm_90a(self) -> dict[str, Any]:
        """Compile for an H200 in float16; nothing runs."""
        return {"outcome": "compiles", **self._compiled("cuda:sm_90a", "fp16")[1]}

    def _compiled(self, target: str, precision: str) -> tuple[str, dict[str, Any]]:
        start = time.process_time()
        artifact = tvm_fusion.compile(self.program, target, precision=precision)
        if broken := broken_claims(artifact.manifest["decisions"]):
            raise RuntimeError(broken[0])
        path = artifact.export(f"{self.folder}/{precision}")
        functions = artifact.manifest["functions"].values()
        kernels = sum(f["kernels"] for f in functions if isinstance(f.get("kernels"), int))
        return str(path), {"seconds": round(time.process_time() - start, 1), "kernels": kernels}

    def _eager(self) -> list[np.ndarray]:
        return [_plain(x) for x in self.eager]

    def _times(self, worker: Worker) -> dict[str, float]:
        """Take the median seconds of calls in turns, one thread each."""
        ours, theirs = [], []
        end = time.perf_counter() + _SECONDS
        while len(ours) < _ROUNDS[0] or (time.perf_counter() < end and len(ours) < _ROUNDS[1]):
            worker.send("time")
            ours.append(float(worker.line(300) or "nan"))
            start = time.perf_counter()
            self.module(*self.inputs)
            theirs.append(time.perf_counter() - start)
        pairs = {"ours_s": ours[1:], "eager_s": theirs[1:]}  # the first calls warm caches
        return {name: float(f"{statistics.median(times):.4g}") for name, times in pairs.items()}


def _plain(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def work(name: str, cells: Sequence[str], answers: Any) -> None:
    """Work through cells, ``cpu`` and ``sm_90a``.

    Parameters
    ----------
    cells
        Names of methods of :class:`Case`.
    answers : multiprocessing.connection.Connection
        Gets ``(cell, None)`` before a cell and ``(cell, row)`` after it.
    """
    if not os.environ.get("TRACEBACK"):
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)  # TVM and LLVM print much.
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(20000)  # graphs of thousands of nodes
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            case = Case(name, folder)
        except Exception as failure:  # guard: torch's own failures are no finding; reported
            answers.send(("export", {"outcome": "no program", "reason": _line(failure)}))
            return
        answers.send(("export", {"outcome": "right"}))
        for cell in cells:
            answers.send((cell, None))
            answers.send((cell, outcome(case, cell)))


def outcome(case: Case, cell: str) -> dict[str, Any]:
    """Say what becomes of a cell; no failure ends the process."""
    try:
        return getattr(case, cell)()
    except tvm_fusion.UserError as refusal:
        return {"outcome": "refused", "reason": str(refusal)[:300]}
    except Exception as failure:  # guard: what is looked for
        if os.environ.get("TRACEBACK"):
            traceback.print_exc()
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return {"outcome": "crash", "reason": f"{where}: {_line(failure)}"}


def _line(failure: BaseException) -> str:
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}"[:250]
