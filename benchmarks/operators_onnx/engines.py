"""Compiling and running one case: by this package, and by TVM alone."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.broken_claims import broken_claims

from .cases import Case
from .compare import array, difference


def ours(case: Case) -> tuple[str, str]:
    """Return the verdict ``right``, ``wrong``, ``refused`` or ``crash``, and its reason.

    A symbolic extent is given the range from 1 to twice what the first sample has there.
    """
    import tvm_fusion
    from tvm_fusion.frontend.onnx import dim_table
    from tvm_fusion.frontend.onnx_rewrite import without_optionals

    stored = {tensor.name for tensor in case.model.graph.initializer}
    infos = [info for info in case.model.graph.input if info.name not in stored]
    try:
        dims: dict[str, Any] = {}
        table = dim_table(without_optionals(case.model))
        for info, value in zip(infos, case.samples[0][0], strict=True):
            shape = np.shape(array(value)) if not isinstance(value, (list, dict)) else ()
            for name, extent in zip(table.shapes.get(info.name, ()), shape, strict=False):
                if isinstance(name, str) and name.isidentifier():
                    dims[name] = tvm_fusion.DimRange(1, 2 * extent) if extent else extent
        compiled = tvm_fusion.compile(case.model, "cpu", dims=dims)
        if broken := broken_claims(compiled.manifest["decisions"]):
            return "crash", broken[0]
        with tempfile.TemporaryDirectory() as folder:
            program = tvm_fusion.load(compiled.export(Path(folder) / "a"))
            return _judge(case, lambda inputs: _call(program, infos, inputs))
    except tvm_fusion.UserError as error:
        return "refused", str(error)
    except Exception as error:  # guard: a crash is what this benchmark looks for, and is recorded
        return "crash", f"{type(error).__name__}: {_last_line(error)}"


def _call(program: Any, infos: list[Any], inputs: list[Any]) -> list[np.ndarray]:
    feeds = {info.name: array(value) for info, value in zip(infos, inputs, strict=True)}
    return list(program.run(feeds).values())


def stock(case: Case) -> tuple[str, str]:
    """Return what TVM alone makes of a case: ``right``, ``wrong`` or ``crash``."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            mod = relax.transform.DecomposeOpsForInference()(from_onnx(model))
            vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())

            def call(inputs: list[Any]) -> list[np.ndarray]:
                arrays = [tvm.runtime.tensor(np.ascontiguousarray(array(x))) for x in inputs]
                result = vm["main"](*arrays)
                results = [result] if hasattr(result, "numpy") else list(result)
                return [each.numpy() for each in results]

            return _judge(case, call)
    except Exception as error:  # guard: stock's failures are one verdict with a reason
        return "crash", f"{type(error).__name__}: {_last_line(error)}"


def _judge(case: Case, call: Any) -> tuple[str, str]:
    for inputs, expected in case.samples:
        text = difference(call(inputs), expected, case.rtol, case.atol)
        if text:
            return "wrong", text
    return "right", ""


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1][:200]
