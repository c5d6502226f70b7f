"""What a PrimFunc was before it became TensorIR: the operator's name and its attributes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tvm
from tvm import ir, tirx
from tvm_ffi import Array, Map

ATTR = "tvm_fusion.op"  # PrimFunc attribute: a record as JSON text


@dataclass(frozen=True)
class OpRecord:
    """A Relax operator, without its operands."""

    name: str  # such as ``relax.nn.softmax``
    # Plain Python values: numbers, strings, None, tuples of such; an index map as its text. An
    # operator without attributes has an empty one.
    attrs: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """Write the record as text; equal records give equal texts."""
        return json.dumps({"name": self.name, "attrs": dict(self.attrs)}, sort_keys=True)


def record_of(func: tirx.PrimFunc) -> OpRecord | None:
    """Read what :class:`tvm_fusion.transform.Legalize` wrote on a PrimFunc.

    Returns
    -------
    OpRecord or None
        None for TensorIR that did not come from an operator.
    """
    text = func.attrs.get(ATTR) if func.attrs else None
    if text is None:
        return None
    data = json.loads(str(text))
    return OpRecord(data["name"], MappingProxyType(_tuples(data["attrs"])))


def stamp(func: tirx.PrimFunc, record: OpRecord) -> tirx.PrimFunc:
    """Return the PrimFunc with a record on it."""
    return func.with_attr(ATTR, record.to_json())


def describe(call: ir.Call) -> OpRecord:
    """Make the record of a call of a Relax operator."""
    attrs = call.attrs
    if attrs is None:
        return OpRecord(str(call.op.name), MappingProxyType({}))
    names = [field.name for field in type(attrs).__tvm_ffi_type_info__.fields]
    values = {name: _plain(getattr(attrs, name)) for name in names if name != "span"}
    return OpRecord(str(call.op.name), MappingProxyType(values))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        is_bool = str(value.ty.dtype) == "bool"
        return bool(value.value) if is_bool else value.value
    if isinstance(value, tvm.DataType):  # a str too, but with a format of its own
        return str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (Array, list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, (Map, dict)):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tirx.IndexMap):
        initial = ", ".join(str(i) for i in value.initial_indices)
        return f"({initial}) -> ({', '.join(str(i) for i in value.final_indices)})"
    return str(value)


def _tuples(value: Any) -> Any:
    """JSON knows lists only; a record's values can be hashed and compared."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
