"""In-place inputs: a function writes the next slice of a cache into the input's memory.

What is written must be a slice along one axis whose number is known at run time, as
``cache.index_copy(axis, position, values)`` of one position is imported: it then costs the slice's
bytes, not the cache's, and what reads the cache afterwards, such as attention, reads the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.target import Target

from ..._tvm.buffer import declare
from ...core.loops import Body, block, constant, coordinates, loop, product, sequence, when
from ...core.untouched import SCHEDULED
from ...errors import UserError
from ...signature import Signature
from ..cuda_graph.copies import in_blocks, side_by_side
from ..cuda_graph.static_inputs import check_inputs

_WHERE, _EQUAL, _LESS, _ADD = (ir.Op.get(f"relax.{n}") for n in ("where", "equal", "less", "add"))
_RESHAPES = tuple(ir.Op.get(f"relax.{n}") for n in ("reshape", "expand_dims"))


def update_in_place(
    mod: tvm.IRModule, signatures: Mapping[str, Signature], names: Mapping[str, str]
) -> tvm.IRModule:
    """Let functions write results over inputs.

    Parameters
    ----------
    mod : tvm.IRModule
        The functions that ``signatures`` describes, as imported.
    names : mapping of str to str
        By input, the output whose values it is to hold; a function need not have it.

    Returns
    -------
    tvm.IRModule
        Those inputs are static inputs, too.

    Raises
    ------
    UserError
        For a name that no function knows; for an output that is something else than its input with
        one slice written, and for an input that is read for anything else.
    """
    check_inputs(signatures, names)
    for function, signature in signatures.items():
        pairs = {i: names[s.name] for i, s in enumerate(signature.inputs) if s.name in names}
        if pairs:
            mod = _Function(mod, function, signature, pairs).written()
    return mod


@dataclass
class _Write:
    """A slice of an input, as a function's bindings have it."""

    param: ir.Var
    number: relax.Expr
    values: relax.Expr
    slice: Slice


@dataclass
class _Function:
    """One function, and the inputs that it is to write to, with their outputs' names."""

    mod: tvm.IRModule
    name: str
    signature: Signature
    pairs: dict[int, str]
    table: dict[ir.Var, relax.Expr] = field(default_factory=dict)

    def written(self) -> tvm.IRModule:
        """Write the module in which it does."""
        gvar = self.mod.get_global_var(self.name)
        func = self.mod[gvar]
        if len(func.body.blocks) != 1:
            raise UserError(f"function {self.name!r} writes to inputs and branches", "no branches")
        (block,) = func.body.blocks
        self.table = {b.var: b.value for b in block.bindings}
        writes: dict[ir.Var, _Write] = {}
        uses = Counter(v for value in self.table.values() for v in _mentioned(value))
        for i, output in self.pairs.items():
            found = self._result(func, output)
            write = self._match(func.params[i], found)
            if write is None or uses[func.params[i]] != 1:
                raise _refusal(self.signature.inputs[i].name, output)
            writes[found] = write
        builder = relax.BlockBuilder(self.mod.clone())
        bindings = _grouped(builder, block.bindings, writes)
        body = relax.SeqExpr([relax.DataflowBlock(bindings)], func.body.body)
        whole = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        mod = builder.get()
        mod.update_func(mod.get_global_var(self.name), whole)
        return relax.transform.Normalize()(mod)

    def _result(self, func: relax.Function, output: str) -> relax.Expr:
        """Find the variable of an output."""
        names = [spec.name for spec in self.signature.outputs]
        if output not in names:
            raise UserError(f"there is no output {output!r}", f"one of {', '.join(names)}")
        result = func.body.body
        whole = self._value(result)
        if isinstance(whole, relax.Tuple):
            result = whole.fields[names.index(output)]
        while isinstance(self.table.get(result), ir.Var):
            result = self.table[result]
        return result

    def _match(self, param: ir.Var, result: relax.Expr) -> _Write | None:
        """Read ``where(all numbers == number, values, param)``."""
        value = self.table.get(result)
        if not _is_call(value, _WHERE) or not value.args[2].same_as(param):
            return None
        hit, values = value.args[:2]
        axis = _only_axis(hit.ty, param.ty)
        equal = self._value(self._reshaped(hit))
        if axis is None or not _is_call(equal, _EQUAL):
            return None
        numbers, number = (self._reshaped(arg) for arg in equal.args)
        if not isinstance(numbers, ir.GenericConst):
            return None
        counted = numbers.value.numpy().reshape(-1)
        if not np.array_equal(counted, np.arange(int(param.ty.shape[axis]))):
            return None
        start = self._before_shift(number, len(counted))
        number = number if start is None else start
        if not all(map(_is_one, number.ty.shape)):
            return None
        write = Slice(param.ty, number.ty, values.ty, axis, start is not None)
        return _Write(param, number, values, write)

    def _before_shift(self, number: relax.Expr, extent: int) -> relax.Expr | None:
        """Read ``where(number < 0, number + extent, number)``."""
        where = self._value(number)
        if not _is_call(where, _WHERE):
            return None
        less, shifted = self._value(where.args[0]), self._value(where.args[1])
        plain = where.args[2]
        if not _is_call(less, _LESS) or not _is_call(shifted, _ADD):
            return None
        is_shift = _is_number(less.args[1], 0) and _is_number(shifted.args[1], extent)
        same = less.args[0].same_as(plain) and shifted.args[0].same_as(plain)
        return plain if is_shift and same else None

    def _value(self, expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, ir.Var) and expr in self.table:
            expr = self.table[expr]
        return expr

    def _reshaped(self, expr: relax.Expr) -> relax.Expr:
        """Look through reshapes; a variable stays where its value is something else."""
        value = self._value(expr)
        while isinstance(value, ir.Call) and value.op in _RESHAPES:
            expr = value.args[0]
            value = self._value(expr)
        return expr


