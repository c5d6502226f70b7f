"""Keep indices that are data inside of their buffers, for all operators in one place.

A token id, a scatter's row or a region's image may be any number when a model runs. An access whose
index depends on what is read from a buffer is bounded, unless the index provably is in range:

    x[.., i, ..]           ->  x[.., max(min(i, extent - 1), 0), ..]     a read: the nearest
    y[.., i, ..] = value   ->  if 0 <= i < extent: y[.., i, ..] = value  a write: left out

which costs two integer operations an index. TVM's scatters add the coordinates of a write up to one
number, whose range says nothing of them: there each index is compared with the extent of its own
axis, from whose end it counts if it is negative. A loop whose bounds are data has no more trips
than the axis that it runs through has elements. Conditions of writes move out of loops that they
do not depend on, so that loops over vectors stay loops over vectors.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir.transform import PassContext

from ..._tvm.ir.structural import structural_map, structural_walk
from ...core.tir.expressions import choice, has_load, variables
from ...core.tir.loops import find
from ...core.untouched import has_blocks, is_scheduled
from ..record import record_of

#: Attribute of a function whose data-dependent indices are in range: bounded, or by construction,
#: where it counts or permutes and reads no index from outside.
IN_RANGE = "tvm_fusion.indices_in_range"
_MOST_ELEMENTS = 1 << 30  # of an axis; within any type of indices


@tvm.transform.module_pass(opt_level=0, name="BoundIndices")
class BoundIndices:
    """Bound data-dependent indices of all PrimFuncs over blocks that are not scheduled yet.

    Kernels that were scheduled elsewhere or are written at thread level stay as they are.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every PrimFunc; equal ones stay equal."""
        changed = {}
        for gvar, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and has_blocks(func) and not is_scheduled(func):
                bounded = bound_indices(func)
                if not bounded.same_as(func):
                    changed[gvar] = bounded
        if changed:
            mod = mod.clone()
            mod.update(tvm.IRModule(changed))
        return mod


@functools.lru_cache(maxsize=4096)
def bound_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bound the data-dependent indices of one function, which is returned as it is without any."""
    if (func.attrs or {}).get(IN_RANGE, False):
        return func
    dependent = _dependent_variables(func)
    if not _has_dependent_access(func, dependent):
        return func
    body = _Bounds(func, dependent).body()
    return func if body.same_as(func.body) else func.with_body(body).with_attr(IN_RANGE, True)


def _dependent_variables(func: tirx.PrimFunc) -> set[ir.Var]:
    """Find the variables whose values depend on data: bound to them, or loops bounded by them."""
    defined: list[tuple[ir.Var, Sequence[ir.Expr]]] = []

    def realized(realize: s_tir.SBlockRealize) -> None:
        for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            defined.append((iterator.var, [value]))

    structural_walk(
        func.body,
        [
            (tirx.For, lambda x: defined.append((x.loop_var, [x.min, x.extent]))),
            ((tirx.Bind, tirx.Let), lambda x: defined.append((x.var, [x.value]))),
            (s_tir.SBlockRealize, realized),
        ],
    )
    found: set[ir.Var] = set()
    while True:
        more = {
            v for v, exprs in defined if v not in found and any(_depends(e, found) for e in exprs)
        }
        if not more:
            return found
        found |= more


def _depends(expr: ir.Expr, dependent: set[ir.Var]) -> bool:
    return has_load(expr) or bool(dependent and variables(expr) & dependent)


def _has_dependent_access(func: tirx.PrimFunc, dependent: set[ir.Var]) -> bool:
    hits: list[bool] = []

    def visit(access: ir.TensorLoad | tirx.BufferStore) -> None:
        if not hits and any(_depends(i, dependent) for i in access.indices):
            hits.append(True)

    structural_walk(func.body, ((ir.TensorLoad, tirx.BufferStore), visit))
    return bool(hits)


