"""Slices that a function writes along one axis of an input, as they are imported.

one slice:  where(0 .. extent - 1 == number, values, state)
several:    place = max(where(0 .. extent - 1 == numbers, 0 .. count - 1, -1))    the last hit
            where(place >= 0, take(values, maximum(place, 0)), state)
"""

from collections import Counter
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from tvm import ir, relax, tirx
from tvm_ffi import structural_equal

from ...core.tir.loops import constant, index
from .slices import Slice

_WHERE, _EQUAL, _LESS, _ADD, _AT_LEAST, _TAKE, _MAXIMUM, _MAX, _ARANGE, _CAST = (
    ir.Op.get(f"relax.{name}")
    for name in (
        *("where", "equal", "less", "add", "greater_equal", "take", "maximum", "max", "arange"),
        "astype",
    )
)
_HALF = ("float16", "bfloat16")  # which float32 holds as they are
_RESHAPES = tuple(ir.Op.get(f"relax.{n}") for n in ("reshape", "expand_dims"))


@dataclass(frozen=True)
class Write:
    """Slices of an input, as a function's bindings have them."""

    param: ir.Var
    # The input's next value, and the variable of the ``where`` that computes it: another one where
    # that is of a wider dtype.
    result: ir.Var
    at: ir.Var
    number: relax.Expr
    values: relax.Expr
    slice: Slice


