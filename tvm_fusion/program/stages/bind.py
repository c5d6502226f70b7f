"""Stages of a graph's operators: those of their PrimFuncs, over the graph's values and symbols."""

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import ir, tirx
from tvm.tirx import Buffer

from ..._tvm.ir.buffer import declare
from ...core.tir.expressions import (
    has_division,
    int64,
    is_expensive,
    is_movement,
    loads,
    size,
    substitute,
    substitution,
    variables,
)
from ...ecg.graph import Operator, Value
from ..domain import Domain
from ..stage import Axis, Stage, Unstructured
from .parse import Parsed, parse
from .trivial import without_unit_axes


@dataclass(frozen=True, eq=False)
class InlineCandidate:
    """A stage of an operator, with the facts that decide whether it is inlined."""

    stage: Stage

    @cached_property
    def size(self) -> int:
        """Nodes of its values."""
        return sum(size(value) for value in self.stage.values)

    @cached_property
    def is_movement(self) -> bool:
        """Whether it only moves elements."""
        return self.stage.is_map and all(is_movement(v) for v in self.stage.values)

    @cached_property
    def is_costly(self) -> bool:
        """Whether computing an element twice costs more than reading one would."""
        everywhere = {
            x.source for x in self.stage.loads if {a.var for a in self.stage.axes} <= _mentioned(x)
        }
        return len(everywhere) > 1 or any(is_expensive(v) for v in self.stage.values)


def _mentioned(load: ir.TensorLoad) -> set[ir.Var]:
    return {v for index in load.indices for v in variables(index)}


_buffers: weakref.WeakKeyDictionary[Value, Buffer] = weakref.WeakKeyDictionary()
# A key of an operator's own ``known``: its operands refer to it, so that in a dictionary with weak
# keys it would never go, nor would the weights of its model.
_PARTS = "parts"


def buffer_of(value: Value, name: str = "") -> Buffer:
    """Return the buffer that stands for a value in every program."""
    buffer = _buffers.get(value)
    if buffer is None:
        shape = [int64(extent) for extent in value.shape]
        buffer = declare(shape, value.dtype, name=name or "value")
        _buffers[value] = buffer
    return buffer


def share_buffer(value: Value, like: Value) -> None:
    """Share one buffer between two values that are never in one program."""
    _buffers[value] = buffer_of(like)


def share_parts(copy: Operator, original: Operator) -> None:
    """Let an operator of the same PrimFunc over the same buffers have the same stages."""
    with contextlib.suppress(Unstructured):  # the copy is found to be that where it is needed
        copy.known[_PARTS] = copy.operands, parts_of(original)


def parts_of(operator: Operator) -> tuple[InlineCandidate, ...]:
    """Return an operator's stages over the buffers of its operands and results.

    Raises
    ------
    Unstructured
        If its PrimFunc cannot be read as stages, or does not fit its operands.
    """
    # With the operands that they were made for: planning replaces those by copies.
    operands, parts = operator.known.get(_PARTS, (None, ()))
    if operands is not operator.operands:
        try:
            stages = _stages_of(operator)
        except Unstructured as reason:
            raise Unstructured(
                f"{operator.title} does not consist of maps and reductions: {reason}"
            ) from None
        parts = tuple(map(InlineCandidate, stages))
        operator.known[_PARTS] = operator.operands, parts
    return parts


def _stages_of(operator: Operator) -> list[Stage]:
    if operator.func is None:
        raise Unstructured("A member is not a PrimFunc over blocks.")
    parsed = parse(operator.func)
    bound = (*operator.operands, *operator.results)
    if len(bound) != len(parsed.params):
        raise Unstructured("A member is called with the wrong number of arguments.")
    values: dict[ir.Var, ir.Expr] = {}
    for param, shape, given in zip(parsed.params, parsed.shapes, bound, strict=True):
        if shape is not None:
            if not isinstance(given, Value):
                raise Unstructured(f"Parameter {param.name} of a member is not a tensor.")
            values[param] = buffer_of(given, param.name)
        elif isinstance(given, Value):
            raise Unstructured(f"Parameter {param.name} of a member is not a scalar.")
        else:
            values[param] = _as_type(given, param)
    symbols = _unify(parsed, bound, values)
    values.update(symbols)
    return [
        _bind(stage, mentioned, values, bool(symbols), operator.title)
        for stage, mentioned in zip(parsed.stages, parsed.mentioned, strict=True)
    ]


def _unify(
    parsed: Parsed, bound: Sequence[Value | ir.Expr], given: Mapping[ir.Var, ir.Expr]
) -> dict[ir.Var, ir.Expr]:
    """Solve the PrimFunc's symbolic extents for those of the values it is given."""
    solved: dict[ir.Var, ir.Expr] = {}
    for param, shape, value in zip(parsed.params, parsed.shapes, bound, strict=True):
        if shape is None or not isinstance(value, Value):
            continue
        if len(shape) != len(value.shape):
            raise Unstructured(f"Parameter {param.name} of a member has another rank.")
        for extent, outside in zip(shape, value.shape, strict=True):
            if isinstance(extent, ir.Var) and extent not in given and extent not in solved:
                solved[extent] = _as_type(int64(outside), extent)
    return solved


def _bind(
    stage: Stage,
    mentioned: frozenset[ir.Var],
    values: dict[ir.Var, ir.Expr],
    is_symbolic: bool,
    title: str,
) -> Stage:
    """Rename a stage's variables and buffers; its internal buffers get their own."""

    def extent_of(axis: Axis) -> ir.Expr:
        return int64(substitute(axis.extent, values))

    for target in stage.targets:
        if target not in values:
            shape = [int64(substitute(int64(d), values)) for d in target.shape]
            values[target] = declare(shape, target.dtype, name=target.name)
    axes = (*stage.axes, *stage.reduce)
    renamed = {a.var: Axis(ir.Var(a.var.name, a.var.ty), extent_of(a)) for a in axes}
    change = substitution({**values, **{var: axis.var for var, axis in renamed.items()}})
    bound = Stage(
        stage.name,
        tuple(renamed[a.var] for a in stage.axes),
        tuple(renamed[a.var] for a in stage.reduce),
        tuple(values[t] for t in stage.targets),
        tuple(tuple(map(change, write)) for write in stage.indices),
        tuple(map(change, stage.values)),
        stage.init and tuple(map(change, stage.init)),
        operator=title,
    )
    unknown = next((v for v in mentioned if v not in values), None)
    if unknown is not None:
        raise Unstructured(f"The size {unknown.name} of a member is unknown.")
    if not is_symbolic:
        return bound
    # Known extents may be 1, and known sizes make indices simpler.
    bound = without_unit_axes(bound)
    if any(has_division(i) for value in bound.values for x in loads(value) for i in x.indices):
        domain = Domain((*bound.axes, *bound.reduce))
        bound = replace(bound, values=tuple(domain.simplify(v) for v in bound.values))
    return bound


def _as_type(value: ir.Expr, var: ir.Var) -> ir.Expr:
    if str(value.ty.dtype) == str(var.ty.dtype):
        return value
    if isinstance(value, tirx.IntImm):
        return tirx.IntImm(var.ty.dtype, value.value)
    return tirx.Cast(var.ty.dtype, value)
