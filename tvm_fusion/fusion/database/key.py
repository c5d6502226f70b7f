"""Keys of measured costs: text that is the same in every process.

``structure``
    SHA-256 of: per member the structural hash of its PrimFunc without attributes and names, and the
    positions of its operands and results; which inputs are parameters; positions of the outputs;
    closed forms of constant tensors, if there are such.
``dtypes``, ``shapes``
    Of the inputs, then of the outputs. Symbolic variables are numbered in order of appearance; a
    group with such is measured with each of them at :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.
``device``
    Kind, architecture, name, a CPU's cores, and tf32 or approximate where kernels may be so.
``versions``
    Of tvm_fusion and apache-tvm, and the template's name: others make other kernels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...core.flags import APPROXIMATE, TF32
from ...device import Device

if TYPE_CHECKING:
    from ...program.group import Group


@dataclass(frozen=True)
class Key:
    """What a measurement belongs to; equal in every process for equal groups."""

    structure: str
    dtypes: str
    shapes: str
    device: str
    versions: str

    @classmethod
    def of(cls, group: Group, template: str, device: Device) -> Key:
        """Make the key of a group as one template's kernels on a device."""
        rename = _Renamer()
        tensors = (*group.inputs, *group.outputs)
        shapes = [[rename(extent) for extent in v.shape] for v in tensors]
        return cls(
            hashlib.sha256(_structure(group, rename).encode()).hexdigest(),
            json.dumps([v.dtype for v in tensors]),
            json.dumps(shapes),
            device_text(device),
            json.dumps({**versions(), "template": template}),
        )


def device_text(device: Device) -> str:
    """Write a device as keys have it."""
    where = [device.kind, device.arch, device.name, device.cores]
    where += [TF32] if device.rounds_to_tf32 else []
    where += [APPROXIMATE] if device.approximates else []
    return json.dumps(where)


def versions() -> dict[str, str]:
    """List the packages that make kernels, with their versions."""
    import tvm

    from ... import __version__

    return {"tvm_fusion": __version__, "apache-tvm": tvm.__version__}


def _structure(group: Group, rename: Callable[[Any], str]) -> str:
    from ...ecg.graph import Value

    number = {value: i for i, value in enumerate(group.inputs)}
    members = []
    for op in group.members:
        operands = [number[o] if isinstance(o, Value) else rename(o) for o in op.operands]
        results = [number.setdefault(v, len(number)) for v in op.results]
        members.append([_hash(op.func), operands, results])
    parameters = [i for i, v in enumerate(group.inputs) if v.is_parameter]
    outputs = [number[v] for v in group.outputs]
    tensors = [(i, v) for i, v in enumerate(group.inputs) if not all(map(_is_one, v.shape))]
    forms = {i: v.closed_form_text for i, v in tensors if v.closed_form_text}
    return json.dumps([members, parameters, outputs, *([forms] if forms else [])])


def _is_one(extent: Any) -> bool:
    from tvm import tirx

    return isinstance(extent, tirx.IntImm) and int(extent) == 1


@lru_cache(maxsize=4096)  # planning asks about many groups of the same PrimFuncs
def _hash(func: Any) -> str:
    import tvm_ffi

    for name in func.attrs.keys() if func.attrs else ():
        func = func.without_attr(name)
    return f"{tvm_ffi.structural_hash(func):016x}"


class _Renamer:
    """Writes expressions with their variables numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbered: dict[Any, Any] = {}

    def __call__(self, expr: Any) -> str:
        import tvm_ffi
        from tvm import ir, tirx

        def number(var: Any) -> Any:
            name = f"s{len(self._numbered)}"
            return self._numbered.setdefault(var, tirx.Var(name, str(var.ty.dtype)))

        if isinstance(expr, tirx.IntImm):
            return str(expr.value)
        return str(tvm_ffi.structural_map(expr, (ir.Var, number), order="post"))