def _grouped(
    builder: relax.BlockBuilder, bindings: list[relax.Binding], writes: Mapping[ir.Var, _Write]
) -> list[relax.Binding]:
    """Write the bindings: neighbouring writes are one call, in front of what first reads them."""
    done: list[relax.Binding] = []
    waiting: dict[ir.Var, _Write] = {}

    def flush() -> None:
        if waiting:
            done.extend(_call(builder, dict(waiting)))
            waiting.clear()

    for binding in bindings:
        if waiting and not waiting.keys().isdisjoint(_mentioned(binding.value)):
            flush()
        if binding.var in writes:
            waiting[binding.var] = writes[binding.var]
        else:
            done.append(binding)
    flush()
    return done


def _call(builder: relax.BlockBuilder, writes: Mapping[ir.Var, _Write]) -> list[relax.Binding]:
    found = list(writes.values())
    kernel = write_slices([w.slice for w in found], Target.current(allow_none=False))
    gvar = builder.add_func(kernel, "write_slices")
    args = [*(w.param for w in found), *(e for w in found for e in (w.number, w.values))]
    types = [w.param.ty for w in found]
    indices = list(range(len(found)))
    if len(found) == 1:
        (var,) = writes
        call = relax.op.call_tir_inplace(gvar, relax.Tuple(args), indices, types[0])
        return [relax.VarBinding(var, call)]
    call = relax.op.call_tir_inplace(gvar, relax.Tuple(args), indices, types)
    whole = relax.DataflowVar("written", relax.TupleType(types))
    items = [relax.VarBinding(v, relax.TupleGetItem(whole, i)) for i, v in enumerate(writes)]
    return [relax.VarBinding(whole, call), *items]


def _only_axis(hit: relax.TensorType, state: relax.TensorType) -> int | None:
    """Find the one axis of a state along which a condition is not the same everywhere."""
    wide = [i for i, extent in enumerate(hit.shape) if not _is_one(extent)]
    if len(wide) != 1:
        return None
    axis = wide[0] + len(state.shape) - len(hit.shape)
    return axis if isinstance(state.shape[axis], tirx.IntImm) else None


