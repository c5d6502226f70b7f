"""ONNX's operators over small tensors of symbolic extents.

What moves elements (``Slice``, ``Gather``, ``Concat``, ``ScatterND``, ...) is evaluated by onnx's
reference implementation on numbers that stand for the elements, what is elementwise by numpy's
broadcasting with :mod:`.elements`. Constants alone are left to :mod:`..onnx_ops.node_importer`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import ir, relax, tirx

from ..onnx_model.types import dtype_name
from . import elements
from .arrays import DTYPES, LARGEST, SymbolicArray, array_of, of_extents
from .elements import Real, Unknown, is_symbolic
from .facts import Facts
from .reference import run_node

Arrays = Sequence[SymbolicArray | None]

#: Which inputs hold the elements that an operator moves; of the others it needs the values.
_MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            *("Compress", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
            *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Trilu"),
        ),
        (0,),
    ),
    "Pad": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Concat": None,  # all
}
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_REDUCTIONS = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


def evaluate(
    node: onnx.NodeProto, inputs: Sequence[Any], opset: int, facts: Facts
) -> list[Any] | None:
    """Evaluate a node over extents.

    Parameters
    ----------
    inputs
        What stands for its inputs in the import; None for one that is left out.
    opset
        Version of the standard operators.
    facts
        What is known about the symbolic dimensions.

    Returns
    -------
    list or None
        What stands for each output; None where an element is not known.
    """
    if node.domain not in ("", "ai.onnx") or not inputs:
        return None
    try:
        if node.op_type in ("Shape", "Size"):
            return _of_type(node, inputs[0], facts)
        if node.op_type not in _MOVES and node.op_type not in _EVALUATED:
            return None
        arrays = [None if value is None else array_of(value) for value in inputs]
        if any(a is None and v is not None for a, v in zip(arrays, inputs, strict=True)):
            return None
        if all(array is None or array.is_constant for array in arrays):
            return None
        if node.op_type in _MOVES:
            results = _move(node, arrays, opset)
        else:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            results = [_EVALUATED[node.op_type](node.op_type, facts, arrays, attributes)]
    except (Unknown, IndexError, ValueError):
        return None
    if any(r.elements.size > LARGEST or not _fits(r, facts) for r in results):
        return None
    return [r.standing() for r in results]


def _of_type(node: onnx.NodeProto, value: Any, facts: Facts) -> list[Any] | None:
    """Evaluate ``Shape`` and ``Size``, which need no elements."""
    known = array_of(value)
    if known is not None:
        extents: list[Any] = list(known.elements.shape)
    else:
        ty = getattr(value, "ty", None)
        if not isinstance(ty, relax.TensorType):
            return None
        if not isinstance(ty.shape, relax.ShapeExpr):
            return None
        extents = list(ty.shape.values)
    array = of_extents(extents, facts)
    if node.op_type == "Size":
        size = np.empty((), object)
        size[()] = functools.reduce(lambda a, b: facts.simplify(a * b), array.elements, 1)
        return [SymbolicArray(size, "int64").standing()]
    attributes = {a.name: a.i for a in node.attribute}
    part = slice(attributes.get("start", 0), attributes.get("end"))
    return [SymbolicArray(array.elements[part], "int64").standing()]


def _move(node: onnx.NodeProto, arrays: Arrays, opset: int) -> list[SymbolicArray]:
    """Move elements as onnx's reference moves their numbers; number 0 is the element zero."""
    places = _MOVES[node.op_type]
    moved = range(len(arrays)) if places is None else places
    pool: list[Any] = [0]
    given, dtypes = [], []
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if i in moved:
            numbers = np.arange(array.elements.size, dtype="int64") + len(pool)
            given.append(numbers.reshape(array.elements.shape))
            pool += array.elements.flat
            dtypes.append(array.dtype)
        elif array.is_constant:
            given.append(array.numpy())
        else:
            raise Unknown
    pool[0] = np.dtype(dtypes[0]).type(0).item() if "float" not in dtypes[0] else np.float32(0)
    try:
        results = run_node(node, given, opset)
    except Exception as error:  # guard: what the reference refuses is converted as any other node
        raise Unknown from error
    return [_picked(pool, np.asarray(r, "int64"), dtypes[0]) for r in results]


def _picked(pool: Sequence[Any], numbers: np.ndarray, dtype: str) -> SymbolicArray:
    elements_ = np.empty(numbers.shape, object)
    for place in np.ndindex(numbers.shape):
        elements_[place] = pool[int(numbers[place])]
    return SymbolicArray(elements_, dtype)


def _elementwise(
    function: Callable[..., Any], dtype: str, arrays: Sequence[SymbolicArray]
) -> SymbolicArray:
    shape = np.broadcast_shapes(*(a.elements.shape for a in arrays))
    given = [np.broadcast_to(a.elements, shape) for a in arrays]
    result = np.empty(shape, object)
    for place in np.ndindex(shape):
        result[place] = function(*(g[place] for g in given))
    return SymbolicArray(result, dtype)


def _present(arrays: Arrays) -> list[SymbolicArray]:
    found = [a for a in arrays if a is not None]
    if len(found) != len(arrays):
        raise Unknown
    return found


def _binary(facts: Facts, name: str, dtype: str) -> Callable[[Any, Any], Any]:
    """Return the operation on two elements of a type."""

    def apply(a: Any, b: Any) -> Any:
        if not is_symbolic(a, b):
            return _of_numbers(name, dtype, a, b)
        kind = elements.real if "float" in dtype else elements.integer
        return kind(name, facts, a, b)

    return apply


