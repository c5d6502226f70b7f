"""PrimFuncs of blocks as stages over their own buffers, and as stages of a graph's operators."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.tirx import Buffer

from ..._tvm.ir.structural import structural_map, structural_walk
from ...core.tir.expressions import (
    call_name,
    has_load,
    int64,
    load,
    loads,
    map_loads,
    substitute,
    variables,
)
from ..domain import Domain
from ..stage import Axis, Stage, Unstructured
from .reindex import reindex
from .trivial import is_number, without_idle_updates, without_unit_axes


@dataclass(frozen=True)
class Parsed:
    """A PrimFunc's stages; each writes ``target[axes...]``, with 0 in place of unit axes."""

    params: tuple[ir.Var, ...]
    stages: tuple[Stage, ...]

    @functools.cached_property
    def shapes(self) -> tuple[tuple[ir.Expr, ...] | None, ...]:
        """Extents of each parameter; ``None`` of a scalar."""
        return tuple(
            tuple(p.ty.shape) if isinstance(p.ty, tirx.BufferType) else None for p in self.params
        )

    @functools.cached_property
    def mentioned(self) -> tuple[frozenset[ir.Var], ...]:
        """By stage, the variables of its values and extents that are no axes of it."""
        return tuple(map(_mentioned, self.stages))


def parse(func: tirx.PrimFunc) -> Parsed:
    """Read the blocks of an unscheduled PrimFunc; the result is remembered.

    Raises
    ------
    Unstructured
        If a block is no map and no reduction, or its accesses cannot be told.
    """
    parsed = _parse(func)
    if isinstance(parsed, str):
        raise Unstructured(parsed)
    return parsed


def _mentioned(stage: Stage) -> frozenset[ir.Var]:
    axes = (*stage.axes, *stage.reduce)
    exprs = (*stage.values, *(a.extent for a in axes))
    return frozenset(v for e in exprs for v in variables(e)) - {a.var for a in axes}


@functools.lru_cache(maxsize=4096)
def _parse(func: tirx.PrimFunc) -> Parsed | str:
    try:
        root = func.body
        if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
            raise Unstructured("A member is not a PrimFunc over blocks.")
        stages = [_stage(loops, leaf) for loops, leaf in _leaves(root.block.body, ())]
        written = [t for stage in stages for t in stage.targets]
        if len(set(written)) < len(written):
            raise Unstructured("A buffer is written by several blocks.")
        seen: set[Buffer] = set()
        for stage in stages:
            for found in (x for value in stage.values for x in loads(value)):
                if found.source in written and found.source not in (seen | set(stage.targets)):
                    raise Unstructured(f"Block {stage.name} reads what is written after it.")
            seen.update(stage.targets)
        return Parsed(tuple(func.params), tuple(stages))
    except Unstructured as reason:
        return str(reason)


def _leaves(
    stmt: tirx.Stmt, loops: tuple[tirx.For, ...]
) -> Iterator[tuple[tuple[tirx.For, ...], s_tir.SBlockRealize]]:
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _leaves(part, loops)
    elif isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not is_number(stmt.min, 0):
            raise Unstructured(f"Loop {stmt.loop_var.name} is scheduled or does not start at 0.")
        yield from _leaves(stmt.body, (*loops, stmt))
    elif isinstance(stmt, s_tir.SBlockRealize):
        yield loops, stmt
    else:
        raise Unstructured(f"A statement outside of blocks is a {type(stmt).__name__}.")


