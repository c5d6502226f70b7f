"""A row program read back from its canonical PrimFunc: stages over common row axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from ..expressions import (
    contains,
    loads_of,
    substitute,
)
from .combiner import Combiner, split_update


@dataclass(frozen=True)
class Axis:
    """An iterator of a stage and its extent, an ``IntImm`` or a symbolic expression."""

    var: ir.Var
    extent: ir.Expr

    @property
    def size(self) -> int | None:
        """The extent as a number; ``None`` where symbolic."""
        return int(self.extent) if isinstance(self.extent, tirx.IntImm) else None


@dataclass(frozen=True)
class Stage:
    """``targets[indices] = values`` for all rows and inner axes, or a reduction of ``values``.

    Attributes
    ----------
    name : str
        The block's.
    rows, inner, reduce : tuple of Axis
        In the order of the block's iterators.
    targets : tuple of Var
        Buffers that are written; several in a reduction of tuples.
    indices : tuple of tuple of Expr
        Where in each target.
    values : tuple of Expr
        A map's results; a reduction's terms.
    init : tuple of Expr
        A reduction's neutral elements; empty for a map.
    combine : Combiner or None
        ``None`` for a map.
    """

    name: str
    rows: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    targets: tuple[ir.Var, ...]
    indices: tuple[tuple[ir.Expr, ...], ...]
    values: tuple[ir.Expr, ...]
    init: tuple[ir.Expr, ...] = ()
    combine: Combiner | None = None

    @property
    def domain(self) -> tuple[Axis, ...]:
        """The axes inside a row."""
        return self.inner + self.reduce

    @property
    def is_map(self) -> bool:
        """Whether each element is written once."""
        return self.combine is None

    @cached_property
    def loads(self) -> list[ir.TensorLoad]:
        """Every load of the values."""
        return [load for value in self.values for load in loads_of(value)]

    def written(self, target: ir.Var) -> tuple[ir.Expr, ...]:
        """Where a target is written."""
        return next(i for t, i in zip(self.targets, self.indices, strict=True) if t.same_as(target))

    @cached_property
    def combine_in_turn(self) -> Combiner | None:
        """How a thread takes in terms that it meets in the order of the axes."""
        is_index = len(self.domain) == 1 and self.values[0].same_as(self.domain[0].var)
        return self.combine.in_order if self.combine is not None and is_index else self.combine

    def with_values(self, values: Sequence[ir.Expr]) -> Stage:
        """Return the stage with other values over the same axes."""
        return replace(self, values=tuple(values))


@dataclass(frozen=True)
class RowStages:
    """What both schedules work on.

    Attributes
    ----------
    func : tirx.PrimFunc
        Where it was read from.
    stages : tuple of Stage
        In order of execution.
    internal : tuple of Var
        Buffers that exist only inside, each indexed by its row first.
    """

    func: tirx.PrimFunc
    stages: tuple[Stage, ...]
    internal: tuple[ir.Var, ...]

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The row axes as the first stage names them."""
        return self.stages[0].rows

    def is_internal(self, buffer: ir.Var) -> bool:
        """Whether a buffer is neither a parameter nor a result."""
        return contains(self.internal, buffer)

    def producer(self, buffer: ir.Var) -> int:
        """Position of the stage that writes an internal buffer."""
        return next(i for i, s in enumerate(self.stages) if contains(s.targets, buffer))


def read_stages(func: tirx.PrimFunc, rows: int) -> RowStages:
    """Read the stages of a canonical function back.

    Parameters
    ----------
    func : tirx.PrimFunc
        One block a stage directly under the root, its first ``rows`` iterators the row.
    rows : int
        Number of row axes.

    Raises
    ------
    ValueError
        Naming the block that is not of the canonical form.
    """
    root = func.body.block
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(root.body, (s_tir.SBlock, blocks.append))
    return RowStages(
        func, tuple(_stage(block, rows) for block in blocks), tuple(root.alloc_buffers)
    )


def _stage(block: s_tir.SBlock, rows: int) -> Stage:
    kinds = [iv.iter_type for iv in block.iter_vars]
    axes = [Axis(iv.var, iv.dom.extent) for iv in block.iter_vars]
    spatial = [a for a, k in zip(axes, kinds, strict=True) if k == tirx.IterVar.DataPar]
    reduce = [a for a, k in zip(axes, kinds, strict=True) if k == tirx.IterVar.CommReduce]
    if len(spatial) + len(reduce) != len(axes) or len(spatial) < rows:
        raise ValueError(f"{block.name_hint}: iterators are not {rows} rows, inner, reduction")
    stores = _stores(block.body)
    if not stores or bool(reduce) != (block.init is not None):
        raise ValueError(f"{block.name_hint}: neither a map nor a reduction with its start")
    targets = tuple(store.buffer for store in stores)
    values = tuple(store.value for store in stores)
    init: tuple[ir.Expr, ...] = ()
    combine = None
    if block.init is not None:
        init = tuple(store.value for store in _stores(block.init))
        values, combine = split_update(block.name_hint, targets, values)
    return Stage(
        block.name_hint,
        tuple(spatial[:rows]),
        tuple(spatial[rows:]),
        tuple(reduce),
        targets,
        tuple(tuple(store.indices) for store in stores),
        values,
        init,
        combine,
    )


def _stores(body: tirx.Stmt) -> list[tirx.BufferStore]:
    """List the stores of a block, with the variables that it binds on the way substituted."""
    bound: list[tuple[ir.Var, ir.Expr]] = []
    stores: list[tirx.BufferStore] = []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(stmt, tirx.Bind):
            bound.append((stmt.var, substitute(stmt.value, bound)))
        elif isinstance(stmt, tirx.BufferStore):
            value = substitute(stmt.value, bound)
            stores.append(tirx.BufferStore(stmt.buffer, value, stmt.indices))
        else:
            raise ValueError(f"a {type(stmt).__name__} in a block")
    return stores


def stride(offset: ir.Expr, axes: Sequence[Axis]) -> list[ir.Expr] | None:
    """How far each axis moves an offset; ``None`` where that is not constant."""
    found = list(sym.detect_linear_equation(offset, [a.var for a in axes]))
    return found[: len(axes)] if found else None
