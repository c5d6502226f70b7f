"""From operators to a program: wire their stages, inline maps, align what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tvm import ir, tirx
from tvm.tirx import Buffer

from ..._tvm.ir.buffer import declare
from ...core.tir.expressions import load, loads, map_loads, product, substitute
from ...ecg.graph import Operator, Value
from ..domain import Domain
from ..program import Program
from ..stage import Axis, Stage, Unstructured
from ..to_tir import MOST_NODES
from .align import align, score
from .bind import InlineCandidate, buffer_of, parts_of
from .reindex import reindex
from .trivial import without_idle_updates


def compose(
    members: Sequence[Operator], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Program:
    """Bring a group of operators into the normal form.

    Parameters
    ----------
    inputs
        What they read from outside, without duplicates.
    outputs
        Their results that are used outside.

    Returns
    -------
    Program
        Stages over aligned axes.

    Raises
    ------
    Unstructured
        If a member is more than maps and reductions.
    """
    parts = [part for op in members for part in parts_of(op)]
    sources = tuple(buffer_of(v) for v in inputs)
    results = tuple(buffer_of(v) for v in outputs)
    wiring = Wiring(parts, results)
    missing = set(results) - set(wiring.producer)
    if missing:
        raise Unstructured(f"No member writes {next(iter(missing)).name}.")
    forced = too_large(wiring)
    kept = worth_keeping(wiring, forced)
    aligned = align(_stages(wiring, forced | kept), sources, results)
    if kept and aligned.rows < _most_rows(aligned.stages):
        # Sharing a value must not cost the alignment of the rest.
        spread = align(_stages(wiring, forced), sources, results)
        if score(spread) > score(aligned) or not any(s.init for s in spread.stages):
            aligned = spread
    return Program(
        sources, results, _scalars(members, inputs), _with_names(aligned.stages), aligned.rows
    )


def _most_rows(stages: Sequence[Stage]) -> int:
    reductions = [s for s in stages if not s.is_map]
    return min((len(s.axes) for s in reductions or stages), default=0)


def _stages(wiring: Wiring, kept: frozenset[int]) -> list[Stage]:
    """Inline all maps but the kept ones; outputs that are read inside leave through a copy."""
    defined: dict[Buffer, Stage] = {}
    inside: dict[Buffer, Buffer] = {}  # what stages read in place of an output
    stages: list[Stage] = []
    copies: list[Stage] = []
    for k, part in enumerate(wiring.parts):
        stage = _inlined(part, defined, inside)
        leaves = wiring.leaves(k)
        if stage.is_map and k not in kept:
            defined[stage.targets[0]] = stage
            if leaves:
                stages.append(stage)
            continue
        if leaves and wiring.readers[k]:
            read = {b for r in wiring.readers[k] for b in wiring.parts[r].stage.reads}
            for target in stage.targets:
                if target in wiring.outputs and target in read:
                    inside[target] = declare(target.shape, target.dtype, target.name)
                    copies.append(_copy(stage, target, inside[target]))
            stage = _retargeted(stage, inside)
        stages.append(stage)
    return _written_directly([*stages, *copies], wiring.outputs)


def _inlined(
    part: InlineCandidate, defined: dict[Buffer, Stage], inside: dict[Buffer, Buffer]
) -> Stage:
    stage = part.stage
    if stage.reads.isdisjoint(defined) and stage.reads.isdisjoint(inside):
        return stage
    definitions = tuple((b, defined[b]) for b in stage.reads if b in defined)
    others = tuple((b, inside[b]) for b in stage.reads if b in inside)
    return _substituted(stage, definitions, others)


@lru_cache(maxsize=1 << 13)  # groups that are compared share most of their operators
def _substituted(
    stage: Stage,
    definitions: tuple[tuple[Buffer, Stage], ...],
    others: tuple[tuple[Buffer, Buffer], ...],
) -> Stage:
    defined, inside = dict(definitions), dict(others)
    moved = False

    def change(found: ir.TensorLoad) -> ir.Expr:
        nonlocal moved
        definition = defined.get(found.source)
        if definition is not None:
            moved |= not all(is_position(i) for i in found.indices)
            return definition.at(found.indices)
        other = inside.get(found.source)
        return found if other is None else load(other, found.indices)

    values = [map_loads(value, change) for value in stage.values]
    if moved:
        domain = Domain((*stage.axes, *stage.reduce))
        values = [domain.simplify(value) for value in values]
    return without_idle_updates(replace(stage, values=tuple(values)))


def _copy(stage: Stage, output: Buffer, source: Buffer) -> Stage:
    axes = tuple(Axis(ir.Var(a.var.name, a.var.ty), a.extent) for a in stage.axes)
    fresh = {a.var: b.var for a, b in zip(stage.axes, axes, strict=True)}
    indices = tuple(substitute(i, fresh) for i in stage.indices[0])
    return Stage(
        f"{stage.name}_out",
        axes,
        (),
        (output,),
        (indices,),
        (load(source, indices),),
        None,
        operator=stage.operator,
    )


def _retargeted(stage: Stage, inside: dict[Buffer, Buffer]) -> Stage:
    own = set(stage.targets) & set(inside)

    def change(found: ir.TensorLoad) -> ir.Expr:
        return load(inside[found.source], found.indices) if found.source in own else found

    return replace(
        stage,
        targets=tuple(inside.get(t, t) for t in stage.targets),
        values=tuple(map_loads(v, change) for v in stage.values),
    )


def _written_directly(stages: list[Stage], outputs: frozenset[Buffer]) -> list[Stage]:
    """Let a reduction write where its only reader would move its result."""
    readers: dict[Buffer, list[Stage]] = {}
    for stage in stages:
        for buffer in stage.reads:
            readers.setdefault(buffer, []).append(stage)
    gone: set[int] = set()
    done: list[Stage] = []
    for stage in stages:
        if not stage.is_map:
            for position, target in enumerate(stage.targets):
                users = readers.get(target, [])
                if len(users) != 1 or target in outputs:
                    continue
                written = _through(stage, position, users[0], outputs)
                if written is not None:
                    stage = written
                    gone.add(id(users[0]))
        done.append(stage)
    return [s for s in done if id(s) not in gone]


def _through(stage: Stage, position: int, mover: Stage, outputs: frozenset[Buffer]) -> Stage | None:
    """Write one target of a reduction through a map that moves each of its elements once."""
    moved = mover.values[0]
    if (
        mover.targets[0] not in outputs
        or not isinstance(moved, ir.TensorLoad)
        or any(loads(i) for i in moved.indices if not is_position(i))
    ):
        return None
    source = stage.targets[position]
    at = {v: d for d, v in enumerate(stage.indices[position]) if isinstance(v, ir.Var)}
    rows = [moved.indices[at[a.var]] for a in stage.axes]
    found = reindex(mover.axes, rows, [a.extent for a in stage.axes], complete=True)
    if found is None:
        return None
    back = {new.var: a.var for new, a in zip(found.axes, stage.axes, strict=True)}
    inverse = {v: substitute(e, back) for v, e in found.inverse.items()} or back
    domain = Domain(stage.axes)
    indices = tuple(domain.simplify(substitute(i, inverse)) for i in mover.indices[0])
    target = mover.targets[0]

    def change(x: ir.TensorLoad) -> ir.Expr:
        return load(target, indices) if x.source.same_as(source) else x

    def put(old: Sequence, new: object) -> tuple:
        return (*old[:position], new, *old[position + 1 :])

    return replace(
        stage,
        targets=put(stage.targets, target),
        indices=put(stage.indices, indices),
        values=tuple(map_loads(v, change) for v in stage.values),
    )


def _scalars(members: Sequence[Operator], inputs: Sequence[Value]) -> tuple[ir.Var, ...]:
    """Symbolic variables that members use and no input has as a bare extent."""
    bare = {d for v in inputs for d in v.shape if isinstance(d, ir.Var)}
    used: dict[ir.Var, None] = {}
    for op in members:
        scalars = [o for o in op.operands if not isinstance(o, Value)]
        for expr in [d for v in (*op.tensors, *op.results) for d in v.shape] + scalars:
            if not isinstance(expr, tirx.IntImm):
                used.update(dict.fromkeys(tirx.analysis.undefined_vars(expr)))
    return tuple(v for v in used if v not in bare)


def _with_names(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Make the stages' names unique."""
    seen: dict[str, int] = {}
    named = []
    for stage in stages:
        count = seen[stage.name] = seen.get(stage.name, 0) + 1
        named.append(stage if count == 1 else replace(stage, name=f"{stage.name}_{count}"))
    return tuple(named)


