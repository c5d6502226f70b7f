"""What a contraction is made of: two operands, a sum, and what is done with the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ...fusion.expressions import loads, variables
from ...fusion.program import Program, Stage
from ...fusion.reaxe import reaxe
from ..address import conditional_loads
from ..loops import constant, index, substitute
from ..template import Refusal

_UNBOUNDED = 1 << 40  # larger bounds mean that the analyzer knows none


@dataclass(frozen=True)
class Result:
    """``buffer[indices] = value`` for every element of the contraction that meets a condition.

    Attributes
    ----------
    buffer : Var
        An output.
    indices : tuple of PrimExpr
        Over the contraction's axes.
    value : PrimExpr
        Over the contraction's axes; ``total`` stands for the sum.
    condition : PrimExpr or None
        Which elements it takes; ``None``: all.
    """

    buffer: ir.Var
    indices: tuple[ir.Expr, ...]
    value: ir.Expr
    condition: ir.Expr | None


@dataclass(frozen=True)
class SumOfProducts:
    """``total[axes] = init + sum over reduce of left * right``, then results.

    Attributes
    ----------
    stage : Stage
        The reduction as the program has it.
    left, right : PrimExpr
        The factors, over axes and reduction axes.
    dtype : str
        Type of the sum.
    total : Var
        Stands for the sum in the results.
    results : tuple of Result
        What is written, in order.
    """

    stage: Stage
    left: ir.Expr
    right: ir.Expr
    dtype: str
    total: ir.Var
    results: tuple[Result, ...]

    @property
    def initial(self) -> ir.Expr:
        """What the sum starts from."""
        return self.stage.init[0] if self.stage.init else tirx.const(0, self.dtype)

    def term(self) -> ir.Expr:
        """One summand, in the type of the sum."""
        target = self.stage.targets[0]
        update = self.stage.values[0]
        own = update.a if _is_load_of(update.a, target) else update.b
        return update.b if own.same_as(update.a) else update.a


def analyse(program: Program, stages: Sequence[Stage]) -> SumOfProducts | Refusal:
    """Read a program as one contraction and maps of its result.

    Parameters
    ----------
    program : Program
        With one reduction.
    stages : sequence of Stage
        The program's, without internal maps.

    Returns
    -------
    SumOfProducts or Refusal
        The refusal says what is different.
    """
    reductions = [s for s in program.stages if not s.is_map]
    if len(reductions) != 1:
        return Refusal("not_mine", f"There are {len(reductions)} reductions, not one.")
    stage = reductions[0]
    factors = _factors(stage)
    if factors is None:
        return Refusal("not_mine", f"{stage.name} is no sum over products of two operands.")
    for part in program.stages:
        if part is stage:
            break
        if part.targets[0] in {x.source for f in factors for x in loads(f)}:
            return Refusal(
                "prologue_recomputed",
                f"{stage.name} would compute {part.name} again for every element it adds to.",
            )
    target = stage.targets[0]
    total = tirx.Var("total", str(target.ty.dtype))
    results = []
    for part in stages:
        if part.is_map:
            result = _result(part, stage, total)
            if isinstance(result, Refusal):
                return result
            results.append(result)
    if target in program.outputs:
        results.append(Result(target, stage.indices[0], total, None))
    return SumOfProducts(stage, *factors, str(target.ty.dtype), total, tuple(results))


def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums products of two operands that differ."""
    factors = None if stage.is_map else _factors(stage)
    return factors is not None and not tvm_ffi.structural_equal(*factors)


def _factors(stage: Stage) -> tuple[ir.Expr, ir.Expr] | None:
    """Split ``T[..] + a * b`` into a and b, one of which must miss an axis that the other has."""
    update = stage.values[0]
    if len(stage.targets) != 1 or not isinstance(update, tirx.Add):
        return None
    first = stage.init[0] if stage.init else None
    if not isinstance(first, (tirx.IntImm, tirx.FloatImm)) or float(first.value) != 0:
        return None
    target = stage.targets[0]
    if _is_load_of(update.a, target):
        term = update.b
    elif _is_load_of(update.b, target):
        term = update.a
    else:
        return None
    while isinstance(term, tirx.Cast):
        term = term.value
    if not isinstance(term, tirx.Mul):
        return None
    left, right = term.a, term.b
    if not loads(left) or not loads(right):
        return None
    axes = {a.var for a in stage.axes}
    alone = [axes - variables(left), axes - variables(right)]
    return (left, right) if alone[0] or alone[1] else None