def _stage(loops: Sequence[tirx.For], realize: s_tir.SBlockRealize) -> Stage:
    block = realize.block
    name = block.name_hint
    _check_bindings(loops, realize)
    if block.match_buffers or block.alloc_buffers:
        raise Unstructured(f"Block {name} has buffers of its own.")
    start: dict[ir.Var, ir.Expr] = {}
    spatial, reduce = [], []
    for iterator in block.iter_vars:
        var = ir.Var(iterator.var.name.removeprefix("v_"), ir.PrimType("int64"))
        axis = Axis(var, int64(iterator.dom.extent))
        value = var if is_number(iterator.dom.min, 0) else var + int64(iterator.dom.min)
        start[iterator.var] = _as_type(value, iterator.var)
        if iterator.iter_type == tirx.IterVar.DataPar:
            spatial.append(axis)
        elif iterator.iter_type == tirx.IterVar.CommReduce:
            reduce.append(axis)
        else:
            raise Unstructured(f"Block {name} has an iterator that must run in order.")
    stores = stores_of(name, block.body, start)
    init = None
    if block.init is not None:
        initial = {s.target: s for s in stores_of(name, block.init, start)}
        where = {s.target: list(s.indices) for s in stores}
        if set(initial) != set(where) or not all(
            tvm_ffi.structural_equal(list(s.indices), where[t]) for t, s in initial.items()
        ):
            raise Unstructured(f"Block {name} does not initialise what it writes.")
        init = tuple(initial[s.target].value for s in stores)
    stage = Stage(
        name,
        tuple(spatial),
        tuple(reduce),
        tuple(s.target for s in stores),
        tuple(s.indices for s in stores),
        tuple(s.value for s in stores),
        init,
    )
    _check_updates(stage)
    return _by_target(without_unit_axes(stage))


def _check_bindings(loops: Sequence[tirx.For], realize: s_tir.SBlockRealize) -> None:
    """Blocks run once for each value of their iterators: loops may only enumerate these."""
    name = realize.block.name_hint
    if not is_number(realize.predicate, 1):
        raise Unstructured(f"Block {name} runs under a condition.")
    bound = [
        (value, iterator)
        for value, iterator in zip(realize.iter_values, realize.block.iter_vars, strict=True)
        if not is_number(iterator.dom.extent, 1)
    ]
    running = {loop.loop_var: loop.extent for loop in loops if not is_number(loop.extent, 1)}
    values = [value for value, _ in bound]
    if len(set(values)) == len(values) == len(running) and all(
        isinstance(v, ir.Var)
        and v in running
        and _same(running[v], i.dom.extent)
        and is_number(i.dom.min, 0)
        for v, i in bound
    ):
        return
    axes, wide = [], {}
    for var, extent in running.items():
        axes.append(Axis(ir.Var(var.name, ir.PrimType("int64")), int64(extent)))
        wide[var] = _as_type(axes[-1].var, var)
    domain = Domain(axes)
    rows = [
        domain.simplify(int64(substitute(value, wide)) - int64(iterator.dom.min))
        for value, iterator in bound
    ]
    extents = [int64(iterator.dom.extent) for _, iterator in bound]
    if reindex(axes, rows, extents, complete=True) is None:
        raise Unstructured(f"The loops around block {name} do not enumerate its iterators.")


def _check_updates(stage: Stage) -> None:
    """Reject scans, updates in place and reductions that nothing initialises."""
    own = dict(zip(stage.targets, stage.indices, strict=True))
    updates = False
    for found in (x for value in stage.values for x in loads(value)):
        if found.source in own:
            updates = True
            if not tvm_ffi.structural_equal(list(found.indices), list(own[found.source])):
                raise Unstructured(f"Block {stage.name} reads other elements of what it writes.")
    if (updates or stage.reduce) and stage.init is None:
        raise Unstructured(f"Block {stage.name} updates what it does not initialise.")
    if stage.reduce and not updates:
        raise Unstructured(f"Block {stage.name} overwrites its result.")
    reduced = {axis.var for axis in stage.reduce}
    if any(variables(i) & reduced for write in stage.indices for i in write):
        raise Unstructured(f"Block {stage.name} writes along an axis that it reduces.")
    if any(loads(value) for value in stage.init or ()):
        raise Unstructured(f"Block {stage.name} starts from values that are not constants.")