# Decide which stages are materialized, and which are inlined into their consumers.
class Wiring:
    """Producers and consumers among the stages of a group.

    Attributes
    ----------
    parts
        In topological order, without those that nothing needs.
    outputs
        What leaves the group.
    """

    def __init__(self, parts: Sequence[InlineCandidate], outputs: Sequence[Buffer]) -> None:
        self.outputs = frozenset(outputs)
        needed = set(outputs)
        live: list[InlineCandidate] = []
        for part in reversed(parts):
            if needed.intersection(part.stage.targets):
                needed.update(part.stage.reads)
                live.append(part)
        self.parts = tuple(reversed(live))
        self.producer = {t: k for k, p in enumerate(self.parts) for t in p.stage.targets}
        self.readers: list[set[int]] = [set() for _ in self.parts]
        for k, part in enumerate(self.parts):
            for buffer in part.stage.reads:
                if buffer in self.producer:
                    self.readers[self.producer[buffer]].add(k)

    def map_behind(self, buffer: Buffer) -> int | None:
        """Tell which map writes a buffer."""
        k = self.producer.get(buffer)
        return k if k is not None and self.parts[k].stage.is_map else None

    def leaves(self, k: int) -> bool:
        """Whether a stage writes an output."""
        return not self.outputs.isdisjoint(self.parts[k].stage.targets)


