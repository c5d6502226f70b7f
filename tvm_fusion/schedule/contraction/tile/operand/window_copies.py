"""Addresses and predicates of a thread's copies from an image, over which a window moves.

    before the loop over K, for each copy of a thread:
      origin = address of the pixel's first term
      inside = a bit for each tap of the window: whether the pixel's is in the image
    in the loop:
      is_copied = inside >> tap & 1;  address = (origin + step(k)) * is_copied        32 bits

An address is a sum of what a row of A and what a term of K contribute. Computed as a whole it is
divisions in 64 bits for each copy, more instructions than the products of a tile. Comparisons in
the loop become three branches for each copy, around which nothing is scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import ir, sym, tirx

from .....core.tir.expressions import load, variables
from .....core.tir.loops import constant, index, local, product, sequence, substitute
from .....program.stage import Axis
from ....index.address import offset

_MOST = 1 << 31
_WORDS = (("int32", 31), ("int64", 63))  # and the bits that they have besides the sign


class WindowCopies:
    """The copies of a thread of an operand's tile.

    Parameters
    ----------
    first
        What a copy begins with, over rows, ``outer`` and ``vector``.
    step
        What ``vector`` adds to its address.
    taps
        For each tap of the window, where it is in the image, over rows.
    vector
        The number of the copy along K.
    per_tap
        Copies along K that are of one tap.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(
        self, first: ir.TensorLoad, step: ir.Expr, taps: Sequence[ir.Expr], vector: ir.Var,
        per_tap: int, copies: int,
    ) -> None:  # fmt: skip
        self._first, self._step, self._taps = first, step, taps
        self._vector, self._per_tap = vector, per_tap
        self._word = next(word for word, bits in _WORDS if len(taps) <= bits)
        self._origin = local("origin", [copies], "int32")
        self._inside = local("inside", [copies], self._word)
        self.buffers = [self._origin, self._inside]

    @classmethod
    def of(
        cls, first: ir.TensorLoad, guard: ir.Expr, axes: Sequence[Axis], vector: ir.Var,
        vectors: int, per_tap: int, copies: int,
    ) -> WindowCopies | None:  # fmt: skip
        """Separate rows from terms.

        Parameters
        ----------
        guard
            Where a copy is not zero, over rows and ``vector``; alike for copies of one tap.

        Returns
        -------
        WindowCopies or None
            ``None`` where an address is no sum of both or too large, or the window too large.
        """
        size = constant(product(first.source.ty.shape))
        if size is None or size >= _MOST or vectors // per_tap > _WORDS[-1][1]:
            return None
        analyzer = sym.Analyzer()
        place = offset(first.source, first.indices)
        step = analyzer.simplify(place - substitute(place, {vector: index(0)}))
        rows = {a.var for a in axes}
        if not variables(step) <= {vector} or not variables(guard) <= {vector, *rows}:
            return None
        for axis in axes:
            if constant(axis.extent) is not None:
                analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
        taps = [
            analyzer.simplify(substitute(guard, {vector: index(number * per_tap)}))
            for number in range(vectors // per_tap)
        ]
        other = {v: tirx.Var("v", "int32") for v in (vector, *rows)}
        if any(narrowed(x, other) is None for x in (step, *taps)):
            return None
        return cls(first, step, taps, vector, per_tap, copies)

    def prepare(self, copy: ir.Expr, row: Mapping[ir.Var, ir.Expr], is_row: ir.Expr) -> tirx.Stmt:
        """Compute what does not depend on K, of one copy, of a row that may not exist."""
        place = offset(self._first.source, self._first.indices)
        origin = substitute(place, {**row, self._vector: index(0)})
        near = {v: tirx.Cast("int32", x) for v, x in row.items()}
        inside: ir.Expr = tirx.const(0, self._word)
        for number, tap in enumerate(self._taps):
            condition = narrowed(tap, near)
            assert condition is not None
            bit, zero = tirx.const(1 << number, self._word), tirx.const(0, self._word)
            inside = inside + tirx.Select(condition, bit, zero)
        inside = tirx.Select(is_row, inside, tirx.const(0, self._word))
        return sequence(
            [
                tirx.BufferStore(self._origin, tirx.Cast("int32", origin), [copy]),
                tirx.BufferStore(self._inside, inside, [copy]),
            ]
        )

    def at(self, copy: ir.Expr, vector: ir.Expr) -> tuple[ir.TensorLoad, ir.Expr]:
        """Return the first element of a copy, and whether it is not zero."""
        near = tirx.Cast("int32", vector)
        step = narrowed(self._step, {self._vector: near})
        assert step is not None
        tap = tirx.Cast(self._word, tirx.floordiv(near, tirx.const(self._per_tap, "int32")))
        bit = tirx.bitwise_and(
            tirx.shift_right(load(self._inside, [copy]), tap), tirx.const(1, self._word)
        )
        # Of the first element where it is not read: branches would select it.
        place = (load(self._origin, [copy]) + step) * tirx.Cast("int32", bit)
        zeros = [index(0)] * (len(self._first.indices) - 1)
        source = load(self._first.source, [*zeros, tirx.Cast("int64", place)])
        return source, bit != tirx.const(0, self._word)


_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max,
    tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or,
)  # fmt: skip


def narrowed(expr: ir.Expr, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr | None:
    """Write an expression of indices in 32 bits; ``None`` for what is none.

    Parameters
    ----------
    expr
        Over int64 variables.
    values
        Each of them, int32.
    """
    if isinstance(expr, ir.Var):
        return values.get(expr)
    if isinstance(expr, tirx.IntImm):
        value = int(expr.value)
        kind = str(expr.ty.dtype)
        return tirx.IntImm("int32" if kind == "int64" else kind, value) if value < _MOST else None
    if isinstance(expr, tirx.Not):
        inner = narrowed(expr.a, values)
        return None if inner is None else tirx.Not(inner)
    if isinstance(expr, _BINARY):
        a, b = narrowed(expr.a, values), narrowed(expr.b, values)
        return None if a is None or b is None else type(expr)(a, b)
    return None