def _by_target(stage: Stage) -> Stage:
    """Iterate in the order of the target's dimensions; every element must be written once."""
    shape = [int64(d) for d in stage.targets[0].shape]
    write = stage.indices[0]
    for target, indices in zip(stage.targets[1:], stage.indices[1:], strict=True):
        same_shape = len(target.shape) == len(shape) and all(map(_same, target.shape, shape))
        if not same_shape or not tvm_ffi.structural_equal(list(indices), list(write)):
            raise Unstructured(f"Block {stage.name} writes its buffers at different indices.")
    kept = [d for d, extent in enumerate(shape) if not is_number(extent, 1)]
    found = reindex(stage.axes, [write[d] for d in kept], [shape[d] for d in kept], complete=True)
    if found is None:
        raise Unstructured(f"Block {stage.name} does not write each element exactly once.")
    where = dict(zip(kept, found.axes, strict=True))
    zero = tirx.IntImm("int64", 0)
    element = tuple(where[d].var if d in where else zero for d in range(len(shape)))
    targets = set(stage.targets)
    domain = Domain((*found.axes, *stage.reduce))

    def rewrite(value: ir.Expr) -> ir.Expr:
        value = domain.simplify(substitute(value, found.inverse))
        return map_loads(value, lambda x: load(x.source, element) if x.source in targets else x)

    laid_out = replace(
        stage,
        axes=found.axes,
        indices=(element,) * len(stage.targets),
        values=tuple(rewrite(v) for v in stage.values),
        init=stage.init and tuple(substitute(v, found.inverse) for v in stage.init),
    )
    return without_idle_updates(laid_out)


def _as_type(value: ir.Expr, var: ir.Var) -> ir.Expr:
    return value if var.ty.dtype == "int64" else tirx.Cast(var.ty.dtype, value)


def _same(a: ir.Expr, b: ir.Expr) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return int(a.value) == int(b.value)
    return Domain(()).equal(int64(a), int64(b))


# What a block stores, its bindings resolved and its index arithmetic widened to int64.
_PURE = 1  # tirx.CallEffectKind.Pure; larger kinds read or write memory


@dataclass(frozen=True)
class Store:
    """``target[indices] = value``."""

    target: Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr


def stores_of(name: str, body: tirx.Stmt, start: Mapping[ir.Var, ir.Expr]) -> list[Store]:
    """List a block's stores, with bound values put in.

    Parameters
    ----------
    body
        Its body or its initialisation.
    start
        What its iterators stand for.

    Raises
    ------
    Unstructured
        If it holds more than bindings and stores.
    """
    values = dict(start)
    stores: list[Store] = []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if not isinstance(stmt, tirx.Bind | tirx.BufferStore):
            raise Unstructured(f"Block {name} holds a {type(stmt).__name__}.")
        value = _expression(name, stmt.value, values)
        if isinstance(stmt, tirx.Bind):
            reads_written = {s.target for s in stores} & {x.source for x in loads(value)}
            values[stmt.var] = value
        else:
            direct = {x.source for x in loads(stmt.value)}
            reads_written = {s.target for s in stores} & direct
            indices = tuple(int64(_expression(name, i, values)) for i in stmt.indices)
            if any(has_load(i) for i in indices):
                raise Unstructured(
                    f"Block {name} writes at indices that depend on data (a scatter)."
                )
            stores.append(Store(stmt.buffer, indices, value))
        if reads_written:
            raise Unstructured(f"Block {name} reads what it has just written.")
    if len({s.target for s in stores}) < len(stores) or not stores:
        raise Unstructured(f"Block {name} does not write each of its buffers once.")
    return stores


def _expression(name: str, expr: ir.Expr, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """Resolve variables and ``let``; widen indices and positions compared to int64."""
    expr = structural_map(
        expr, (tirx.Let, lambda let: substitute(let.body, {let.var: let.value})), order="post"
    )
    calls: list[ir.Call] = []
    structural_walk(expr, (ir.Call, calls.append))
    for call in calls:
        effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, ir.Op) else None
        if effect is None or effect > _PURE or call_name(call) == "address_of":
            raise Unstructured(f"Block {name} calls {call_name(call) or 'a function'}.")
    expr = substitute(expr, values)
    expr = map_loads(expr, lambda found: load(found.source, [_index(i) for i in found.indices]))
    narrow: list[ir.Expr] = []
    structural_walk(expr, (tirx.Cast, narrow.append))
    if not any(isinstance(cast.value, ir.Var) for cast in narrow):
        return expr
    return structural_map(expr, (_COMPARISONS, _widen_comparison), order="post")


_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def _index(index: ir.Expr) -> ir.Expr:
    return index if has_load(index) else int64(index)


def _widen_comparison(expr: ir.Expr) -> ir.Expr:
    is_position = all(
        str(e.ty.dtype).startswith("int") and not has_load(e) for e in (expr.a, expr.b)
    )
    return type(expr)(int64(expr.a), int64(expr.b)) if is_position else expr
