"""Convert loops to functions of the module that call themselves.

    run(start, trips, condition, states):
        if trips <= 0 or not condition:  return condition, states, no slices
        if trips == 1:                   return body(start, condition, states)
        half = trips // 2
        condition, states, first = run(start, half, condition, states)
        condition, states, second = run(start + half, trips - half, condition, states)
        return condition, states, concat(first, second)

Halving keeps calls at most 64 deep whatever the number of trips, which TVM's virtual machine needs
(it has no loops, and every call takes stack), and joins the slices of an output in n log n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax, sym, tirx

from ...core.recursion import CONDITIONAL, COUNTED, LOOP
from ..registry import Unsupported
from ..tensor_types import static
from .lifted import Captured, add_function, branch, capture, extents_of, identifier, items, shaped
from .loops import ENDLESS, Loop, Slices, unrolled

op = relax.op


def convert_loop(importer: Any, loop: Loop) -> list[Any]:
    """Emit a loop: every trip of a short one, otherwise a call of the function over all trips."""
    found = unrolled(importer, loop)
    return recursive(importer, loop) if found is None else found


def recursive(importer: Any, loop: Loop) -> list[Any]:
    """Emit a call of the function over all trips; returns the same as :func:`.loops.unrolled`."""
    bb = importer.bb
    if not loop.is_conditional and static(loop.trips) == ENDLESS:
        raise Unsupported("without an end", "give it a number of trips or a condition")
    states = []
    for name, value in zip(loop.state_names, loop.states, strict=True):
        value = importer.as_tensor(value)
        if not isinstance(getattr(value, "ty", None), relax.TensorType):
            raise Unsupported(
                f"whose state {name} is a sequence and whose number of trips is not known",
                "make the number of trips and the condition constant, or collect a scan output",
            )
        states.append(shaped(bb, value, name))
    captured = capture(bb, importer.values, loop.reads)
    for state in states:
        captured.note(extents_of(state.ty))
    condition = []
    if loop.is_conditional:
        condition = [op.reshape(importer.as_tensor(loop.condition), relax.ShapeExpr([]))]
        condition = [bb.emit(condition[0])]
    types = StateTypes(loop.state_names, [state.ty for state in states])
    for _ in range(2 + sum(ty.ndim for ty in types.types)):
        body, made = _body(importer, loop, captured, types.types)
        if types.join(made[len(condition) : len(condition) + len(states)]):
            break
    elements = made[len(condition) + len(states) :]
    run = _Run(bb, loop, captured, types, body, elements)
    function = run.emit()
    at = relax.ShapeExpr([tirx.IntImm("int64", 0), run.extent(loop.trips), *captured.symbols])
    result = bb.emit(relax.Call(function, [at, *condition, *states, *captured.args]))
    found = items(bb, result)[len(condition) :]
    final = [shaped(bb, v, name) for name, v in zip(loop.state_names, found, strict=False)]
    for output, ty, value in zip(loop.outputs, elements, found[len(states) :], strict=True):
        final.append(run.matched(output, ty, value))
    return final


def _body(
    importer: Any, loop: Loop, captured: Captured, types: Sequence[Any]
) -> tuple[ir.GlobalVar, list[Any]]:
    """Add the function of one trip; returns the types of what it returns, too."""
    bb, trip = importer.bb, tirx.Var("trip", "int64")
    at = relax.Var("at", relax.ShapeType([trip, *captured.symbols]))
    states = [relax.Var(n, ty) for n, ty in zip(loop.state_names, types, strict=True)]
    flag = [relax.Var("condition", relax.TensorType([], "bool"))]
    flag = flag if loop.is_conditional else []

    def build() -> list[Any]:
        given = flag[0] if flag else relax.const(True, "bool")
        condition, after, made = loop.step(trip, given, list(states), captured.values)
        tensors = [bb.normalize(importer.as_tensor(value)) for value in [*after, *made]]
        if not all(isinstance(value.ty, relax.TensorType) for value in tensors):
            raise Unsupported("over sequences whose number of trips is not known")
        after, made = tensors[: len(after)], tensors[len(after) :]
        slices = [op.expand_dims(v, o.axis) for v, o in zip(made, loop.outputs, strict=True)]
        last = [op.reshape(importer.as_tensor(condition), relax.ShapeExpr([]))] if flag else []
        return [bb.emit(value) for value in (*last, *after, *slices)]

    params = [at, *flag, *states, *captured.params]
    gvar, func = add_function(bb, f"{loop.name}_body", params, build)
    return gvar, list(func.ret_ty.fields)


class _Run:
    """The function over all trips."""

    def __init__(
        self,
        bb: Any,
        loop: Loop,
        captured: Captured,
        types: StateTypes,
        body: ir.GlobalVar,
        elements: Sequence[Any],
    ):
        self.bb, self.loop, self.captured, self.types = bb, loop, captured, types
        self.body, self.elements = body, elements
        self.start, self.trips = tirx.Var("start", "int64"), tirx.Var("trips", "int64")
        flag = [relax.Var("condition", relax.TensorType([], "bool"))]
        self.flag = flag if loop.is_conditional else []
        self.states = [
            relax.Var(n, ty) for n, ty in zip(loop.state_names, types.types, strict=True)
        ]

    def emit(self) -> ir.GlobalVar:
        """Add it to the module."""
        bb = self.bb
        at = relax.Var("at", relax.ShapeType([self.start, self.trips, *self.captured.symbols]))
        params = [at, *self.flag, *self.states, *self.captured.params]
        slices = [relax.TensorType(dtype=ty.dtype, ndim=ty.ndim) for ty in self.elements]
        result = [*(var.ty for var in self.flag), *self.types.returned(), *slices]
        ty = relax.TupleType(result)
        function = bb.add_func(
            relax.Function.create_empty(params, ty), identifier(f"{self.loop.name}_run")
        )
        self.function = function
        bb.begin_scope(params)
        bb._begin_binding_block()
        chosen = relax.If(self.trips <= 0, branch(bb, self._none), branch(bb, self._some))
        value = bb.emit(chosen)
        body = bb.normalize(relax.SeqExpr([bb._end_block()], value))
        bb.end_scope()
        kind = CONDITIONAL if self.flag else COUNTED
        func = relax.Function(params, body, ty)
        bb.update_func(function, func.with_attr(LOOP, kind))
        return function

    def matched(self, output: Slices, ty: Any, value: Any) -> Any:
        """Set an output's extents: as many slices as trips where no condition ends the loop."""
        extents = [self._outside(extent) for extent in extents_of(ty)]
        extents = extents or [None] * ty.ndim
        axis = output.axis % ty.ndim
        extents[axis] = None if self.flag else self.loop.trips
        name = identifier(output.name)
        extents = [
            tirx.Var(f"{name}_{i}", "int64") if extent is None else extent
            for i, extent in enumerate(extents)
        ]
        return self.bb.match_cast(value, relax.TensorType(extents, ty.dtype))

    def extent(self, value: Any) -> Any:
        """Return a number of trips as an expression."""
        return tirx.IntImm("int64", value) if isinstance(value, int) else value

    def _outside(self, extent: Any) -> Any:
        """Return an extent that is known outside, too."""
        symbols = tirx.analysis.undefined_vars(extent) if isinstance(extent, ir.Expr) else []
        known = self.captured.symbols
        return extent if all(any(s.same_as(k) for k in known) for s in symbols) else None

    def _call(self, function: Any, at: list[Any], values: Sequence[Any]) -> Any:
        shape = relax.ShapeExpr([*at, *self.captured.symbols])
        return self.bb.emit(relax.Call(function, [shape, *values, *self.captured.params]))

    def _none(self) -> Any:
        slices = []
        for output, ty in zip(self.loop.outputs, self.elements, strict=True):
            extents = [self._outside(extent) for extent in extents_of(ty)] or [None] * ty.ndim
            axis = output.axis % ty.ndim
            if self.flag and any(e is None for i, e in enumerate(extents) if i != axis):
                raise Unsupported(
                    f"whose output {output.name} has extents that are known only at run time",
                    "make the condition constant",
                )
            extents = [0 if e is None or i == axis else e for i, e in enumerate(extents)]
            zeros = op.zeros(relax.ShapeExpr(extents), str(ty.dtype.dtype))
            slices.append(self.bb.emit(zeros))
        return relax.Tuple([*self.flag, *self.states, *slices])

    def _some(self) -> Any:
        if not self.flag:
            return self._several()
        ways = branch(self.bb, self._several), branch(self.bb, self._none)
        return relax.If(self.flag[0], *ways)

    def _several(self) -> Any:
        once = branch(
            self.bb, lambda: self._call(self.body, [self.start], [*self.flag, *self.states])
        )
        return relax.If(self.trips == 1, once, branch(self.bb, self._halves))

    def _halves(self) -> Any:
        half, bb, kept = tirx.floordiv(self.trips, 2), self.bb, len(self.flag) + len(self.states)
        first = self._call(self.function, [self.start, half], [*self.flag, *self.states])
        first = items(bb, first)
        given = first[: len(self.flag)]
        for name, value in zip(self.loop.state_names, first[len(self.flag) : kept], strict=True):
            given.append(shaped(bb, value, name))
        at = [self.start + half, self.trips - half]
        second = self._call(self.function, at, given)
        second = items(bb, second)
        joined = []
        for output, ty, one, two in zip(
            self.loop.outputs, self.elements, first[kept:], second[kept:], strict=True
        ):
            axis = output.axis % ty.ndim
            extents = [self._outside(extent) for extent in extents_of(ty)] or [None] * ty.ndim
            name = identifier(output.name)
            common = [
                tirx.Var(f"{name}_{i}", "int64") if e is None else e for i, e in enumerate(extents)
            ]
            pair = []
            for part, value in (("first", one), ("second", two)):
                common[axis] = tirx.Var(f"{part}_{name}", "int64")
                pair.append(bb.match_cast(value, relax.TensorType(list(common), ty.dtype)))
            pair = pair[::-1] if output.is_reversed else pair
            joined.append(bb.emit(op.concat(pair, axis=axis)))
        return relax.Tuple([*second[:kept], *joined])


