"""Epilogues of a contraction: maps of its sum, reindexed to the sum's own axes."""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, index, substitute
from ....program.stage import Stage
from ....program.stages.reindex import reindex
from ...index.address import conditional_loads

_UNBOUNDED = 1 << 40  # larger bounds are none


@dataclass(frozen=True)
class Result:
    """``buffer[indices] = value`` for every element of the contraction that meets a condition."""

    buffer: ir.Var  # an output
    indices: tuple[ir.Expr, ...]  # over the contraction's axes
    value: ir.Expr  # over the contraction's axes; ``total`` stands for the sum
    condition: ir.Expr | None  # the elements that it has; ``None``: all
    part: int | None = None  # the part of a column split that it is of


def result_of(part: Stage, stage: Stage, total: ir.Var) -> Result | Refusal:
    """Reindex a map of the sum to the sum's own axes."""
    target = stage.targets[0]
    reads = reads_of(part, target)
    if not reads:
        return Refusal(
            "unrelated_output", f"{part.title} does not read what {stage.title} computes."
        )
    if len(part.targets) != 1 or any(not _same_place(reads[0], x) for x in reads[1:]):
        return elsewhere(part, stage)
    found = reindexed(part, stage, reads[0])
    if found is None:
        return elsewhere(part, stage)

    def swap(load: ir.TensorLoad) -> ir.Expr:
        return total if load.source.same_as(target) else load

    return Result(found.buffer, found.indices, substitute(found.value, {}, swap), found.condition)


def elsewhere(part: Stage, stage: Stage) -> Refusal:
    """Refuse a map of which not every element needs one element of the sum, each another one."""
    target = stage.targets[0]
    reads = reads_of(part, target)
    sometimes = [x for v in part.values for x in conditional_loads(v) if x.source.same_as(target)]
    result = f"the result of {stage.title}"
    if any(not _same_place(reads[0], x) for x in reads[1:]):
        sentence = f"An element of {part.title} needs more than one element of {result}."
    elif sometimes or not reads:
        sentence = f"Some elements of {part.title} need no element of {result}."
    else:
        sentence = f"{part.title} does not read every element of {result} exactly once."
    return Refusal("epilogue_elsewhere", sentence)


def reads_of(part: Stage, target: ir.Var) -> list[ir.TensorLoad]:
    """List the loads of the sum."""
    return [x for v in part.values for x in loads(v) if x.source.same_as(target)]


def reindexed(part: Stage, stage: Stage, own: ir.TensorLoad) -> Result | None:
    """Reindex a map by the elements of the sum that ``own`` reads.

    Returns
    -------
    Result or None
        Over the sum's axes, with its loads of the sum unchanged. ``None`` where several points read
        one element.
    """
    target = stage.targets[0]
    # Dimensions of the sum's buffer, and the sum's axis of each.
    axis_of = {d: v for d, v in enumerate(stage.indices[0]) if isinstance(v, ir.Var)}
    extents = {a.var: a.extent for a in stage.axes}
    if set(axis_of.values()) != set(extents) or any(loads(i) for i in own.indices):
        return None
    axes = [a for a in part.axes if constant(a.extent) != 1]
    zeros = {a.var: index(0) for a in part.axes}
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    conditional = [x for v in part.values for x in conditional_loads(v)]
    reads_sometimes = any(x.source.same_as(target) for x in conditional)
    rows, sizes, targets, conditions = [], [], [], []
    for dim, axis in axis_of.items():
        read = own.indices[dim]
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
            return None  # padding: a loop over the sum's elements never visits the border
        if not analyzer.can_prove_equal(shift, 0):
            conditions.append(tirx.LE(shift, axis))
        if not analyzer.can_prove_equal(shift + sizes[-1], extents[axis]):
            conditions.append(tirx.LT(axis, shift + sizes[-1]))
    found = reindex(axes, rows, sizes, complete=True)
    if found is None:
        return None
    counted = {a.var: t for a, t in zip(found.axes, targets, strict=True)}
    places = {**zeros, **counted}
    if found.inverse:
        places |= {v: substitute(e, counted) for v, e in found.inverse.items()}
    condition = None
    for one in conditions:
        condition = one if condition is None else tirx.And(condition, one)
    indices = tuple(substitute(i, places) for i in part.indices[0])
    return Result(part.targets[0], indices, substitute(part.values[0], places), condition)


def _same_place(a: ir.TensorLoad, b: ir.TensorLoad) -> bool:
    return tvm_ffi.structural_equal(list(a.indices), list(b.indices))


def axes_at(
    stage: Stage, indices: Sequence[ir.Expr], place: Sequence[ir.Expr]
) -> dict[ir.Var, ir.Expr]:
    """Return a stage's axes where its access is at a place; 0 for those that do not move it."""
    found = {v: i for v, i in zip(indices, place, strict=True) if isinstance(v, ir.Var)}
    return {a.var: index(0) for a in stage.axes} | found