class Bindings:
    """What the variables of a function are bound to.

    Attributes
    ----------
    table : dict of Var to Expr
        Of all blocks.
    uses : Counter of Var
        In how many values each is mentioned.
    """

    def __init__(self, func: relax.Function) -> None:
        self.table: dict[ir.Var, relax.Expr] = {
            b.var: b.value for block in func.body.blocks for b in block.bindings
        }
        self.uses = Counter(v for value in self.table.values() for v in mentioned(value))
        self._body = func.body.body

    def result(self, output: int) -> relax.Expr:
        """Find the variable of an output."""
        result = self._body
        whole = self.value(result)
        if isinstance(whole, relax.Tuple):
            result = whole.fields[output]
        while isinstance(self.table.get(result), ir.Var):
            result = self.table[result]
        return result

    def write(self, param: ir.Var, result: relax.Expr) -> Write | None:
        """Read ``where(all numbers == number, values, param)``, and the same of several numbers."""
        at, value = result, self.table.get(result)
        if _is_call(value, _CAST):
            at = value.args[0]
            value = self.table.get(at)
        if not _is_call(value, _WHERE) or not self._is_old(value.args[2], param):
            return None
        hit, values = value.args[:2]
        axis = _only_axis(hit.ty, param.ty)
        if axis is None:
            return None
        found = self.value(self._reshaped(hit))
        if _is_call(found, _AT_LEAST):
            of_several = self._of_several(found, values, axis)
            if of_several is None:
                return None
            found, values = of_several
        if not _is_call(found, _EQUAL):
            return None
        numbers, number = (self._reshaped(arg) for arg in found.args)
        extent = int(param.ty.shape[axis])
        if constant(self.counted(numbers)) != extent:
            return None
        start = self.before_shift(number, extent)
        number = self._given(number if start is None else start)
        if not all(map(_is_one, number.ty.shape)) and len(number.ty.shape) != 1:
            return None
        write = Slice(param.ty, values.ty, number.ty, axis, start is not None)
        return Write(param, result, at, number, values, write)

    def _given(self, number: relax.Expr) -> relax.Expr:
        """Find the parameter that a number is: ``param[0] + arange(1)`` is known from the start."""
        found, value = number, self.value(number)
        while isinstance(value, ir.Call):
            args = [a for a in value.args if not self._is_zero(a)]
            if value.op not in (*_RESHAPES, _ADD, _TAKE) or not args:
                return number
            if value.op not in _RESHAPES and len(args) != 1:
                return number
            found, value = args[0], self.value(args[0])
        is_one = all(map(_is_one, found.ty.shape or ()))
        return found if found.ty.dtype == number.ty.dtype and is_one else number

    def _is_zero(self, expr: relax.Expr) -> bool:
        value = self.value(expr)
        if isinstance(value, tirx.IntImm):
            return int(value) == 0
        return isinstance(value, ir.GenericConst) and not value.value.numpy().any()

    def _is_old(self, expr: relax.Expr, param: ir.Var) -> bool:
        """Whether an operand is a parameter, or that in a wider dtype for this use alone."""
        value = self.table.get(expr)
        if _is_call(value, _CAST) and self.uses[expr] == 1:
            kinds = [str(x.ty.dtype) for x in (param, expr)]
            return value.args[0].same_as(param) and kinds[0] in _HALF and kinds[1] == "float32"
        return expr.same_as(param)

    def _of_several(
        self, found: ir.Call, values: relax.Expr, axis: int
    ) -> tuple[relax.Expr, relax.Expr] | None:
        """Read ``place >= 0`` and ``take(values, maximum(place, 0), axis)`` of places in a list.

        ``place = max(where(all numbers == listed numbers, 0 .. count - 1, -1))``: the last place
        at which a number is listed. Gives the comparison, and the values in their order.
        """
        taken = self.value(values)
        if not _is_number(found.args[1], 0) or not _is_call(taken, _TAKE):
            return None
        places = self.value(taken.args[1])
        is_clamped = _is_call(places, _MAXIMUM) and _is_number(places.args[1], 0)
        if not is_clamped or not places.args[0].same_as(found.args[0]):
            return None
        if taken.attrs.axis is None or int(taken.attrs.axis) != axis:
            return None
        last = self.value(found.args[0])
        if not _is_call(last, _MAX) or [int(a) for a in last.attrs.axis] != [1]:
            return None
        listed = self.value(last.args[0])
        if not _is_call(listed, _WHERE) or not _is_number(listed.args[2], -1):
            return None
        count = taken.args[0].ty.shape[axis]
        counted = self.counted(listed.args[1])
        if counted is None or not structural_equal(counted, index(count)):
            return None
        return self.value(listed.args[0]), taken.args[0]

    def counted(self, expr: relax.Expr) -> ir.Expr | None:
        """Return n where a tensor is 0, 1, ... n - 1, of any shape with one axis."""
        value = self.value(self._reshaped(expr))
        if isinstance(value, ir.GenericConst):
            numbers = value.value.numpy().ravel()
            return index(numbers.size) if np.array_equal(numbers, range(numbers.size)) else None
        if not _is_call(value, _ARANGE):
            return None
        start, end, step = value.args
        return end if constant(start) == 0 and constant(step) == 1 else None

    def before_shift(self, number: relax.Expr, extent: int | None = None) -> relax.Expr | None:
        """Read ``where(number < 0, number + extent, number)``, of a certain extent or of any."""
        where = self.value(number)
        if not _is_call(where, _WHERE):
            return None
        less, shifted = self.value(where.args[0]), self.value(where.args[1])
        plain = where.args[2]
        if not _is_call(less, _LESS) or not _is_call(shifted, _ADD):
            return None
        is_shift = _is_number(less.args[1], 0)
        is_shift &= extent is None or _is_number(shifted.args[1], extent)
        same = less.args[0].same_as(plain) and shifted.args[0].same_as(plain)
        return plain if is_shift and same else None

    def value(self, expr: relax.Expr) -> relax.Expr:
        """Follow variables to what they are bound to, or to a parameter."""
        while isinstance(expr, ir.Var) and expr in self.table:
            expr = self.table[expr]
        return expr

    def _reshaped(self, expr: relax.Expr) -> relax.Expr:
        """Look through reshapes; a variable stays where its value is something else."""
        value = self.value(expr)
        while isinstance(value, ir.Call) and value.op in _RESHAPES:
            expr = value.args[0]
            value = self.value(expr)
        return expr


def _only_axis(hit: relax.TensorType, state: relax.TensorType) -> int | None:
    """Find the one axis of a state along which a condition is not the same everywhere."""
    wide = [i for i, extent in enumerate(hit.shape) if not _is_one(extent)]
    if len(wide) != 1:
        return None
    axis = wide[0] + len(state.shape) - len(hit.shape)
    return axis if isinstance(state.shape[axis], tirx.IntImm) else None


def mentioned(value: relax.Expr) -> list[ir.Var]:
    """List the variables in a value."""
    return list(relax.analysis.free_vars(value))


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _is_call(value: object, op: ir.Op) -> TypeGuard[ir.Call]:
    return isinstance(value, ir.Call) and value.op == op


def _is_number(expr: relax.Expr, number: int) -> bool:
    return isinstance(expr, ir.GenericConst) and expr.value.numpy().tolist() == number