# Types of a loop's states, where extents may change from trip to trip.
#
# A trip is converted again and again, with a symbol for each extent that it returned changed, until
# it returns the types that it was given. Dtypes and ranks must stay.
@dataclass
class StateTypes:
    """Types of states, with symbols for the extents that change from trip to trip."""

    names: Sequence[str]
    types: list[Any]
    changing: list[Any] = field(default_factory=list)

    def join(self, found: Sequence[Any]) -> bool:
        """Widen by what a trip returns; returns whether nothing changed."""
        same = True
        for i, (name, old, new) in enumerate(zip(self.names, self.types, found, strict=True)):
            if dtype := _other_dtype(old, new):
                raise Unsupported(
                    f"whose state {name} is {dtype[0]} before a trip and {dtype[1]} after it",
                    "cast it in the body",
                )
            if old.ndim != new.ndim:
                raise Unsupported(f"whose state {name} changes its rank", "keep its rank")
            after = extents_of(new) or [None] * old.ndim
            extents = []
            for axis, (a, b) in enumerate(zip(extents_of(old), after, strict=True)):
                if not self.is_changing(a) and (b is None or not _equal(a, b)):
                    a = tirx.Var(f"{identifier(name)}_{axis}", "int64")
                    self.changing.append(a)
                    same = False
                extents.append(a)
            self.types[i] = relax.TensorType(extents, old.dtype)
        return same

    def is_changing(self, extent: Any) -> bool:
        """Tell whether an extent is one of those symbols."""
        return any(symbol.same_as(extent) for symbol in self.changing)

    def returned(self) -> list[Any]:
        """Return the types of the results of the function over all trips."""
        return [
            relax.TensorType(dtype=ty.dtype, ndim=ty.ndim)
            if any(map(self.is_changing, extents_of(ty)))
            else ty
            for ty in self.types
        ]


def _other_dtype(old: Any, new: Any) -> tuple[str, str] | None:
    pair = str(old.dtype.dtype), str(new.dtype.dtype)
    return pair if pair[0] != pair[1] else None


def _equal(a: Any, b: Any) -> bool:
    return bool(sym.Analyzer().can_prove_equal(a, b))