def _result(part: Stage, stage: Stage, total: ir.Var) -> Result | Refusal:
    """Express a map of the sum over the sum's own axes."""
    target = stage.targets[0]
    reads = [x for v in part.values for x in loads(v) if x.source.same_as(target)]
    elsewhere = Refusal(
        "epilogue_elsewhere",
        f"{part.name} does not read {stage.name}'s result at its own position.",
    )
    if not reads:
        return Refusal("unrelated_output", f"{part.name} does not read {stage.name}'s result.")
    if len(part.targets) != 1 or any(not _same_place(reads[0], x) for x in reads[1:]):
        return elsewhere
    # Dimension of the sum's buffer to the sum's axis, and what is read along it.
    axis_of = {d: v for d, v in enumerate(stage.indices[0]) if isinstance(v, ir.Var)}
    extents = {a.var: a.extent for a in stage.axes}
    if set(axis_of.values()) != set(extents) or any(loads(i) for i in reads[0].indices):
        return elsewhere
    axes = [a for a in part.axes if constant(a.extent) != 1]
    zeros = {a.var: index(0) for a in part.axes}
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    conditional = [x for v in part.values for x in conditional_loads(v)]
    reads_sometimes = any(x.source.same_as(target) for x in conditional)
    rows, sizes, targets, conditions = [], [], [], []
    for dim, axis in axis_of.items():
        read = reads[0].indices[dim]
        shift = analyzer.simplify(substitute(read, zeros))
        if not variables(read) & set(zeros):
            if constant(extents[axis]) != 1:
                conditions.append(tirx.EQ(axis, read))
            continue
        rows.append(analyzer.simplify(read - shift))
        largest = analyzer.const_int_bound(rows[-1]).max_value
        sizes.append(index(largest + 1) if largest < _UNBOUNDED else index(extents[axis]))
        if isinstance(rows[-1], ir.Var):
            sizes[-1] = index(next(a.extent for a in axes if a.var.same_as(rows[-1])))
        targets.append(analyzer.simplify(axis - shift))
        inside = tirx.And(shift >= 0, shift + sizes[-1] <= index(extents[axis]))
        if reads_sometimes and not analyzer.can_prove(inside):
            return elsewhere  # padding: who walks the sum's elements never comes to the border
        if not analyzer.can_prove_equal(shift, 0):
            conditions.append(tirx.LE(shift, axis))
        if not analyzer.can_prove_equal(shift + sizes[-1], extents[axis]):
            conditions.append(tirx.LT(axis, shift + sizes[-1]))
    found = reaxe(axes, rows, sizes, complete=True)
    if found is None:
        return elsewhere
    counted = {a.var: t for a, t in zip(found.axes, targets, strict=True)}
    places = {**zeros, **counted}
    if found.inverse:
        places |= {v: substitute(e, counted) for v, e in found.inverse.items()}
    condition = None
    for one in conditions:
        condition = one if condition is None else tirx.And(condition, one)

    def swap(load: ir.TensorLoad) -> ir.Expr:
        return total if load.source.same_as(target) else load

    value = substitute(substitute(part.values[0], {}, swap), places)
    indices = tuple(substitute(i, places) for i in part.indices[0])
    return Result(part.targets[0], indices, value, condition)


def _is_load_of(expr: ir.Expr, buffer: ir.Var) -> bool:
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)


def _same_place(a: ir.TensorLoad, b: ir.TensorLoad) -> bool:
    return tvm_ffi.structural_equal(list(a.indices), list(b.indices))
