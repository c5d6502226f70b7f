"""Compiling and running one case: by this package, and by TVM alone."""

import tempfile
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.broken_claims import broken_claims
from benchmarks.runtime_alone import RuntimeAlone

from .cases import Case
from .compare import array, difference


def ours(case: Case) -> tuple[str, str]:
    """Return the verdict ``right``, ``wrong``, ``refused`` or ``crash``, and its reason.

    What is compiled runs in a process without the compiler.

    A symbolic extent is given the range from 1 to twice what the first sample has there. A model
    that is refused is compiled again with inputs that carry shapes bound to the sample's values.
    """
    import tvm_fusion
    from tvm_fusion.frontend.onnx_model.constants import shape_inputs

    names: tuple[str, ...] = ()
    try:
        try:
            compiled = _compiled(case, names)
        except tvm_fusion.UserError:
            names = shape_inputs(case.model)
            if not names:
                raise
            compiled = _compiled(case, names)
        if broken := broken_claims(compiled.manifest["decisions"]):
            return "crash", broken[0]
        with tempfile.TemporaryDirectory() as folder:
            artifact = compiled.export(Path(folder) / "a")
            return _judge(case, lambda inputs: _call(artifact, case, names, inputs))
    except tvm_fusion.UserError as error:
        return "refused", str(error)
    except Exception as error:  # guard: a crash is what this benchmark looks for, and is recorded
        return "crash", f"{type(error).__name__}: {_last_line(error)}"


def backend(case: Case) -> tuple[str, str]:
    """Judge a case as ``onnx.backend.test.BackendTest`` does, with its tolerances."""
    from onnx.backend.test.runner import Runner

    import tvm_fusion
    from tvm_fusion.onnx_backend import Backend

    try:
        model = Backend.prepare(case.model)
        for inputs, expected in case.samples:
            found = model.run([array(value) for value in inputs])
            wanted = [array(value) for value in expected]
            Runner.assert_similar_outputs(wanted, found, case.rtol, case.atol)
    except tvm_fusion.UserError as error:
        return "refused", str(error)
    except AssertionError as error:
        return "wrong", _last_line(error)
    except Exception as error:  # guard: a crash is what this benchmark looks for, and is recorded
        return "crash", f"{type(error).__name__}: {_last_line(error)}"
    return "right", ""


def _compiled(case: Case, names: Collection[str]) -> Any:
    """Compile a case, inputs that carry shapes bound to the values of the first sample."""
    import tvm_fusion
    from tvm_fusion.frontend.onnx import dim_table
    from tvm_fusion.frontend.onnx_model.rewrite import without_optionals
    from tvm_fusion.frontend.onnx_model.sequences import with_elements

    feeds = _feeds(case, case.samples[0][0])
    dims: dict[str, Any] = {}
    for name, extents in dim_table(without_optionals(case.model)).shapes.items():
        value = feeds.get(name)
        if name in names or isinstance(value, (list, dict)):
            continue
        for label, extent in zip(extents, np.shape(value), strict=False):
            if isinstance(label, str) and label.isidentifier():
                dims[label] = tvm_fusion.DimRange(1, 2 * extent) if extent else extent
    constants = {name: feeds[name] for name in names}
    shapes = {n: [np.shape(e) for e in v] for n, v in feeds.items() if isinstance(v, list)}
    return tvm_fusion.compile(
        with_elements(case.model, shapes), "cpu", dims=dims, constants=constants
    )


def _feeds(case: Case, inputs: list[Any]) -> dict[str, Any]:
    stored = {tensor.name for tensor in case.model.graph.initializer}
    infos = [info for info in case.model.graph.input if info.name not in stored]
    return {info.name: array(value) for info, value in zip(infos, inputs, strict=True)}


_ALONE = RuntimeAlone()


def _call(
    artifact: Path, case: Case, names: Collection[str], inputs: list[Any]
) -> list[np.ndarray]:
    from tvm_fusion.frontend.onnx_model.sequences import elements_of

    feeds, first = _feeds(case, inputs), _feeds(case, case.samples[0][0])
    if any(not np.array_equal(feeds.pop(name), first[name]) for name in names):
        raise ValueError("samples with other shapes")
    return list(_ALONE.run(artifact, elements_of(feeds)).values())


def _flat(values: list[Any]) -> list[Any]:
    """List the elements of sequences in their places: an artifact returns tensors."""
    return [item for v in values for item in (v if isinstance(v, list) else [v])]


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
        text = difference(call(inputs), _flat(expected), case.rtol, case.atol)
        if text:
            return "wrong", text
    return "right", ""


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1][:200]