def _of_numbers(name: str, dtype: str, a: Any, b: Any) -> Any:
    """Compute as numpy does, division of integers towards zero."""
    one, other = (np.asarray(x, dtype) for x in (a, b))
    if name in ("Div", "Mod") and not other:
        raise Unknown
    if name == "Div" and "float" not in dtype:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    functions: dict[str, Any] = {
        **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Mod": np.mod},
        **{"Max": np.maximum, "Min": np.minimum},
    }
    found = functions[name](one, other)
    return found[()] if "float" in dtype else found.item()


def _arithmetic(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    given = _present(arrays)
    dtype = given[0].dtype
    if dtype == "bool" or (name == "Mod" and (attributes.get("fmod") or "float" in dtype)):
        raise Unknown
    function = _binary(facts, name, dtype)
    return functools.reduce(lambda a, b: _elementwise(function, dtype, [a, b]), given)


def _comparison(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    given = _present(arrays)
    if given[0].dtype == "bool":
        raise Unknown
    return _elementwise(lambda a, b: elements.compare(name, facts, a, b), "bool", given)


def _logical(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    given = _present(arrays)
    if name == "Not":
        return _elementwise(lambda a: tirx.Not(a) if is_symbolic(a) else not a, "bool", given)
    return _elementwise(lambda a, b: elements.logical(name, facts, a, b), "bool", given)


def _where(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    condition, one, other = _present(arrays)
    choose = functools.partial(elements.choose, facts)
    return _elementwise(choose, one.dtype, [condition, one, other])


def _unary(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    (given,) = _present(arrays)
    is_float = "float" in given.dtype

    def apply(x: Any) -> Any:
        if name == "Neg":
            zero = np.dtype(given.dtype).type(0) if is_float else 0
            return _binary(facts, "Sub", given.dtype)(zero, x)
        if name == "Reciprocal":
            return _binary(facts, "Div", given.dtype)(np.dtype(given.dtype).type(1), x)
        value = x.over if isinstance(x, Real) else x
        if name in ("Abs", "Sign"):
            if not is_symbolic(x):
                return abs(x) if name == "Abs" else np.sign(x)
            if not facts.proves(value >= 0) or name == "Sign":
                raise Unknown
            return x
        if not is_symbolic(x):
            return {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}[name](x)
        return elements.rounded(name, facts, x)

    return _elementwise(apply, given.dtype, [given])


def _cast(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    given = _present(arrays)
    to = dtype_name(attributes["to"]) if name == "Cast" else given[1].dtype
    source = given[0].dtype
    if to not in DTYPES:
        raise Unknown

    def convert(x: Any) -> Any:
        if not is_symbolic(x):
            found = np.asarray(x).astype(to)
            return found[()] if "float" in to else found.item()
        if source == to:
            return x
        if isinstance(x, Real):
            if to == "bool":
                return elements.compare("Greater", facts, x, np.float32(0))
            if "float" in to:
                return Real(x.over, x.under, lambda e: x.run(e).astype(to), x.variables)
            return elements.to_integer(facts, x)
        if source == "bool":
            raise Unknown
        if to == "bool":
            equal = elements.compare("Equal", facts, x, 0)
            return tirx.Not(equal) if is_symbolic(equal) else not equal
        return Real.of_integer(x, to) if "float" in to else x

    return _elementwise(convert, to, given[:1])


def _reduce(name: str, facts: Facts, arrays: Arrays, attributes: Any) -> SymbolicArray:
    data, axes = arrays[0], attributes.get("axes")
    assert data is not None
    if data.dtype == "bool":
        raise Unknown
    if len(arrays) > 1 and arrays[1] is not None:
        axes = arrays[1].numpy().reshape(-1).tolist() if arrays[1].is_constant else None
        if axes is None:
            raise Unknown
    rank = data.elements.ndim
    if not axes:
        axes = [] if attributes.get("noop_with_empty_axes") else range(rank)
    function = _binary(facts, _REDUCTIONS[name], data.dtype)
    result = data.elements
    for axis in {a % rank for a in axes}:
        if not result.shape[axis]:
            raise Unknown
        lines = np.moveaxis(result, axis, 0)
        total = np.empty(lines.shape[1:], object)
        for place in np.ndindex(total.shape):
            numbers = [lines[(i, *place)] for i in range(len(lines))]
            total[place] = functools.reduce(function, numbers)
        result = np.expand_dims(total, axis)
    if not attributes.get("keepdims", 1):
        result = result.reshape([e for i, e in enumerate(result.shape) if i not in
                                 {a % rank for a in axes}])  # fmt: skip
    return SymbolicArray(result, data.dtype)


def _fits(array: SymbolicArray, facts: Facts) -> bool:
    """Tell whether integers stay within their type: 32 bits wrap, extents are of 64."""
    if array.dtype not in ("int32", "int64"):
        return True
    limits = np.iinfo(array.dtype)
    for element in array.elements.flat:
        if isinstance(element, ir.Expr) and array.dtype == "int64":
            continue
        low, high = facts.bounds(element)
        if low < limits.min or high > limits.max:
            return False
    return True


_EVALUATED: dict[str, Callable[[str, Facts, Arrays, Any], SymbolicArray]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), _logical),
    **dict.fromkeys(("Neg", "Abs", "Sign", "Reciprocal", "Floor", "Ceil", "Round"), _unary),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "Where": _where,
}