class _Bounds:
    """The body of one function with bounds."""

    def __init__(self, func: tirx.PrimFunc, dependent: set[ir.Var]) -> None:
        self._func, self._dependent = func, dependent
        record = record_of(func)
        self._axis_of = _AXES.get(record.name) if record is not None else None
        self._attrs = record.attrs if record is not None else {}
        self._analyzer = sym.Analyzer()
        self._guards: dict[int, tirx.Stmt] = {}  # by their addresses
        self._most: dict[int, ir.Expr] = {}  # trips of loops, by their variables
        for param in func.params:
            self._bind_extents(param)
        structural_walk(func.body, (tirx.For, self._range))

    def body(self) -> tirx.Stmt:
        return structural_map(
            self._func.body,
            [
                (ir.TensorLoad, self._load),
                (tirx.BufferStore, self._store),
                (ir.TensorRegion, self._region),
                (tirx.For, self._loop),
            ],
        )

    def _bind_extents(self, param: ir.Var) -> None:
        """Take symbolic extents as positive: no element of an empty tensor is computed."""
        if isinstance(param.ty, tirx.BufferType):
            for extent in param.ty.shape:
                if isinstance(extent, ir.Var):
                    bounds = ir.Range.from_min_extent(_of(extent, 1), _of(extent, _MOST_ELEMENTS))
                    self._analyzer.bind(extent, bounds, allow_override=True)

    def _range(self, loop: tirx.For) -> None:
        if _depends(loop.extent, self._dependent):
            extents = _extents_run_through(loop)
            if extents:
                self._most[hash(loop.loop_var)] = functools.reduce(tirx.min, extents)
        if all(isinstance(x, tirx.IntImm) for x in (loop.min, loop.extent)):
            bounds = ir.Range.from_min_extent(loop.min, loop.extent)
            self._analyzer.bind(loop.loop_var, bounds, allow_override=True)

    def _load(self, load: ir.TensorLoad) -> ir.Expr:
        indices = [
            self._clamped(i, extent)
            for i, extent in zip(load.indices, load.source.shape, strict=True)
        ]
        if _same(indices, load.indices):
            return load
        if any(isinstance(e, tirx.IntImm) and int(e) == 0 for e in load.source.shape):
            return tirx.const(0, str(load.ty.dtype))
        return tirx.BufferLoad(load.source, indices)

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        if not any(_depends(i, self._dependent) for i in store.indices):
            return store
        inside = self._by_axes(store) or [
            condition
            for i, extent in zip(store.indices, store.buffer.shape, strict=True)
            if _depends(i, self._dependent)
            for condition in (i >= _of(i, 0), i < _of(i, extent))
        ]
        inside = [c for c in inside if not self._analyzer.can_prove(c)]
        return self._guard(tirx.all(*inside), store) if inside else store

    def _by_axes(self, store: tirx.BufferStore) -> list[ir.Expr]:
        """Compare what TVM's scatters read as coordinates with the extents of their axes."""
        if self._axis_of is None:
            return []
        found = [load for i in store.indices for load in find(i, ir.TensorLoad)]
        known: list[ir.TensorLoad] = []
        inside: list[ir.Expr] = []
        for load in found:
            if any(tvm_ffi.structural_equal(load, other) for other in known):
                continue
            known.append(load)
            axis = self._axis_of(self, load)
            if axis is None:
                return []
            extent = _of(load, store.buffer.shape[axis])
            least = _of(load, 0) if self._is_counted_forward() else _of(load, 0) - extent
            inside += [load >= least, load < extent]
        return inside

    def _is_counted_forward(self) -> bool:
        return self._axis_of is _axis_of_row

    def operand(self, load: ir.TensorLoad) -> int | None:
        """Return the position of the parameter that is read; None for an internal buffer."""
        numbers = [n for n, p in enumerate(self._func.params) if p.same_as(load.source)]
        return numbers[0] if numbers else None

    def simplified(self, i: ir.Expr) -> ir.Expr:
        """Simplify an index by the ranges of loops."""
        return self._analyzer.simplify(i)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the operator."""
        return self._attrs[name]

    def _region(self, region: ir.TensorRegion) -> ir.TensorRegion:
        """Bound what a block says that it reads or writes."""
        ranges = []
        for r, extent in zip(region.region, region.source.shape, strict=True):
            start = self._clamped(r.min, extent) if _is_one(r.extent) else r.min
            ranges.append(r if start.same_as(r.min) else ir.Range.from_min_extent(start, r.extent))
        return region if _same(ranges, region.region) else tirx.BufferRegion(region.source, ranges)

    def _loop(self, loop: tirx.For) -> tirx.Stmt:
        """Bound the trips; let a guard that is the same in every trip stand around the loop."""
        most = self._most.get(hash(loop.loop_var))
        if most is not None:
            trips = tirx.min(loop.extent, _of(loop.extent, most))
            loop = tirx.For(
                loop.loop_var, loop.min, trips, loop.kind, loop.body, annotations=loop.annotations
            )
        guard = loop.body
        if not self._is_guard(guard) or loop.kind == tirx.ForKind.THREAD_BINDING:
            return loop
        if loop.loop_var in tirx.analysis.undefined_vars(guard.condition):
            return loop
        written = {store.buffer for store in find(guard.then_case, tirx.BufferStore)}
        if any(load.source in written for load in find(guard.condition, ir.TensorLoad)):
            return loop
        inner = tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, guard.then_case,
            annotations=loop.annotations,
        )  # fmt: skip
        return self._guard(guard.condition, inner)

    def _guard(self, condition: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        guard = tirx.IfThenElse(condition, body, None)
        self._guards[hash(guard)] = guard
        return guard

    def _is_guard(self, stmt: tirx.Stmt) -> bool:
        return isinstance(stmt, tirx.IfThenElse) and hash(stmt) in self._guards

    def _clamped(self, i: ir.Expr, extent: ir.Expr) -> ir.Expr:
        if not _depends(i, self._dependent):
            return i
        last = _of(i, extent) - _of(i, 1)
        if not self._analyzer.can_prove(i <= last):
            i = tirx.min(i, last)
        return i if self._analyzer.can_prove(i >= _of(i, 0)) else tirx.max(i, _of(i, 0))


def _extents_run_through(loop: tirx.For) -> list[ir.Expr]:
    """List the extents of axes of which each trip of a loop accesses another element."""
    conditional: set[int] = set()

    def skip(branch: Any) -> None:
        conditional.update(hash(access) for access in _accesses(branch))

    structural_walk(loop.body, ((tirx.IfThenElse, tirx.Select), skip))
    calls = [c for c in find(loop.body, ir.Call) if choice(c) is not None]
    for call in calls:
        skip(call)
    return [
        extent
        for access, buffer in ((a, _buffer(a)) for a in _accesses(loop.body))
        if hash(access) not in conditional
        for i, extent in zip(access.indices, buffer.shape, strict=True)
        if isinstance(i, ir.Var) and i.same_as(loop.loop_var)
    ]


def _accesses(node: Any) -> list[Any]:
    return [*find(node, ir.TensorLoad), *find(node, tirx.BufferStore)]


def _buffer(access: Any) -> ir.Var:
    return access.source if isinstance(access, ir.TensorLoad) else access.buffer


def _axis_of_elements(bounds: _Bounds, load: ir.TensorLoad) -> int | None:
    return int(bounds.attribute("axis")) if bounds.operand(load) == 1 else None


def _axis_of_places(bounds: _Bounds, load: ir.TensorLoad) -> int | None:
    """Operands behind the first are the coordinates along one axis after the other."""
    number = bounds.operand(load)
    return number - 1 if number else None


def _axis_of_row(bounds: _Bounds, load: ir.TensorLoad) -> int | None:
    """Coordinates along an axis are a row of the transposed indices."""
    row = bounds.simplified(load.indices[0])
    return int(row) if isinstance(row, tirx.IntImm) else None


# Of operators that TVM expresses by flat numbers, the axis along which a load is a coordinate.
_AXES: dict[str, Callable[[_Bounds, ir.TensorLoad], int | None]] = {
    "relax.scatter_elements": _axis_of_elements,
    "relax.index_put": _axis_of_places,
    "relax.scatter_nd": _axis_of_row,
}


def _of(index: ir.Expr, value: ir.Expr | int) -> ir.Expr:
    """Cast an extent to an index's type."""
    dtype = str(index.ty.dtype)
    if isinstance(value, (int, tirx.IntImm)):
        return tirx.const(int(value), dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(a.same_as(b) for a, b in zip(new, old, strict=True))
