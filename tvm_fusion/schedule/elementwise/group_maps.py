"""Group maps into iteration spaces: equal axes, the order of memory, contiguous axes as one."""

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.tir.expressions import has_division, has_load, load, loads
from ...core.tir.loops import constant, coordinates, index, product, substitute
from ...program.domain import Domain
from ...program.program import Program
from ...program.stage import Axis, Stage
from ..index.address import offset, stride, without_loads
from .iteration_space import IterationSpace, Store


def in_registers(program: Program) -> frozenset[ir.Var]:
    """List the internal maps that are read only at the point where they are computed."""
    kept: set[ir.Var] = set()
    internal = set(program.internal)
    for number in range(len(program.stages) - 1, -1, -1):
        stage = program.stages[number]
        if not stage.is_map or len(stage.targets) != 1 or stage.targets[0] not in internal:
            continue
        readers = [
            reader
            for reader in program.stages[number + 1 :]
            if any(x.source.same_as(stage.targets[0]) for v in reader.values for x in loads(v))
        ]
        outside = (r.targets[0] in kept or r.targets[0] not in internal for r in readers)
        if all(outside) and all(_reads_in_step(reader, stage) for reader in readers):
            kept.add(stage.targets[0])
    return frozenset(kept)


def _reads_in_step(reader: Stage, stage: Stage) -> bool:
    """Whether a map reads another one's result at its own point."""
    own, other = ([a for a in s.axes if constant(a.extent) != 1] for s in (reader, stage))
    if not reader.is_map or not _same_extents(own, other):
        return False
    names = {b.var: a.var for a, b in zip(own, other, strict=True)}
    where = [substitute(i, names) for i in stage.indices[0]]
    guarded_loads = [
        x for v in reader.values for x in loads(v) if x.source.same_as(stage.targets[0])
    ]
    return all(
        tvm_ffi.structural_equal(list(x.indices), where, map_free_vars=False) for x in guarded_loads
    )


def _same_extents(first: Sequence[Axis], second: Sequence[Axis]) -> bool:
    analyzer = sym.Analyzer()
    return len(first) == len(second) and all(
        analyzer.can_prove_equal(a.extent, b.extent) for a, b in zip(first, second, strict=True)
    )


def iteration_spaces(
    stages: Sequence[Stage], registers: frozenset[ir.Var] = frozenset()
) -> list[IterationSpace]:
    """Group maps by their axes, and order each space by memory."""
    spaces: list[tuple[list[Axis], list[Store]]] = []
    for stage in stages:
        axes = [a for a in stage.axes if constant(a.extent) != 1]
        units = {a.var: index(0) for a in stage.axes if constant(a.extent) == 1}
        space = next((s for s in spaces if _same_extents(s[0], axes)), None)
        if space is None:
            space = (axes, [])
            spaces.append(space)
        known, stores = space
        places = {**units, **{a.var: b.var for a, b in zip(axes, known, strict=True)}}
        written = zip(stage.targets, stage.indices, stage.values, strict=True)
        stores.extend(Store(*one).moved(places) for one in written)
    return [_merged(_ordered(IterationSpace(tuple(a), tuple(s), registers))) for a, s in spaces]


def with_offsets(space: IterationSpace) -> IterationSpace:
    """Put the offset of accesses as the last index, where it is simpler than the indices.

    All others are 0. Of lanes along rows of 56 pixels of 16 channels, the lowering would simplify
    each index alone, and ``lane // 16`` and ``lane % 16`` would not meet again.
    """
    domain = Domain(space.axes)

    def place(buffer: ir.Var, indices: Sequence[ir.Expr]) -> list[ir.Expr] | None:
        if not any(map(has_division, indices)) or any(map(has_load, indices)):
            return None
        flat = domain.simplify(offset(buffer, indices))
        return None if has_division(flat) else [*([index(0)] * (len(indices) - 1)), flat]

    def flat_load(found: ir.TensorLoad) -> ir.Expr:
        where = None if found.source in space.registers else place(found.source, found.indices)
        return found if where is None else load(found.source, where)

    def flat(store: Store) -> Store:
        where = None
        if store.buffer not in space.registers:
            where = place(store.buffer, store.indices)
        indices = store.indices if where is None else tuple(where)
        return replace(store, indices=indices, value=substitute(store.value, {}, flat_load))

    return replace(space, stores=tuple(map(flat, space.stores)))


def _ordered(space: IterationSpace) -> IterationSpace:
    """Sort the axes by the stride of the first store, smallest last."""
    first = space.outputs[0]
    place = offset(first.buffer, first.indices)
    steps = [stride(place, v, space.variables) for v in space.variables]
    sizes = [None if s is None else constant(s) for s in steps]
    if any(s is None for s in sizes):
        return space
    order = sorted(range(len(sizes)), key=lambda i: -abs(sizes[i] or 0))
    return replace(space, axes=tuple(space.axes[i] for i in order))


def _merged(space: IterationSpace) -> IterationSpace:
    """Fuse axes that are contiguous as one in all accesses."""
    number = len(space.axes) - 2
    while number >= 0:
        outer, inner = space.axes[number : number + 2]
        if _is_contiguous_as_one(space, outer, inner):
            both = Axis(
                tirx.Var(f"{outer.var.name}_{inner.var.name}", "int64"),
                product([outer.extent, inner.extent]),
            )
            split = coordinates(both.var, (outer.extent, inner.extent))
            places = dict(zip((outer.var, inner.var), split, strict=True))
            axes = (*space.axes[:number], both, *space.axes[number + 2 :])
            stores = tuple(s.moved(places) for s in space.stores)
            space = replace(space, axes=axes, stores=stores)
        number -= 1
    return space


def _is_contiguous_as_one(space: IterationSpace, outer: Axis, inner: Axis) -> bool:
    loose = [without_loads(s.value) for s in space.stores]
    used = {v for e in loose for v in tirx.analysis.undefined_vars(e)}
    if outer.var in used or inner.var in used:
        return False
    analyzer = sym.Analyzer()
    pairs = zip(space.steps(outer.var), space.steps(inner.var), strict=True)
    return all(
        a is not None and b is not None and analyzer.can_prove_equal(a, b * index(inner.extent))
        for a, b in pairs
    )
