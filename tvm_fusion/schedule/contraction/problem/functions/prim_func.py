"""The PrimFunc of a contraction before scheduling, over SBlocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, s_tir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load, loads, variables
from .....core.tir.loops import constant, index, over, substitute
from .....program.program import Program
from .....program.stage import Axis, Stage
from ..sum_of_products import SumOfProducts

RESULT = "contraction_result"


@dataclass(frozen=True)
class MaterializedOperand:
    """An operand that is computed into a buffer before the contraction reads it."""

    operand: ir.Expr
    buffer: ir.Var
    axes: tuple[Axis, ...]  # the axes of the buffer, one per dimension
    value: ir.Expr  # its elements, over ``axes``
    place: tuple[ir.Expr, ...]  # the element that the operand is, over the contraction's axes
    is_padded: bool = False  # whether it exists to take conditions out of the sum

    @property
    def stage(self) -> Stage:
        """The map that fills the buffer."""
        where = (tuple(a.var for a in self.axes),)
        return Stage(self.buffer.name, self.axes, (), (self.buffer,), where, (self.value,), None)


def materialize_computed(
    contraction: SumOfProducts, name: str, operand: ir.Expr
) -> MaterializedOperand | None:
    """Materialize an operand over the axes that it depends on; ``None`` for a plain load.

    Schedules that copy operands to shared memory inline it into the copy.
    """
    plain = operand
    while isinstance(plain, tirx.Cast):
        plain = plain.value
    if isinstance(plain, ir.TensorLoad) and not any(loads(i) for i in plain.indices):
        return None
    return materialize(name, operand, contraction.stage.axes + contraction.stage.reduce)


def materialize(name: str, operand: ir.Expr, order: Sequence[Axis]) -> MaterializedOperand:
    """Materialize an operand over those of some axes that it depends on, the first outermost."""
    used = tuple(a for a in order if a.var in variables(operand))
    shape = [index(a.extent) for a in used]
    buffer = declare(shape, str(operand.ty.dtype), name)
    fresh = {a.var: tirx.Var(a.var.name, "int64") for a in used}
    axes = tuple(Axis(fresh[a.var], a.extent) for a in used)
    return MaterializedOperand(
        operand, buffer, axes, substitute(operand, fresh), tuple(a.var for a in used)
    )


def contraction_prim_func(
    program: Program, contraction: SumOfProducts, materialized: Sequence[MaterializedOperand] = ()
) -> tuple[tirx.PrimFunc, str]:
    """Write the contraction, with one copy of its sum that stands for all results.

    Parameters
    ----------
    materialized
        Operands that have blocks of their own.

    Returns
    -------
    func : PrimFunc
        Blocks ``sum`` and ``result``, and one per materialized operand, named like its buffer.
    result : str
        Name of the parameter that stands for all results.
    """
    stage = contraction.stage
    shape = [index(a.extent) for a in stage.axes]
    total = declare(shape, contraction.dtype, "total")
    result = declare(shape, contraction.dtype, RESULT)
    axes = [a.var for a in stage.axes]
    blocks = [nest(a.buffer.name, a.axes, [], a.buffer, a.value) for a in materialized]
    update = load(total, axes) + term(contraction, materialized)
    blocks.append(nest("sum", stage.axes, stage.reduce, total, update, contraction.initial))
    blocks.append(nest("result", stage.axes, [], result, load(total, axes)))
    buffers = [*(a.buffer for a in materialized), total]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(blocks), alloc_buffers=buffers)
    used = {x.source for f in (contraction.left, contraction.right) for x in loads(f)}
    params = [b for b in program.inputs if b in used]
    every = (*stage.axes, *stage.reduce, *(axis for a in materialized for axis in a.axes))
    symbols = _unbound(params, every, contraction.term())
    func = tirx.PrimFunc([*params, result, *symbols], s_tir.SBlockRealize([], True, root))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, "global_symbol": "main"}), RESULT


def term(contraction: SumOfProducts, materialized: Sequence[MaterializedOperand] = ()) -> ir.Expr:
    """Return a summand, which reads materialized operands from their buffers."""
    summand = contraction.term()
    for one in materialized:
        summand = replace_operand(summand, one.operand, load(one.buffer, one.place))
    return summand


def add_term(
    contraction: SumOfProducts,
    materialized: Sequence[MaterializedOperand],
    sums: ir.Var,
    lane: ir.Expr,
    place: Sequence[ir.Expr],
    reduced: Sequence[ir.Expr],
) -> tirx.Stmt:
    """Add a summand to an accumulator."""
    stage = contraction.stage
    axes = [a.var for a in (*stage.axes, *stage.reduce)]
    where = dict(zip(axes, (*place, *reduced), strict=True))
    summand = substitute(term(contraction, materialized), where)
    return tirx.BufferStore(sums, load(sums, [lane]) + summand, [lane])


def sum_terms(
    contraction: SumOfProducts,
    materialized: Sequence[MaterializedOperand],
    sums: ir.Var,
    each: Callable[[Callable[..., tirx.Stmt]], tirx.Stmt],
    element: Callable[..., tuple[ir.Expr, Sequence[ir.Expr]]],
) -> list[tirx.Stmt]:
    """Clear some accumulators, and add all terms of their sums: one loop over K for all of them.

    Parameters
    ----------
    materialized
        Operands that are read from their buffers.
    each
        Runs a statement for every accumulator, which it names as it likes.
    element
        From that name to the accumulator's number and its place over the contraction's axes.
    """

    def clear(*name: ir.Expr | int) -> tirx.Stmt:
        return tirx.BufferStore(sums, contraction.initial, [element(*name)[0]])

    def step(reduced: list[ir.Expr]) -> tirx.Stmt:
        return each(
            lambda *name: add_term(contraction, materialized, sums, *element(*name), reduced)
        )

    return [each(clear), over(contraction.stage.reduce, step)]


def nest(
    name: str,
    axes: Sequence[Axis],
    reduce: Sequence[Axis],
    buffer: ir.Var,
    value: ir.Expr,
    init: ir.Expr | None = None,
) -> tirx.Stmt:
    """Write a block that stores ``buffer[axes]``, in one loop for each of its iterators."""
    fresh = {a.var: tirx.Var(f"v_{a.var.name}", "int64") for a in (*axes, *reduce)}
    kinds = [tirx.IterVar.DataPar] * len(axes) + [tirx.IterVar.CommReduce] * len(reduce)
    iterators = [
        tirx.IterVar(ir.Range.from_min_extent(index(0), index(a.extent)), fresh[a.var], kind, "")
        for a, kind in zip((*axes, *reduce), kinds, strict=True)
    ]
    where = [fresh[a.var] for a in axes]
    value = substitute(value, fresh)
    reads: dict[ir.Var, list[ir.TensorLoad]] = {}
    for found in loads(value):
        if not found.source.same_as(buffer):
            reads.setdefault(found.source, []).append(found)
    block = s_tir.SBlock(
        iterators,
        [_region(source, found) for source, found in reads.items()],
        [_point(buffer, where)],
        name,
        tirx.BufferStore(buffer, value, where),
        init=None if init is None else tirx.BufferStore(buffer, init, where),
    )
    loops = [tirx.Var(a.var.name, "int64") for a in (*axes, *reduce)]
    stmt: tirx.Stmt = s_tir.SBlockRealize(list(loops), True, block)
    for var, axis in reversed(list(zip(loops, (*axes, *reduce), strict=True))):
        stmt = tirx.For(var, index(0), index(axis.extent), tirx.ForKind.SERIAL, stmt)
    return stmt


def replace_operand(expr: ir.Expr, old: ir.Expr, new: ir.Expr) -> ir.Expr:
    """Replace an operand of a product, below casts and the sum that it is added to."""
    if expr.same_as(old):
        return new
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(str(expr.ty.dtype), replace_operand(expr.value, old, new))
    if isinstance(expr, tirx.Add):
        return tirx.Add(replace_operand(expr.a, old, new), replace_operand(expr.b, old, new))
    if isinstance(expr, tirx.Mul):
        return tirx.Mul(replace_operand(expr.a, old, new), replace_operand(expr.b, old, new))
    return expr


def _point(buffer: ir.Var, where: Sequence[ir.Expr]):
    ranges = [ir.Range.from_min_extent(i, tirx.IntImm(str(i.ty.dtype), 1)) for i in where]
    return tirx.BufferRegion(buffer, ranges)


def _region(buffer: ir.Var, found: Sequence[ir.TensorLoad]):
    """Return the region of a buffer that a block reads: one element, or all of it."""
    if len(found) == 1 and not any(loads(i) for i in found[0].indices):
        return _point(buffer, found[0].indices)
    ranges = [ir.Range.from_min_extent(index(0), index(d)) for d in buffer.ty.shape]
    return tirx.BufferRegion(buffer, ranges)


def _unbound(params: Sequence[ir.Var], axes: Sequence[Axis], summand: ir.Expr) -> list[ir.Var]:
    """List the symbols that no parameter has as a bare extent: they become parameters."""
    shapes = [d for p in params for d in p.ty.shape]
    bare = {d for d in shapes if isinstance(d, ir.Var)}
    own = {a.var for a in axes}
    used: dict[ir.Var, None] = {}
    for expr in (*(a.extent for a in axes), *shapes, summand):
        used.update(dict.fromkeys(sorted(variables(expr), key=lambda v: v.name)))
    return [v for v in used if v not in bare and v not in own]


# Replace extents that are expressions by symbols while TVM schedules a contraction.
#
# TVM's loop analysis splits a fused loop by constants and by symbols: what it proves of ``i // n``
# for ``i < 3 * n`` it does not prove of ``i // (m + 2)`` for ``i < 3 * m + 6``.
class SymbolicExtents:
    """Symbols of extents; equal extents share one."""

    def __init__(self) -> None:
        self._known: list[tuple[ir.Var, ir.Expr]] = []

    def contraction(self, original: SumOfProducts) -> SumOfProducts:
        """Replace the extents of a contraction by symbols."""
        stage = original.stage
        axes, reduce = self._axes(stage.axes), self._axes(stage.reduce)
        return replace(original, stage=replace(stage, axes=axes, reduce=reduce))

    def operand(self, original: MaterializedOperand) -> MaterializedOperand:
        """Replace the extents of a materialized operand by symbols."""
        axes, old = self._axes(original.axes), original.buffer
        buffer = declare([index(a.extent) for a in axes], str(old.ty.dtype), old.name)
        return replace(original, axes=axes, buffer=buffer)

    def expand(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Substitute the extents for the symbols."""
        used = set(func.params)
        return func.specialize({symbol: e for symbol, e in self._known if symbol in used})

    def _axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(a.var, self._symbol(a.extent)) for a in axes)

    def _symbol(self, extent: ir.Expr) -> ir.Expr:
        if constant(extent) is not None or isinstance(extent, ir.Var):
            return extent
        for symbol, known in self._known:
            if tvm_ffi.structural_equal(known, extent, map_free_vars=False):
                return symbol
        self._known.append((tirx.Var(f"extent{len(self._known)}", "int64"), index(extent)))
        return self._known[-1][0]
