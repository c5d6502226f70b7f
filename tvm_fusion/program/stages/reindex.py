"""Reindex a stage: given row axes first, the remaining axes after them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from ...core.tir.expressions import product, substitute, variables
from ..domain import Domain
from ..stage import Axis

_ONE = tirx.IntImm("int64", 1)


@dataclass(frozen=True)
class Reindexed:
    """New axes for the points of old ones, a bijection that TVM has proved."""

    axes: tuple[Axis, ...]  # the new axes
    forward: tuple[ir.Expr, ...]  # each new axis in terms of the old variables
    # Each old variable in terms of the new ones; empty if the axes are only reordered.
    inverse: dict[ir.Var, ir.Expr]


def reindex(
    axes: Sequence[Axis],
    rows: Sequence[ir.Expr],
    extents: Sequence[ir.Expr],
    complete: bool = False,
) -> Reindexed | None:
    """Count the points of ``axes`` by ``rows`` first.

    Parameters
    ----------
    rows
        What the first new axes shall be, in terms of the old variables: axes, splits of axes,
        fused axes.
    extents
        The extents that they must have.
    complete
        Nothing may be left: the rows alone tell the points apart.

    Returns
    -------
    Reindexed or None
        None where this is no bijection, or TVM cannot prove it.
    """
    domain = Domain(axes)
    plain = {a.var: a for a in axes}
    if all(isinstance(r, ir.Var) and r in plain for r in rows) and len(set(rows)) == len(rows):
        if not all(domain.equal(plain[r].extent, e) for r, e in zip(rows, extents, strict=True)):
            return None
        taken = set(rows)
        rest = [a for a in axes if a.var not in taken]
        if complete and rest:
            return None
        # The row axes take the extents as given, so that they are spelt alike in all stages.
        first = [Axis(r, e) for r, e in zip(rows, extents, strict=True)]
        new = (*first, *rest)
        return Reindexed(new, tuple(a.var for a in new), {})
    gaps = _gaps(domain, rows)
    if gaps is None or (complete and gaps):
        return None
    forward = [*rows, *(expr for expr, _ in gaps)]
    sizes = [*extents, *(extent for _, extent in gaps)]
    if not domain.equal(product(sizes), product(a.extent for a in axes)):
        return None
    sums = domain.iter_map(forward, IterMapLevel.Bijective)
    if sums is None or not all(_covers(s, e, domain) for s, e in zip(sums, sizes, strict=True)):
        return None
    new = tuple(
        Axis(ir.Var(_name(expr, position), ir.PrimType("int64")), extent)
        for position, (expr, extent) in enumerate(zip(forward, sizes, strict=True))
    )
    solved = dict(sym.inverse_affine_iter_map(list(sums), [a.var for a in new]).items())
    target = Domain(new)
    inverse = {a.var: target.simplify(solved[a.var]) for a in axes if a.var in solved}
    if len(inverse) < len(plain):
        return None
    # A second opinion, independent of the detection: forward after inverse changes nothing.
    for axis, expr in zip(new, forward, strict=True):
        if not target.equal(target.simplify(substitute(expr, inverse)), axis.var):
            return None
    return Reindexed(new, tuple(forward), inverse)


def _gaps(domain: Domain, rows: Sequence[ir.Expr]) -> list[tuple[ir.Expr, ir.Expr]] | None:
    """Tell what rows leave of the axes, as (expression, extent) from outer to inner."""
    sums = domain.iter_map(rows, IterMapLevel.NoCheck) if rows else ()
    if sums is None:
        return None
    used: dict[ir.Expr, tuple[sym.iter_affine_map.IterMark, list]] = {}
    for total in sums:
        for split in _splits(total):
            source = _source(split.source)
            known = next((k for k in used if domain.equal(k, source)), source)
            used.setdefault(known, (split.source, []))[1].append(split)
    covered = {v for source in used for v in variables(source)}
    gaps: list[tuple[ir.Expr, ir.Expr]] = []
    sources: list[tuple[ir.Expr, ir.Expr, list]] = [
        (source, mark.extent, splits) for source, (mark, splits) in used.items()
    ]
    order = {a.var: k for k, a in enumerate(domain.axes)}
    for axis in domain.axes:
        if axis.var not in covered:
            sources.append((axis.var, axis.extent, []))
    sources.sort(key=lambda s: min((order[v] for v in variables(s[0]) if v in order), default=0))
    for source, extent, splits in sources:
        found = _gaps_of(domain, source, extent, splits)
        if found is None:
            return None
        gaps.extend(found)
    return gaps


def _gaps_of(
    domain: Domain, source: ir.Expr, extent: ir.Expr, splits: list
) -> list[tuple[ir.Expr, ir.Expr]] | None:
    """Find the parts of a mixed-radix number that no split takes."""
    left = list(splits)
    gaps: list[tuple[ir.Expr, ir.Expr]] = []
    factor: ir.Expr = _ONE
    while left:
        split = next((s for s in left if domain.equal(s.lower_factor, factor)), None)
        if split is not None:
            left.remove(split)
            factor = domain.simplify(factor * split.extent)
            continue
        split = _smallest(left)
        if split is None:
            return None
        width = domain.simplify(tirx.floordiv(split.lower_factor, factor))
        if not domain.equal(width * factor, split.lower_factor):
            return None
        gaps.append((_part(domain, source, factor, width), width))
        factor = split.lower_factor
    if not domain.equal(factor, extent):
        width = domain.simplify(tirx.floordiv(extent, factor))
        if not domain.equal(width * factor, extent):
            return None
        outer = source if not splits else tirx.floordiv(source, factor)
        gaps.append((domain.simplify(outer), width))
    return gaps[::-1]


def _part(domain: Domain, source: ir.Expr, factor: ir.Expr, width: ir.Expr) -> ir.Expr:
    return domain.simplify(tirx.floormod(tirx.floordiv(source, factor), width))


def _smallest(splits: list) -> sym.iter_affine_map.IterSplitExpr | None:
    if len(splits) == 1:
        return splits[0]
    if all(isinstance(s.lower_factor, tirx.IntImm) for s in splits):
        return min(splits, key=lambda s: int(s.lower_factor.value))
    return None


def _splits(total: sym.iter_affine_map.IterSumExpr) -> list:
    """List the splits of a sum, through marks that stand for one whole sum."""
    found = []
    for split in total.args:
        inner = split.source.source
        whole = _is_one(split.lower_factor) and _equal_extent(split.extent, split.source.extent)
        if isinstance(inner, sym.iter_affine_map.IterSumExpr) and whole:
            found.extend(_splits(inner))
        else:
            found.append(split)
    return found


def _source(mark: sym.iter_affine_map.IterMark) -> ir.Expr:
    source = mark.source
    if isinstance(source, sym.iter_affine_map.IterMapExpr):
        return sym.normalize_iter_map_to_expr(source)
    return source


def _covers(total: sym.iter_affine_map.IterSumExpr, extent: ir.Expr, domain: Domain) -> bool:
    """Whether a sum takes every value from 0 to ``extent``: a mixed-radix number from 0."""
    if not domain.equal(total.base, tirx.IntImm("int64", 0)):
        return False
    reached: ir.Expr = _ONE
    left = list(total.args)
    while left:
        split = next((s for s in left if domain.equal(s.scale, reached)), None)
        if split is None:
            return False
        left.remove(split)
        reached = domain.simplify(reached * split.extent)
    return domain.equal(reached, extent)


def _equal_extent(a: ir.Expr, b: ir.Expr) -> bool:
    return a.same_as(b) or Domain(()).equal(a, b)


def _is_one(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 1


def _name(expr: ir.Expr, position: int) -> str:
    return expr.name if isinstance(expr, ir.Var) else f"r{position}"
