"""Convert ONNX nodes in TVM's importer: registered converters first, every result checked."""

import ast
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax
from tvm.ir import GenericConst, is_prim_expr
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ...core.constants.narrow_types import NARROW, STORAGE, storage_of
from ...core.names.source import Recorder
from ...errors import UserError
from ...signature import DimRange, EqualExtents
from ..half.intermediates import WIDE, narrowed, rounds_between, wide_dtype, widened
from ..onnx_model.types import ValueType
from ..registry import Unsupported
from ..shape_values import Facts, SymbolicArray, array_of, evaluate
from ..shape_values.arrays import DTYPES, LARGEST
from ..shape_values.reference import run_node
from ..tensor_types import HALF, dtype_of, mismatch, static
from . import control_flow
from .failures import advice_for_failure, described
from .matching import Matcher
from .node import Node, ReadAttributes, ReadInputs, ignored
from .registry import CONVERTERS, STANDARD, qualified_name
from .reviewed import RETURN_SEQUENCES, TAKE_EXTENTS, TAKE_SHAPES, is_reviewed

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's name, behind the path of the PyTorch module that it comes from.

    PyTorch's exporter numbers nodes (``node_linear_3``) and writes the modules around one, the
    traced operator last, into its metadata: ``['', 'layer.0', 'layer.0.ff', 'linear_3']`` makes
    ``layer.0.ff/node_linear_3``.
    """
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                _, *modules, _ = ast.literal_eval(entry.value)
            except (SyntaxError, TypeError, ValueError):  # of another exporter, or by hand
                break
            if modules and isinstance(modules[-1], str) and modules[-1]:
                return f"{modules[-1]}/{node.name or node.op_type}"
    return str(node.name)


class NodeImporter(ONNXGraphImporter):
    """TVM's importer, its conversion of nodes replaced; :class:`.importer.Importer` adds graphs.

    Parameters
    ----------
    shapes
        Extents of the inputs: numbers and TIR expressions.
    ranges : mapping of tvm.tirx.Var to DimRange
        What is known about the symbolic dimensions.
    types
        Types of values by ONNX's own inference; what the import makes must agree with them.
    """

    def __init__(
        self,
        shapes: dict[str, list[Any]],
        ranges: Mapping[Any, DimRange],
        types: Mapping[str, ValueType],
    ):
        super().__init__(shapes, {}, sanitize=False)
        self._nodes: dict[str, Any]
        self._ranges, self._types = ranges, types
        self._facts = Facts(ranges)
        self._matcher = Matcher(self.bb, self._facts)
        self._at = ""
        self._converted: onnx.NodeProto | None = None
        self._read_names: set[str] = set()
        self._is_applied = False
        #: The inputs of the node at which the import failed, and what to do about it.
        self._failed_inputs, self._failed_advice = "", ""
        self._failed_values: list[Any] = []
        #: Which node each value comes from.
        self.sources = Recorder()

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        try:
            array = numpy_helper.to_array(tensor_proto)
        except ValueError as error:
            shape = list(tensor_proto.dims)
            raise UserError(
                f"tensor {tensor_proto.name} of shape {shape} has another number of elements",
                None,
                "export the model again",
            ) from error
        if array.dtype.name in NARROW:
            return tvm.runtime.tensor(array.view(STORAGE))
        return super()._parse_array(tensor_proto)

    @property
    def required(self) -> list[EqualExtents]:
        """Extents that have to be equal in every call."""
        return self._matcher.required

    @property
    def values(self) -> dict[str, Any]:
        """What stands for the values of the graph that is being converted, by name."""
        return self._nodes

    def _convert_node(self, node: onnx.NodeProto) -> None:
        """Convert a node; of the innermost that fails, the inputs are kept for the sentence."""
        try:
            self._convert(node)
        except Exception:  # guard: raised again, and told as one sentence by Importer.convert
            if not self._failed_advice:
                self._at, self._converted = _title(node), node
                self._failed_inputs = described(node, self._nodes)
                self._failed_values = [self._nodes.get(name) for name in node.input]
                self._failed_advice = advice_for_failure(node, self._nodes, self._types, self.opset)
            raise

    def _convert(self, node: onnx.NodeProto) -> None:
        self._at, self._converted = _title(node), node
        used = tuple(bool(name) and name in self._read_names for name in node.output)
        own = control_flow.CONVERTERS.get(qualified_name(node))
        if own is not None:
            try:
                results = own(self, node)
            except Unsupported as error:
                raise _refused(node, error.reason, error.advice) from error
            self._at = _title(node)
        else:
            inputs = [self._nodes[name] if name else None for name in node.input]
            results = self._convert_operation(node, inputs, used)
        outputs = list(zip_longest(node.output, used, results[: len(node.output)]))
        missing = [name for name, is_used, value in outputs if is_used and value is None]
        if missing:
            raise _refused(
                node, f"has outputs that its converter does not compute ({', '.join(missing)})"
            )
        for name, is_used, value in outputs:
            if is_used:
                self._nodes[name] = self._checked(node, name, value)
        made = [self._nodes[name] for name, is_used, _ in outputs if is_used]
        self.sources.add(made, name_of(node), filter(None, node.output))
        self._at = ""

    def _convert_operation(
        self, node: onnx.NodeProto, inputs: Sequence[Any], used: tuple[bool, ...]
    ) -> list[Any]:
        tensors = [_as_constant(v) if isinstance(v, relax.ShapeExpr) else v for v in inputs]
        has_narrow = not self._is_applied and any(
            name in self._types and self._types[name].dtype in NARROW for name in node.input
        )
        found = None if has_narrow else fold(node, tensors, self.opset)
        if found is None and not has_narrow:
            found = evaluate(node, inputs, self.opset, self._facts)
        if found is not None:
            return found
        try:
            inputs = self._matcher.joined(node, inputs, f"operator {_title(node)}")
        except Unsupported as error:
            raise _refused(node, error.reason, error.advice) from error
        found = self._convert_once(node, inputs, used)
        if not any(dtype_of(value) in HALF for value in (*inputs, *found)):
            return found
        read = found if self._is_applied else [v for v, u in zip(found, used, strict=False) if u]
        dtype = wide_dtype(node.op_type, inputs)
        if dtype == WIDE and not rounds_between(read, self.bb, inputs):
            return found
        wide = self._convert_once(node, [widened(v, self.bb.emit, dtype) for v in inputs], used)
        return [narrowed(v, like, self.bb.emit) for v, like in zip(wide, found, strict=True)]

    def _convert_once(
        self, node: onnx.NodeProto, inputs: Sequence[Any], used: tuple[bool, ...]
    ) -> list[Any]:
        found = self._convert_own(node, inputs, used)
        return self._convert_by_tvm(node, inputs) if found is None else found

    def _apply(
        self, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: int = 1
    ) -> list[Any]:
        """Convert a standard operator that is no node of the model."""
        names = ["" if value is None else f"input_{i}" for i, value in enumerate(inputs)]
        results = [f"output_{i}" for i in range(outputs)]
        node = onnx.helper.make_node(op_type, names, results, **attributes)
        before, self._is_applied = self._is_applied, True  # its names are none of the model's
        try:
            found = self._convert_operation(node, inputs, (True,) * outputs)
        finally:
            self._is_applied = before
        return [self.bb.normalize(value) for value in found[:outputs]]

    def _convert_own(
        self, node: onnx.NodeProto, inputs: Sequence[Any], used: tuple[bool, ...]
    ) -> list[Any] | None:
        """Convert by a converter of ours; None where there is none, or it leaves it to TVM."""
        converter = CONVERTERS.get(qualified_name(node))
        if converter is None:
            return None
        known = [None if value is None else array_of(value) for value in inputs]
        if not converter.takes_extents:
            inputs = [self.as_tensor(value) for value in inputs]
        values = ReadInputs(
            self.as_tensor(value) if isinstance(value, SymbolicArray) else value for value in inputs
        )
        types = {} if self._is_applied else self._types
        given = Node(
            node, values, self.opset, self.bb, self._apply, self._facts, used, types, known,
            lambda value, shape: self._matcher.match(value, shape, f"operator {_title(node)}"),
        )  # fmt: skip
        try:
            result = converter.convert(given)
        except Unsupported as error:
            raise _refused(node, error.reason, error.advice) from error
        if result is None:
            return None
        self._refuse_ignored(node, given.attributes, values)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        return [None if value is None else self.bb.normalize(value) for value in results]

    def _convert_by_tvm(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> list[Any]:
        name = node.op_type
        if node.domain not in STANDARD and not is_reviewed(node, self.opset):
            raise _refused(node, "is left to TVM, which has no converter for it", None)
        values = ReadInputs(
            value
            if (isinstance(value, relax.ShapeExpr) and name in TAKE_SHAPES and i)
            or (value is not None and is_prim_expr(value) and name in TAKE_EXTENTS)
            else self.as_tensor(value)
            for i, value in enumerate(inputs, name == "ConstantOfShape")
        )
        if all(value is None or isinstance(value, GenericConst) for value in values):
            # TVM computes what it can of constants, such as a second copy of a tied embedding;
            # FoldConstants knows who else reads them.
            values = ReadInputs(self._bound(value) for value in values)
        attributes = ReadAttributes(self._parse_attr(node.attribute))
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        result = self._convert_operator(name, values, attributes, self.opset)
        self._refuse_ignored(node, attributes, values)
        if isinstance(result, relax.ShapeExpr):
            result = _as_constant(result)
        if name in RETURN_SEQUENCES:
            return [result]
        if isinstance(result, relax.Tuple):
            return list(result)
        if isinstance(getattr(result, "ty", None), relax.TupleType):
            return [
                self.bb.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))
            ]
        return [result]

    def _bound(self, value: Any) -> Any:
        """Bind a constant of weights to a variable; others may be axes, sizes or scales."""
        is_weight = value is not None and math.prod(map(int, value.value.shape)) > LARGEST
        return self.bb.emit(value) if is_weight else value

    def _refuse_ignored(
        self, node: onnx.NodeProto, attributes: ReadAttributes, inputs: ReadInputs
    ) -> None:
        passed_over = ignored(node, self.opset, attributes, inputs)
        if passed_over:
            raise _refused(node, f"uses {', '.join(passed_over)}, which its converter ignores")

    def as_tensor(self, value: Any) -> Any:
        """Turn a shape, an extent or an array of them into the tensor that ONNX has there."""
        if isinstance(value, SymbolicArray):
            return value.tensor(self.bb)
        if isinstance(value, relax.ShapeExpr):
            constant = _as_constant(value)
            if isinstance(constant, GenericConst):
                return constant
            return self.bb.emit(relax.op.shape_to_tensor(value))
        if isinstance(getattr(value, "ty", None), relax.ShapeType):
            return self.bb.emit(relax.op.shape_to_tensor(value))
        if value is not None and not isinstance(value, GenericConst) and is_prim_expr(value):
            if static(value) is not None and str(value.ty) == "int64":
                return relax.const(static(value), "int64")
            if str(value.ty) != "int64":
                return value
            extent = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
            return self.bb.emit(relax.op.reshape(extent, ()))
        return value

    def _checked(self, node: onnx.NodeProto, name: str, value: Any) -> Any:
        """Return a result, normalized, if its type is the one that ONNX infers."""
        expected = self._types.get(name)
        if not isinstance(value, relax.Expr):
            return value
        value = self.bb.normalize(value)
        _refuse_negative(node, name, value)
        if expected is not None and isinstance(value.ty, relax.TensorType):
            dtype = storage_of(expected.dtype)
            text = mismatch(value, dtype, expected.shape)
            if text and node.op_type in ("Resize", "Upsample") and not mismatch(value, dtype, None):
                # Of an extent times a scale: ONNX rounds it down in float64, ONNX Runtime in
                # float32. What ONNX infers from its own extent is as wrong.
                self._types = {n: t._replace(shape=None) for n, t in self._types.items()}
            elif text is not None:
                raise _refused(node, f"is converted to {text} (output {name})")
        return value


def _refuse_negative(node: onnx.NodeProto, name: str, value: relax.Expr) -> None:
    """Refuse a result of fewer elements than none: of a window or crop that exceeds its tensor."""
    shape = value.ty.shape if isinstance(value.ty, relax.TensorType) else None
    extents = [static(extent) for extent in shape] if shape is not None else []
    if any(extent is not None and extent < 0 for extent in extents):
        found = ", ".join("?" if extent is None else str(extent) for extent in extents)
        advice = "correct its sizes, or give its dimensions other extents"
        raise _refused(node, f"makes a tensor of shape [{found}] (output {name})", advice)


def _title(node: onnx.NodeProto) -> str:
    name = qualified_name(node)
    return f"{name} '{node.name}'" if node.name else name


def _refused(
    node: onnx.NodeProto,
    what: str,
    advice: str | None = "express it through other operators, or leave that out",
) -> UserError:
    return UserError(f"operator {_title(node)} {what}", None, advice)


def _as_constant(shape: relax.ShapeExpr) -> Any:
    """Return a shape of known extents as a constant tensor, any other as it is."""
    extents = [static(extent) for extent in shape]
    if any(extent is None for extent in extents):
        return shape
    return relax.const(np.array(extents, "int64"), "int64")


# Fold nodes over small constants with onnx's reference implementation.
#
# Exporters compute shapes with dozens of operators. What TVM's importer does not fold would become
# a shape that is known only at run time, and every kernel behind it would be general.
_OPERATORS = {
    *("Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Compress", "Concat"),
    *("ConstantOfShape", "CumSum", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather"),
    *("GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual"),
    *("Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pad", "Pow", "Range"),
    *("Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape"),
    *("Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice", "Split", "Sqrt"),
    *("Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
}


def fold(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> list[Any] | None:
    """Evaluate a node.

    Parameters
    ----------
    node
        A node of ONNX's own domain.
    inputs
        Expressions; None for an input that is left out.
    opset
        Version of the standard operators.

    Returns
    -------
    list of tvm.ir.GenericConst or None
        None where an input is no small constant, or the operator is not one of those folded.
    """
    if node.op_type not in _OPERATORS or node.domain not in ("", "ai.onnx") or not inputs:
        return None
    given = [value for value in inputs if value is not None]
    if not given or not all(map(_is_small, given)):
        return None
    arrays = [value.value.numpy() for value in given]
    try:
        results = run_node(node, arrays, opset)
    except Exception:  # guard: what cannot be folded is converted as any other node
        return None
    if any(r.size > LARGEST or r.dtype.name not in DTYPES for r in results):
        return None
    constants = iter([relax.const(result, result.dtype.name) for result in results])
    return [next(constants) if name else None for name in node.output]


def _is_small(value: Any) -> bool:
    if not isinstance(value, GenericConst):
        return False
    array = value.value
    return int(np.prod(array.shape)) <= LARGEST and str(array.dtype) in DTYPES
