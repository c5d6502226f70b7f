"""ONNX's backend cases of one operator, their floating point tensors of a half type."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from benchmarks.operators_onnx.cases import CONSTANTS
from benchmarks.operators_onnx.cases import cases as backend_cases
from benchmarks.operators_onnx.compare import array

from .case import Case, Run
from .magnitudes import HALVES


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    centred = x - x.max(axis=axis, keepdims=True)
    return np.asarray(centred - np.log(np.exp(centred).sum(axis=axis, keepdims=True)))


class LogSoftmax(OpRun):
    """The logarithm of softmax."""

    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        return (_log_softmax(x, -1 if axis is None else axis),)


class ReduceLogSumExp(OpRun):
    """The logarithm of the sum of exponentials."""

    def _run(
        self,
        x: np.ndarray,
        axes: Any = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> tuple[np.ndarray]:
        over = None if axes is None or not len(axes) else tuple(int(a) for a in axes)
        if over is None and noop_with_empty_axes:
            return (x,)
        largest = np.max(x, axis=over, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, 0)
        total = np.log(np.exp(x - shift).sum(axis=over, keepdims=True)) + shift
        return (total if keepdims else np.squeeze(total, over),)


class Softplus(OpRun):
    """``log(1 + exp(x))``."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),)


class SoftmaxCrossEntropyLoss(OpRun):
    """The negative logarithm of softmax at the labels, weighted and reduced."""

    def _run(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        weight: np.ndarray | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> tuple[np.ndarray, ...]:
        found = _log_softmax(x, 1)
        is_ignored = labels == ignore_index if ignore_index is not None else labels != labels
        index = np.where(is_ignored, 0, labels)
        loss = -np.take_along_axis(found, np.expand_dims(index, 1), 1).squeeze(1)
        each = np.ones_like(loss) if weight is None else weight[index].astype(loss.dtype)
        each = np.where(is_ignored, 0, each)
        loss = np.where(is_ignored, 0, loss * each)
        if reduction == "mean":
            loss = loss.sum() / each.sum()
        elif reduction == "sum":
            loss = loss.sum()
        return (np.asarray(loss, x.dtype), found)[: len(self.onnx_node.output)]


#: In place of the reference's own.
STABLE = [LogSoftmax, ReduceLogSumExp, Softplus, SoftmaxCrossEntropyLoss]


_ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_ELEMENTS |= {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
_FLOATS = frozenset(_ELEMENTS.values())
#: Operators that only convert elements, whose floating point inputs are indices or numbers of
#: elements, whose results are random, or that the reference computes in float32 alone.
SKIPPED = frozenset(
    {
        *("Bernoulli", "Cast", "CastLike", "Constant", "Dropout", "Multinomial", "RandomNormal"),
        *("RandomNormalLike", "RandomUniform", "RandomUniformLike", "BitCast", "OneHot"),
        *("FlexAttention", "MelWeightMatrix", "Scatter"),
    }
)
#: Elements of a case's inputs: the reference is slow.
LARGEST = 3000


def names(most: int) -> Iterator[str]:
    """Yield the names of the small cases of one node, so many of an operator at most."""
    counts: Counter[str] = Counter()
    for name, case in _known().items():
        nodes = case.model.graph.node
        is_skipped = "_expanded" in name or nodes[0].op_type in SKIPPED
        given = [array(value) for value in case.samples[0][0]]
        is_plain = all(isinstance(value, np.ndarray) for value in given)
        if len(nodes) > 1 or is_skipped or not is_plain or _schema(case.model) is None:
            continue
        if sum(value.size for value in given) > LARGEST:
            continue
        if counts[case.operator] < most and any(_half_inputs(case.model, "float16").values()):
            counts[case.operator] += 1
            yield name


def case(name: str, dtype: str) -> Case | None:
    """Make a case; None where the operator takes no such type."""
    found = _known()[name]
    halves = _half_inputs(found.model, dtype)
    infos = list(found.model.graph.input)
    given = [array(value) for value in found.samples[0][0]]
    if not any(halves.values()) or any(not isinstance(x, np.ndarray) for x in given):
        return None
    if sum(x.size for x in given) == 0:
        return None
    narrow = recast(found.model, dtype)
    if narrow is None:
        return None
    stored = _stored(found.model)
    inputs = [x for x in infos if x.name not in stored]
    is_half = [halves.get(info.name, False) for info in inputs]
    exact = {wide: _evaluator(_widened(narrow, dtype, wide)) for wide in ("float64", "float32")}
    return Case(name, dtype, given, is_half, lambda: _compiled(narrow), exact)


def recast(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto | None:
    """Convert a model's floating point tensors to a type that the operator's schema allows.

    None where its types do not agree then.
    """
    halves, new = _half_inputs(model, dtype), onnx.ModelProto()
    new.CopyFrom(model)
    schema, node = _schema(model), new.graph.node[0]
    for info in new.graph.input:
        if halves.get(info.name, False):
            info.type.tensor_type.elem_type = _ELEMENTS[dtype]
    for i, info in enumerate(new.graph.output):
        place = list(node.output).index(info.name)
        formal = schema.outputs[min(place, len(schema.outputs) - 1)]
        if not info.type.HasField("tensor_type"):
            return None
        inputs = [_formal(schema, j) for j, name in enumerate(node.input) if halves.get(name)]
        follows = any(formal.type_str == one.type_str for one in inputs)
        if info.type.tensor_type.elem_type in _FLOATS and follows:
            new.graph.output[i].type.tensor_type.elem_type = _ELEMENTS[dtype]
    for i, tensor in enumerate(new.graph.initializer):
        if halves.get(tensor.name, False):
            values = numpy_helper.to_array(tensor).astype(np.float32).astype(HALVES[dtype])
            new.graph.initializer[i].CopyFrom(_tensor(values, tensor.name, dtype))
    try:
        shape_inference.infer_shapes(new, check_type=True, strict_mode=True)
        onnx.checker.check_model(new)
    except Exception:  # guard: a model that ONNX refuses is none, whatever it raises
        return None
    return new


def _widened(model: onnx.ModelProto, narrow: str, wide: str) -> onnx.ModelProto:
    """Convert a model's tensors of a half type to another type, their values unchanged."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    for info in (*new.graph.input, *new.graph.output):
        if info.type.tensor_type.elem_type == _ELEMENTS[narrow]:
            info.type.tensor_type.elem_type = _ELEMENTS[wide]
    for i, tensor in enumerate(new.graph.initializer):
        if tensor.data_type == _ELEMENTS[narrow]:
            values = numpy_helper.to_array(tensor).astype(wide)
            new.graph.initializer[i].CopyFrom(numpy_helper.from_array(values, tensor.name))
    return new


def _half_inputs(model: onnx.ModelProto, dtype: str) -> dict[str, bool]:
    """Tell which inputs and initializers may have a half type, by name."""
    schema = _schema(model)
    if schema is None:
        return {}
    node = model.graph.node[0]
    elements = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    elements |= {t.name: t.data_type for t in model.graph.initializer}
    return {
        name: elements.get(name) in _FLOATS and f"tensor({dtype})" in _formal(schema, i).types
        for i, name in enumerate(node.input)
        if name
    }


def _formal(schema: Any, place: int) -> Any:
    return schema.inputs[min(place, len(schema.inputs) - 1)]


def _schema(model: onnx.ModelProto) -> Any:
    node = model.graph.node[0]
    version = {o.domain: o.version for o in model.opset_import}.get(node.domain, 1)
    try:
        return defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None


def _tensor(values: np.ndarray, name: str, dtype: str) -> TensorProto:
    raw = np.ascontiguousarray(values).tobytes()
    return helper.make_tensor(name, _ELEMENTS[dtype], values.shape, raw, raw=True)


def _stored(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def _evaluator(model: onnx.ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model, new_ops=STABLE)
    names = [info.name for info in model.graph.input if info.name not in _stored(model)]
    return lambda inputs: evaluator.run(None, dict(zip(names, inputs, strict=True)))


def _compiled(model: onnx.ModelProto) -> Run:
    import tvm_fusion

    compiled = tvm_fusion.compile(model, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        program = tvm_fusion.load(compiled.export(Path(folder) / "a"))
    names = [info.name for info in model.graph.input if info.name not in _stored(model)]

    def run(inputs: Sequence[np.ndarray]) -> list[Any]:
        return list(program.run(dict(zip(names, inputs, strict=True))).values())

    return run


@cache
def _known() -> dict[str, Any]:
    """Cases by name; those with other inputs as initializers take the place of the shipped ones."""
    found = {case.name: case for case in backend_cases() if case.name.startswith("node/")}
    for name in [name for name in found if name.endswith(CONSTANTS)]:
        found[name.removesuffix(CONSTANTS)] = found.pop(name)
    return found
