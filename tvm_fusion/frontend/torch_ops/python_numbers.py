"""Numbers of Python in torch's graph: held as tensors by loops, and where they are no integers."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx
from tvm.ir import is_prim_expr

from ..registry import Unsupported
from ..tensor_types import dtype_of

op = relax.op
_TENSORS = {
    "add": op.add,
    "sub": op.subtract,
    "mul": op.multiply,
    "floordiv": op.floor_divide,
    "mod": op.floor_mod,
    "ge": op.greater_equal,
    "le": op.less_equal,
    "gt": op.greater,
    "lt": op.less,
    "eq": op.equal,
    "ne": op.not_equal,
    "neg": op.negative,
}
#: Their results are no integers, whatever extents they are given: float64, as Python's.
_REAL: dict[str, Callable[..., Any]] = {
    "truediv": op.divide,
    "pow": op.power,
    "sym_float": lambda x: x,
    "float": lambda x: x,
    "_sym_log2": lambda x: op.divide(op.log(x), relax.const(math.log(2.0), "float64")),
    **{
        f"_sym_{name}": getattr(op, name)
        for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan")
    },
}


def _by_type(of_conditions: Any, of_integers: Any) -> Callable[[Any, Any], Any]:
    def convert(a: Any, b: Any) -> Any:
        return (of_conditions if str(a.ty) == "bool" else of_integers)(a, b)

    return convert


def _same(x: Any) -> Any:
    return x


#: Of extents and conditions on them: int64 and bool.
_EXTENTS: dict[str, Callable[..., Any]] = {
    "sym_sum": lambda *each: reduce(lambda a, b: a + b, each),
    "sym_max": lambda *each: reduce(tirx.max, each),
    "sym_min": lambda *each: reduce(tirx.min, each),
    "sym_ite": tirx.Select,
    "sym_not": tirx.Not,
    "and_": _by_type(tirx.And, lambda a, b: a & b),
    "or_": _by_type(tirx.Or, lambda a, b: a | b),
    "xor": _by_type(tirx.NE, lambda a, b: a ^ b),
    "abs": tirx.abs,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    **dict.fromkeys(("sym_int", "int", "pos", "floor", "ceil", "trunc", "round"), _same),
}


def _integer(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: op.astype(function(x), "int64") if "float" in dtype_of(x) else x


def _logical(of_conditions: Any, of_integers: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: (of_conditions if dtype_of(a) == "bool" else of_integers)(a, b)


#: The same of tensors of one element.
_OF_TENSORS: dict[str, Callable[..., Any]] = {
    "sym_sum": lambda *each: reduce(op.add, each),
    "sym_max": lambda *each: reduce(op.maximum, each),
    "sym_min": lambda *each: reduce(op.minimum, each),
    "sym_ite": op.where,
    "sym_not": op.logical_not,
    "and_": _logical(op.logical_and, op.bitwise_and),
    "or_": _logical(op.logical_or, op.bitwise_or),
    "xor": _logical(op.logical_xor, op.bitwise_xor),
    "abs": op.abs,
    "pos": _same,
    "lshift": op.left_shift,
    "rshift": op.right_shift,
    "floor": _integer(op.floor),
    "ceil": _integer(op.ceil),
    "round": _integer(op.round),
    **dict.fromkeys(("sym_int", "int", "trunc"), _integer(op.trunc)),
}
for _table in (_EXTENTS, _OF_TENSORS):
    _table |= {"max": _table["sym_max"], "min": _table["sym_min"], "not_": _table["sym_not"]}


def as_tensor(importer: Any, value: Any) -> Any:
    """Make a tensor of a tensor, a number or an extent."""
    if isinstance(value, bool):
        return relax.const(value, "bool")
    if isinstance(value, int | float):
        return relax.const(value, "int64" if isinstance(value, int) else "float64")
    if isinstance(value, relax.Call):
        value = importer.block_builder.emit(value)
    if is_prim_expr(value):
        dtype = "bool" if str(value.ty) == "bool" else "int64"
        return importer._prim_value_to_scalar_tensor(value, dtype)
    return value


def on_numbers(
    importer: Any, name: str, convert: Callable[[fx.Node], Any] | None
) -> Callable[[fx.Node], Any]:
    """Convert one of Python's operators, also on numbers that loops hold as tensors.

    Parameters
    ----------
    convert
        TVM's converter, for extents; None of an operator whose results are no integers.
    """

    def converted(node: fx.Node) -> Any:
        values = [importer._retrieve_args(value) for value in node.args]
        if len(values) == 1 and isinstance(values[0], list | tuple):  # sym_sum
            values = list(values[0])
        if all(isinstance(value, bool | int | float) for value in values):
            return node.target(*importer._retrieve_args(node.args))
        is_tensor = any(isinstance(getattr(v, "ty", None), relax.TensorType) for v in values)
        if convert is not None and not is_tensor:
            return convert(node)
        known = None if convert is not None else _as_extent(importer, node)
        if known is not None:
            return known
        if name in _EXTENTS and not is_tensor and not any(isinstance(v, float) for v in values):
            return _EXTENTS[name](*map(_expression, values))
        tensors = [as_tensor(importer, value) for value in values]
        emit = importer.block_builder.emit
        changing = tensors[1:] if name == "sym_ite" else tensors
        if name in _REAL or len({dtype_of(x) for x in changing}) > 1:
            changing = [emit(op.astype(x, "float64")) for x in changing]
        tensors = [*tensors[: len(tensors) - len(changing)], *changing]
        return emit({**_TENSORS, **_REAL, **_OF_TENSORS}[name](*tensors))

    return converted


def _as_extent(importer: Any, node: fx.Node) -> Any:
    """Write an integer as torch has derived it from extents; None where it has not.

    So ``int(n * 0.5)`` is an extent although ``n * 0.5`` is none.
    """
    if not isinstance(node.meta.get("val"), torch.SymInt):
        return None
    try:
        return importer.extent(node.meta["val"])
    except Unsupported:
        return None


def _expression(value: Any) -> Any:
    if isinstance(value, bool):
        return tirx.IntImm("bool", int(value))
    return tirx.IntImm("int64", value) if isinstance(value, int) else value
