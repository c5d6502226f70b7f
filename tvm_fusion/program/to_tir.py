"""Stages as TensorIR: an unscheduled PrimFunc, and single elements as expressions."""

from collections.abc import Sequence

from tvm import ir, s_tir, tirx
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx import Buffer

from ..core.tir.expressions import loads, map_loads, size
from .stage import Axis, Stage

MOST_NODES = 256  # of an expression after inlining; diamonds would double it at every step


def prim_func_of(
    stages: Sequence[Stage],
    params: Sequence[Buffer | ir.Var],
    internal: Sequence[Buffer],
    name: str,
) -> tirx.PrimFunc:
    """Write stages as a PrimFunc: see :meth:`tvm_fusion.program.program.Program.prim_func`."""
    root = s_tir.SBlock(
        [],
        [],
        [],
        "root",
        _sequence([_nest(stage) for stage in stages]),
        alloc_buffers=list(internal),
    )
    func = tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root))
    return func.with_attrs({"global_symbol": name, "s_tir": True, "tirx.noalias": True})


def _nest(stage: Stage) -> tirx.Stmt:
    axes = (*stage.axes, *stage.reduce)
    loops = [ir.Var(a.var.name, a.var.ty) for a in axes]
    iterators = [_iterator(a, tirx.IterVar.DataPar) for a in stage.axes]
    iterators += [_iterator(a, tirx.IterVar.CommReduce) for a in stage.reduce]
    body, init = _stores(stage, stage.values), None
    if stage.init is not None:
        init = _stores(stage, stage.init)
    block = s_tir.SBlock(iterators, [], [], stage.name, body, init)
    touched = {t: t for t in stage.targets}
    touched.update({x.source: x.source for v in stage.values for x in loads(v)})
    reads, writes, _ = get_sblock_access_region(block, touched)
    if stage.init is not None:  # an update of its own target is no read, by convention
        own = set(stage.targets)
        reads = [r for r in reads if _buffer(r) not in own]
    block = s_tir.SBlock(iterators, reads, writes, stage.name, body, init)
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, True, block)
    for loop, axis in zip(reversed(loops), reversed(axes), strict=True):
        zero = tirx.IntImm(loop.ty.dtype, 0)
        stmt = tirx.For(loop, zero, axis.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _buffer(region: ir.TensorRegion) -> Buffer:
    return region.source


def _iterator(axis: Axis, kind: int) -> tirx.IterVar:
    zero = tirx.IntImm(axis.var.ty.dtype, 0)
    return tirx.IterVar(ir.Range.from_min_extent(zero, axis.extent), axis.var, kind)


def _stores(stage: Stage, values: Sequence[ir.Expr]) -> tirx.Stmt:
    """Store all values; several are computed before the first is stored."""
    statements: list[tirx.Stmt] = []
    if len(values) > 1:
        names = [ir.Var(f"v_{t.name}", v.ty) for t, v in zip(stage.targets, values, strict=True)]
        statements = [tirx.Bind(n, v) for n, v in zip(names, values, strict=True)]
        values = names
    for target, value, indices in zip(stage.targets, values, stage.indices, strict=True):
        statements.append(tirx.BufferStore(target, value, list(indices)))
    return _sequence(statements)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def element_of(stages: Sequence[Stage], target: Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Express one element: see :meth:`tvm_fusion.program.program.Program.element`."""
    maps = {s.targets[0]: s for s in stages if s.is_map}
    if target not in maps:
        return tirx.BufferLoad(target, list(indices))

    value = maps[target].at(indices)
    if _nodes(stages)[target] > MOST_NODES:
        return value

    def resolve(found: ir.TensorLoad) -> ir.Expr:
        stage = maps.get(found.source)
        return found if stage is None else map_loads(stage.at(found.indices), resolve)

    return map_loads(value, resolve)


def _nodes(stages: Sequence[Stage]) -> dict[Buffer, int]:
    """Count the nodes of each map's value after all other maps are put in place."""
    nodes: dict[Buffer, int] = {}
    for stage in stages:
        if stage.is_map:
            inner = sum(nodes.get(load.source, 0) for load in stage.loads)
            nodes[stage.targets[0]] = size(stage.values[0]) + inner
    return nodes
