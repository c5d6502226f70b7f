"""Convert LabelEncoder over numbers, and drop ZipMap."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from ....core.decisions import Decision, record
from ...registry import Unsupported
from ..node import Node
from ..registry import register
from .forest import numbers
from .scores import of_strings

op = relax.op
_KINDS = {"int64s": "int64", "floats": "float32"}


@register("ai.onnx.ml::LabelEncoder", refuses=of_strings, since=2)
def label_encoder(node: Node) -> Any:
    """Convert a table from numbers to numbers: a search among the sorted keys.

    NaN is a key like any other. Where a key is there twice, the first counts, as in ONNX Runtime.
    """
    keys, values = _table(node, "keys"), _table(node, "values")
    for name in ("keys_strings", "values_strings", "default_string"):
        node.attribute(name)
    otherwise = _default(node, values.dtype.name)
    if not len(keys) or len(keys) != len(values):
        raise Unsupported(
            f"with {len(keys)} keys and {len(values)} values", "give each key a value"
        )
    if keys.dtype.name != node.dtype():
        raise Unsupported(f"of {node.dtype()} with keys of {keys.dtype}", "give both one type")
    keys, first = np.unique(keys, return_index=True)  # sorted, NaN last
    values, x = values[first], node.inputs[0]
    dtype, kind = keys.dtype.name, values.dtype.name
    result = relax.const(otherwise, kind)
    is_nan = op.isnan(x) if "float" in dtype and np.isnan(keys[-1]) else None
    known = keys if is_nan is None else keys[:-1]
    if len(known):
        x = node.emit(x)
        place = node.emit(op.bucketize(x, relax.const(known, dtype), out_int32=True))
        place = node.emit(op.minimum(place, relax.const(len(known) - 1, "int32")))
        found = op.take(relax.const(known, dtype), place, 0, mode="fast")
        is_key = node.emit(op.equal(node.emit(found), x))
        value = op.take(relax.const(values[: len(known)], kind), place, 0, mode="fast")
        result = op.where(is_key, node.emit(value), result)
    if is_nan is not None:
        result = op.where(node.emit(is_nan), relax.const(values[-1], kind), result)
    if not len(known):
        result = op.broadcast_to(node.emit(result), x.ty.shape)
    return result


@register("ai.onnx.ml::ZipMap")
def zip_map(node: Node) -> Any:
    """Drop ZipMap: its output is the matrix of scores, columns in the order of the classes."""
    ints, strings = node.attribute("classlabels_int64s"), node.attribute("classlabels_strings")
    classes = [str(c) for c in ints or ()] or [
        bytes(c).decode(errors="backslashreplace") for c in strings or ()
    ]
    shown = ", ".join(classes[:16]) + (", ..." if len(classes) > 16 else "")
    name = node.proto.output[0]
    sentence = (
        f"ZipMap is dropped: instead of a dictionary for each row, {name} is a tensor whose "
        f"columns are the classes {shown}."
    )
    record(Decision("ai.onnx.ml::ZipMap", name, "accepted", "zip_map_dropped", sentence))
    return node.inputs[0]


def _table(node: Node, side: str) -> np.ndarray:
    """Read the keys or the values, in whichever attribute they are."""
    for kind, dtype in _KINDS.items():
        if node.attribute(f"{side}_{kind}"):
            return numbers(node, f"{side}_{kind}", dtype)
    tensor = node.attribute(f"{side}_tensor")
    if tensor is None:
        return np.zeros(0, "int64")
    return np.array(numpy_helper.to_array(tensor)).reshape(-1)


def _default(node: Node, dtype: str) -> Any:
    """Read what becomes of all other numbers, -1 or -0.0 where the node does not say."""
    found = {
        "default_int64": node.attribute("default_int64"),
        "default_float": node.attribute("default_float"),
    }
    tensor = node.attribute("default_tensor")
    if tensor is not None:
        return numbers(node, "default_tensor", dtype).reshape(-1)[0]
    name = "default_float" if "float" in dtype else "default_int64"
    given = found[name]
    return np.array((-0.0 if "float" in dtype else -1) if given is None else given, dtype)