def too_large(wiring: Wiring) -> frozenset[int]:
    """Find maps that must be stages, or their readers' expressions would grow without bounds."""
    read = [
        [p for x in part.stage.loads if (p := wiring.map_behind(x.source)) is not None]
        for part in wiring.parts
    ]
    forced: set[int] = set()
    nodes: list[int] = []

    def inlined_size(k: int) -> int:
        return wiring.parts[k].size + sum(nodes[p] for p in read[k] if p not in forced)

    for k in range(len(wiring.parts)):
        while inlined_size(k) > MOST_NODES:
            times = _occurrences(k, read, forced)
            if not times:
                break
            # What repeats most: forcing what holds it would leave the repetition.
            forced.add(max(times, key=lambda p: (times[p] * nodes[p], p)))
            nodes.clear()
            for earlier in range(k):
                nodes.append(inlined_size(earlier))
        nodes.append(inlined_size(k))
    return frozenset(forced)


def _occurrences(k: int, read: Sequence[Sequence[int]], forced: set[int]) -> dict[int, int]:
    """Count how often each inlined map occurs in the expression of a stage."""
    times: dict[int, int] = {}
    pending = {k: 1}
    while pending:
        reader = max(pending)  # all that could read it in turn are done
        count = pending.pop(reader)
        for p in read[reader]:
            if p not in forced:
                pending[p] = pending.get(p, 0) + count
                times[p] = times.get(p, 0) + count
    return times


def worth_keeping(wiring: Wiring, forced: frozenset[int]) -> frozenset[int]:
    """Find maps whose values should be computed once per element: several stages read them.

    What only moves elements never is. Of the rest it is what costs more than a load, and is read
    by a reduction among others, by two stages over as many points as it has elements itself, or
    more than once per element by one reduction (the left side of a matrix product).
    """
    kept: set[int] = set()
    # Stages that will remain and compute or read each part, through what is inlined.
    users: list[set[int]] = [set() for _ in wiring.parts]
    for k in range(len(wiring.parts) - 1, -1, -1):
        part = wiring.parts[k]
        for reader in wiring.readers[k]:
            remains = reader in kept or reader in forced or not wiring.parts[reader].stage.is_map
            users[k] |= {reader} if remains else users[reader]
        if wiring.leaves(k):
            users[k].add(k)
        if not part.stage.is_map or k in forced or part.is_movement or not part.is_costly:
            continue
        others = [wiring.parts[u].stage for u in users[k] if u != k]
        reductions = [stage for stage in others if not stage.is_map]
        if len(users[k]) == 1:
            keep = any(not _same_points(s.axes, s.reduce, part) for s in reductions)
        else:
            alike = [s for s in others if _same_points(s.axes, s.reduce, part)]
            keep = bool(reductions) or len(alike) + wiring.leaves(k) > 1
        if keep:
            kept.add(k)
    return frozenset(kept)


def _same_points(axes: Sequence[Axis], reduce: Sequence[Axis], part: InlineCandidate) -> bool:
    """Whether a stage has as many points as a part has elements."""
    points = product(a.extent for a in (*axes, *reduce))
    elements = product(a.extent for a in part.stage.axes)
    if isinstance(points, tirx.IntImm) and isinstance(elements, tirx.IntImm):
        return int(points.value) == int(elements.value)
    return Domain(()).equal(points, elements)


def is_position(index: ir.Expr) -> bool:
    """Whether an index needs no simplification after it is put in place of a variable."""
    return isinstance(index, ir.Var | tirx.IntImm)
