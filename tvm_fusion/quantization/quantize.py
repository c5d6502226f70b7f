"""Quantize a float model statically: ranges of activations are those of samples."""

import contextlib
import importlib.util
import itertools
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import UserError, unknown_name, whole_number
from ..frontend.onnx_model import file as onnx_file
from ..frontend.onnx_model.order import in_order
from ..frontend.program_file import is_program_file
from ..frontend.quiet import quiet_importer
from .layer_errors import layer_errors
from .samples import inputs_of, read_samples


def reader(samples: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Hand samples to the quantizer one by one."""
    from onnxruntime.quantization import CalibrationDataReader

    waiting: Iterator[Mapping[str, np.ndarray]] = iter(samples)

    class Reader(CalibrationDataReader):
        def get_next(self) -> Any:
            sample = next(waiting, None)
            return None if sample is None else dict(sample)

    return Reader()


METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
ACTIVATIONS = {"uint8": "QUInt8", "int8": "QInt8"}
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# What keeps bytes bytes between layers. All else computes in float: to round what a softmax, a norm
# or a bias takes costs digits and saves nothing, and masked scores have no scale.
_BETWEEN = (
    *("AveragePool", "Clip", "GlobalAveragePool", "MaxPool", "Relu"),
    *("Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze"),
)
_JOINS = ("Add", "Concat")  # such as a residual: where a convolution's result is joined
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger")
_OPSET = 13  # the first whose QuantizeLinear has an axis
_COMPARED = 4  # samples of the report


@dataclass(frozen=True)
class Quantized:
    """A quantized model on disk."""

    output: Path  # the file
    samples: int  # how many samples gave the ranges
    layers: list[Any]  # the largest error first
    outputs: dict[str, float]  # errors of the results, as those of layers
    # Of the files, with their weights.
    bytes_before: int
    bytes_after: int

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "output": str(self.output)}


def quantize(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    samples: int = 128,
    method: str = "minmax",
    activations: str = "uint8",
    exclude: Sequence[str] = (),
) -> Quantized:
    """Quantize an ONNX model to 8 bits.

    Weights become int8 by channel, activations uint8 with one scale each, in pairs of
    ``QuantizeLinear`` and ``DequantizeLinear``: what kernels of AVX-VNNI and AMX multiply. Norms,
    softmax, biases and most activations stay in float: kernels compute them with the products.

    Parameters
    ----------
    model
        A float ONNX file.
    data
        See :func:`tvm_fusion.quantization.samples.read_samples`.
    output
        The file to write.
    samples
        Calls of the model that give the ranges, at most.
    method : {"minmax", "entropy", "percentile"}
        How a range follows from what samples have.
    activations : {"uint8", "int8"}
        int8 is symmetric.
    exclude
        Names of nodes that stay in float.

    Returns
    -------
    Quantized

    Raises
    ------
    UserError
        For a model that is quantized already or has nothing to quantize, for data that does not fit
        it, and where ONNX Runtime is not installed.
    """
    for name, value, known in (("method", method, METHODS), ("type", activations, ACTIVATIONS)):
        if value not in known:
            raise unknown_name(name, value, known)
    samples = whole_number("samples", samples, 1)
    source, place = Path(model), Path(output)
    proto = _float_model(source, exclude)
    _check_place(source, place)
    if importlib.util.find_spec("onnxruntime") is None:
        raise UserError("quantize needs ONNX Runtime", None, "pip install 'tvm_fusion[onnx]'")
    given = read_samples(data, inputs_of(proto), samples)
    with tempfile.TemporaryDirectory(prefix="tvm_fusion-") as folder, _quiet():
        plain, made = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        try:
            _write(proto, plain, made, given, method, activations, exclude)
            onnx.save(in_order(onnx.load(made)), made)
            layers, outputs = layer_errors(plain, made, given[:_COMPARED])
        except Exception as error:  # guard: ONNX Runtime raises types of its own
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"ONNX Runtime cannot quantize {source} ({lines[-1]})") from error
        before, after = (path.stat().st_size for path in (plain, made))
        try:
            staging = place.with_name(f".{place.name}.part")
            staging.write_bytes(made.read_bytes())
            staging.replace(place)
        except OSError as error:
            raise UserError(f"cannot write {str(place)!r} ({error.strerror})") from error
    return Quantized(place, len(given), layers, outputs, before, after)


def _float_model(path: Path, exclude: Sequence[str]) -> onnx.ModelProto:
    """Read a model, and refuse what cannot be quantized."""
    if is_program_file(path):
        raise UserError(
            f"{path} is a PyTorch program", "an ONNX file", "export it with torch.onnx.export"
        )
    model = onnx_file.load(path)
    kinds = {node.op_type for node in model.graph.node}
    done = sorted(k for k in kinds if k in _QUANTIZED or k.startswith("QLinear"))
    if done:
        raise UserError(
            f"{path} is quantized already (it has {done[0]})",
            "a float model",
            "compile it as it is",
        )
    if not kinds & set(_LAYERS):
        if inner := sorted({n.op_type for n in _nested(model.graph)} & set(_LAYERS)):
            raise UserError(
                f"{path} has its {' and '.join(inner)} in branches and loops alone",
                "layers in the main graph: ONNX Runtime's quantizer takes no others",
                "export the model for one case of its condition, or compile it in float",
            )
        raise UserError(f"{path} has nothing to quantize", f"one of {', '.join(_LAYERS)}")
    names = [node.name for node in model.graph.node]
    for name in exclude:
        if name not in names:
            raise unknown_name("node", name, [n for n in names if n])
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset >= _OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OPSET)
    except Exception as error:  # guard: the converter raises types of its own
        raise UserError(f"{path} is of opset {opset}", f"at least {_OPSET}") from error


def _nested(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of branches and of bodies of loops."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, attribute.g):
                yield from inner.node
                yield from _nested(inner)


def _check_place(source: Path, place: Path) -> None:
    if place.is_dir() or place.suffix != ".onnx":
        raise UserError(f"the output {str(place)!r}", "the name of an .onnx file")
    if place.exists() and place.samefile(source):
        raise UserError(f"the output {str(place)!r} is the model itself", "another file")
    if not place.resolve().parent.is_dir():
        raise UserError(f"there is no folder {str(place.resolve().parent)!r}", "one that is there")


def _write(
    model: onnx.ModelProto,
    plain: Path,
    made: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    method: str,
    activations: str,
    exclude: Sequence[str],
) -> None:
    """Fold what ONNX Runtime folds, and quantize that."""
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    _name_nodes(model)
    # As a file: of a model in memory ONNX Runtime hides what shapes depend on, such as axes.
    onnx.save(model, plain)
    _fold(plain)
    _separate_biases(plain)
    quant_pre_process(plain, plain, skip_optimization=True, skip_symbolic_shape=True)
    quantize_static(
        plain,
        made,
        reader(samples),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=[*_LAYERS, *_BETWEEN, *_JOINS],
        per_channel=True,
        activation_type=getattr(QuantType, ACTIVATIONS[activations]),
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*exclude, *_float_joins(onnx.load(plain))],
        calibrate_method=getattr(CalibrationMethod, METHODS[method]),
        extra_options={
            "ActivationSymmetric": activations == "int8",
            # Whatever reads a layer's result in bytes rounds it, behind bias and activation.
            "OpTypesToExcludeOutputQuantization": list(_LAYERS),
        },
    )


def _name_nodes(model: onnx.ModelProto) -> None:
    """Name nodes without a name, by which nodes are excluded."""
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            node.name = next(
                name
                for extra in itertools.count(number)
                if (name := f"{node.op_type}_{extra}") not in taken
            )
            taken.add(node.name)


def _fold(path: Path) -> None:
    """Fold constants and batch norms of a file.

    As the quantizer's own preprocessing, but for products with a bias: ONNX Runtime 1.32 makes
    ``Gemm`` between reshapes of them, whose constants it names again when it loads the quantized
    file, which it refuses then ("Attempt to replace the existing tensor").
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    given = options, ["CPUExecutionProvider"]
    ort.InferenceSession(path.read_bytes(), *given, disabled_optimizers=["MatMulAddFusion"])


def _separate_biases(path: Path) -> None:
    """Give layers of one bias copies of it.

    The quantizer does so as well, by a number behind the name: ``conv1d_25`` becomes ``conv1d_252``
    even where another tensor has that name, and ONNX Runtime refuses the file then.
    """
    model = onnx.load(path)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)} | set(
        stored
    )
    seen: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in _LAYERS or len(node.input) < 3 or node.input[2] not in stored:
            continue
        bias = node.input[2]
        if bias in seen:
            copied = model.graph.initializer.add()
            copied.CopyFrom(stored[bias])
            numbered = (f"{bias}_copy_{number}" for number in itertools.count())
            copied.name = node.input[2] = next(name for name in numbered if name not in taken)
            taken.add(copied.name)
        seen.add(bias)
    onnx.save(model, path)


def _float_joins(model: onnx.ModelProto) -> list[str]:
    """Name the joins none of whose operands is a convolution's, behind activations and pools."""
    producers = {name: node for node in model.graph.node for name in node.output}

    def is_convolved(name: str) -> bool:
        node = producers.get(name)
        if node is None:
            return False
        return node.op_type in ("Conv", "ConvTranspose") or (
            node.op_type in _BETWEEN and is_convolved(node.input[0])
        )

    joins = (node for node in model.graph.node if node.op_type in _JOINS)
    return [node.name for node in joins if not any(map(is_convolved, node.input))]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantizer's prints and its advice to preprocess."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet_importer():
            yield
    finally:
        logging.disable(level)
