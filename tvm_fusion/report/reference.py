"""Results of an independent implementation, and the error against them."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..frontend.program_file import is_program_file, load_program
from ..measure.errors import errors


def reference(
    path: str | os.PathLike[str],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
) -> tuple[str, dict[str, np.ndarray]]:
    """Run a model file by an independent implementation.

    Returns
    -------
    name : str
        PyTorch for an exported program; for an ONNX model see :func:`onnx_reference`.
    outputs : dict of str to numpy.ndarray
        By name.

    Raises
    ------
    UserError
        If the model cannot be read or does not take the inputs.
    """
    if is_program_file(path):
        program = load_program(path)  # which tells whether PyTorch is installed
        from .torch_reference import run_program

        return "PyTorch", run_program(program, inputs, os.fspath(path))
    return onnx_reference(path, inputs, constants)


def onnx_reference(
    path: str | os.PathLike[str],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
) -> tuple[str, dict[str, np.ndarray]]:
    """Run an ONNX model by an independent implementation.

    Parameters
    ----------
    inputs
        By name; floats of another width than the model's are converted.
    constants
        Values of the inputs that were bound when the model was compiled.

    Returns
    -------
    name : str
        ONNX Runtime where it is installed, otherwise the onnx package's own evaluator (slow).
    outputs : dict of str to numpy.ndarray
        By name.

    Raises
    ------
    UserError
        If the model cannot be read or does not take the inputs.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        is_there = os.path.exists(path)
        found = f"{path!r} is not a regular file" if is_there else f"there is no file {path!r}"
        raise UserError(found, "the ONNX model that was compiled", "name the .onnx file")
    try:
        inputs = _as_the_model_takes_them(path, inputs, constants or {})
        if importlib.util.find_spec("onnxruntime"):
            return "ONNX Runtime", _onnxruntime(path, inputs)
        return "onnx.reference", _evaluator(path, inputs)
    # guard: either implementation raises types of its own; the sentence says which and why
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"the reference cannot run {path!r} ({reason})",
            "the model that the artifact was compiled from, and inputs that it takes",
        ) from error


def compare(
    outputs: Mapping[str, Any], expected: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Compute errors per output, in float64.

    Returns
    -------
    dict of str to dict
        As :func:`tvm_fusion.measure.errors.errors` returns.

    Raises
    ------
    UserError
        If a name or shape differs.
    """
    from ..deploy.runtime.tensors import to_numpy

    result = {}
    for name, value in outputs.items():
        actual = value if isinstance(value, np.ndarray) else to_numpy(value)
        if name not in expected or expected[name].shape != actual.shape:
            there = expected[name].shape if name in expected else "nothing"
            raise UserError(
                f"output {name!r} has shape {actual.shape} and the reference has {there}",
                "the model that the artifact was compiled from",
            )
        result[name] = errors(actual, expected[name])
    return result


def _as_the_model_takes_them(
    path: str, inputs: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Convert floats to the model's dtypes: an artifact's inputs may be of half precision."""
    import onnx

    from ..frontend.onnx_model.constants import as_input

    model = onnx.load(path, load_external_data=False)
    infos = {info.name: info for info in model.graph.input}
    bound = {name: as_input(infos[name], value) for name, value in constants.items()}
    dtypes = {
        info.name: onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        for info in model.graph.input
    }
    return {
        name: array.astype(dtypes[name]) if _is_float(array) and name in dtypes else array
        for name, array in inputs.items()
    } | bound


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _onnxruntime(path: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _evaluator(path: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(path)
    values = evaluator.run(None, dict(inputs))
    return dict(zip(evaluator.output_names, values, strict=True))