def _mentioned(value: relax.Expr) -> list[ir.Var]:
    return list(relax.analysis.free_vars(value))


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _is_call(value: object, op: ir.Op) -> TypeGuard[ir.Call]:
    return isinstance(value, ir.Call) and value.op == op


def _is_number(expr: relax.Expr, number: int) -> bool:
    return isinstance(expr, ir.GenericConst) and expr.value.numpy().tolist() == number


def _refusal(name: str, output: str) -> UserError:
    return UserError(
        f"output {output!r} is not input {name!r} with one slice written",
        "what index_copy, of one position, makes of an input that nothing else reads",
    )


# Write one slice of each of several tensors in place, in one launch (KV-cache updates).
#
# GPU:  blocks of 256 threads for each slice, one slice's after the other's (see copies.py)
# CPU:  a loop for each slice, one after the other
#     vector i of slice s:  if 0 <= number[s] < extent[s]:
#                               state[s][.., number[s], .., vector i] = values[s][.., vector i]
@dataclass(frozen=True)
class Slice:
    """``state[..., number, ...] = values``, along one axis.

    Attributes
    ----------
    state, number, values : TensorType
        What is written to; one whole number, and the values, whose extents are the state's or 1.
    axis : int
        Of the state.
    counts_from_end : bool
        Whether a negative number counts from the end; otherwise it writes nothing, as all numbers
        do that the axis does not have.
    """

    state: relax.TensorType
    number: relax.TensorType
    values: relax.TensorType
    axis: int
    counts_from_end: bool

    @property
    def extents(self) -> list[ir.Expr]:
        """Of what is written: 1 along the axis."""
        extents = list(self.state.shape.values)
        extents[self.axis] = tirx.IntImm("int64", 1)
        return extents

    @property
    def width(self) -> int:
        """Contiguous elements that a thread writes."""
        last, given = (constant(ty.shape.values[-1]) for ty in (self.state, self.values))
        if last is None or last != given or self.axis == len(self.extents) - 1:
            return 1
        return side_by_side(last, str(self.state.dtype))


def write_slices(slices: Sequence[Slice], target: Target) -> tirx.PrimFunc:
    """Make the kernel.

    Returns
    -------
    PrimFunc
        Scheduled; over the states, then number and values of each.
    """
    states, numbers, values = (
        [_declare(getattr(s, name), f"{name}{i}") for i, s in enumerate(slices)]
        for name in ("state", "number", "values")
    )
    rows = [_row(*parts) for parts in zip(slices, states, numbers, values, strict=True)]
    counts = [product([*s.extents[:-1], tirx.floordiv(s.extents[-1], s.width)]) for s in slices]
    pieces = list(zip(counts, rows, strict=True))
    if "gpu" in target.keys:
        body = in_blocks(pieces)
    else:
        body = sequence([loop("vector", count, row) for count, row in pieces])
    params = [*states, *(p for pair in zip(numbers, values, strict=True) for p in pair)]
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc(params, block("root", body)).with_attrs(attrs)


def _declare(ty: relax.TensorType, name: str) -> ir.Var:
    return declare(ty.shape.values, ty.dtype, name)


def _row(one: Slice, state: ir.Var, number: ir.Var, values: ir.Var) -> Body:
    """Write one vector of a slice."""
    extent = one.state.shape.values[one.axis]
    place = tirx.Cast("int64", tirx.BufferLoad(number, [0] * len(number.shape)))
    if one.counts_from_end:
        place = tirx.Select(place < 0, place + extent, place)
    extents = one.extents
    extents[-1] = tirx.floordiv(extents[-1], one.width)

    def row(vector: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            where = coordinates(vector, extents)
            where[-1] = where[-1] * one.width + lane
            read = where[len(where) - len(values.shape) :]
            read = [
                tirx.IntImm("int64", 0) if constant(e) == 1 else i
                for i, e in zip(read, values.shape, strict=True)
            ]
            where[one.axis] = place
            return tirx.BufferStore(state, tirx.BufferLoad(values, read), where)

        inside = tirx.And(place >= 0, place < extent)
        return when(inside, loop("lane", one.width, element, tirx.ForKind.VECTORIZED))

    return row
