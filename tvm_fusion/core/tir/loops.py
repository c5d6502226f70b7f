"""Build loops, thread bindings and substitutions of TIR statements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tvm import ir, s_tir, sym, tirx

from ..._tvm.ir.buffer import scratch
from ..._tvm.ir.structural import structural_map, structural_walk
from ..untouched import SCHEDULED
from .expressions import loads

if TYPE_CHECKING:
    from ...program.program import Program
    from ...program.stage import Axis

Body = Callable[[ir.Expr], tirx.Stmt]
_BLOCK_FIELDS = (  # in the order of the constructor
    *("iter_vars", "reads", "writes", "name_hint", "body", "init"),
    *("alloc_buffers", "match_buffers", "annotations"),
)


def index(value: ir.Expr | int) -> ir.Expr:
    """Express a number or an extent as an int64 expression, the type of every loop."""
    if isinstance(value, (int, tirx.IntImm)):
        return _number(int(value))
    return value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value)


@lru_cache(maxsize=64)  # the small ones: thousands that stay pin the heap around them
def _number(value: int) -> ir.Expr:
    return tirx.IntImm("int64", value)


def constant(value: ir.Expr | int) -> int | None:
    """Return a number known at compile time; ``None`` for a symbolic one."""
    return int(value) if isinstance(value, (int, tirx.IntImm)) else None


def simplified(expr: ir.Expr) -> ir.Expr:
    """Simplify an index; TVM's own constructors leave some quotients of constants."""
    return sym.Analyzer().simplify(expr)


def product(extents: Sequence[ir.Expr | int]) -> ir.Expr:
    """Multiply extents; constants fold."""
    extents = list(extents)
    if all(isinstance(extent, (int, tirx.IntImm)) for extent in extents):  # nearly always
        return index(math.prod(map(int, extents)))
    total = index(1)
    for extent in extents:
        total = total * index(extent)
    return simplified(total)


def add(counts: Iterable[ir.Expr | int]) -> ir.Expr:
    """Sum counts; constants fold."""
    total = index(0)
    for count in counts:
        total = total + index(count)
    return simplified(total)


def ceildiv(extent: ir.Expr | int, step: int) -> ir.Expr:
    """Divide, rounding up."""
    known = constant(extent)
    if known is not None and isinstance(step, int):
        return index(-(-known // step))
    return simplified(tirx.floordiv(index(extent) + (step - 1), index(step)))


def loop(name: str, extent: ir.Expr | int, body: Body, kind: int = tirx.ForKind.SERIAL):
    """Write ``for name in range(extent)``; one trip leaves the body alone, none leaves nothing."""
    trips = constant(extent)
    if trips == 1:
        return body(index(0))
    if trips == 0:
        return sequence([])
    var = tirx.Var(name, "int64")
    return tirx.For(var, index(0), index(extent), kind, body(var))


def unrolled(name: str, extent: ir.Expr | int, body: Body) -> tirx.Stmt:
    """Write a loop whose trips are to be written out."""
    return loop(name, extent, body, tirx.ForKind.UNROLLED)


def vectorized(width: int, body: Body) -> tirx.Stmt:
    """Write a loop over the lanes of a vector."""
    return loop("lane", width, body, tirx.ForKind.VECTORIZED)


#: Annotation of a loop over a kernel's tasks.
TASKS = "tvm_fusion.tasks"
#: Annotation of a loop of a GPU that copies into registers what other blocks read as well.
NEAR = "tvm_fusion.near"


def tasks(extent: ir.Expr | int, body: Body, is_parallel: bool = True) -> tirx.For:
    """Write a kernel's loop over tasks, which stays a loop, and one kernel, even for one task."""
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    var = tirx.Var("task", "int64")
    return tirx.For(var, index(0), index(extent), kind, body(var), annotations={TASKS: True})


#: Annotation of a host's loops of which one has a trip, the others none.
ONE_OF = "tvm_fusion.one_of"


def one_of(choices: Sequence[tuple[ir.Expr, tirx.Stmt]]) -> tirx.Stmt:
    """Do the one thing whose condition holds, of several that hold barriers.

    A branch would not do: TVM places barriers before it parts the host's code from the device's,
    and refuses those under conditions.
    """

    def once(condition: ir.Expr, body: tirx.Stmt) -> tirx.For:
        trips = tirx.Cast("int64", condition)
        var, kind = tirx.Var("once", "int64"), tirx.ForKind.SERIAL
        return tirx.For(var, index(0), trips, kind, body, annotations={ONE_OF: True})

    return sequence([once(condition, body) for condition, body in choices])


UNROLLED_TRIPS = 32  # of a small window: its offsets become constants


def over(axes: Sequence[Axis], body: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
    """Run through axes one inside the other; small inner windows are unrolled."""
    trips = 1
    unrolled = len(axes)
    for axis in reversed(axes):
        trips *= constant(axis.extent) or UNROLLED_TRIPS + 1
        if trips > UNROLLED_TRIPS:
            break
        unrolled -= 1

    def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
        if depth == len(axes):
            return body(done)
        axis = axes[depth]
        kind = tirx.ForKind.UNROLLED if depth >= unrolled else tirx.ForKind.SERIAL
        return loop(axis.var.name, axis.extent, lambda i: level(depth + 1, [*done, i]), kind)

    return level(0, [])


def threads(tag: str, extent: ir.Expr | int, body: Body) -> tirx.For:
    """Bind a loop to blocks or threads of a GPU, such as ``threadIdx.x``."""
    var = tirx.Var(tag.replace(".", "_"), "int64")
    thread = tirx.IterVar(None, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(
        var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body(var), thread_binding=thread
    )


def sequence(stmts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other, but for those that do nothing; of none, one that does."""
    stmts = [stmt for stmt in stmts if not _is_nothing(stmt)]
    if not stmts:
        return tirx.Evaluate(index(0))
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def _is_nothing(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)


def store_all(
    targets: Sequence[ir.Var], indices: Sequence[ir.Expr], values: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Store values that read none of the targets."""
    return sequence(
        [tirx.BufferStore(t, v, list(indices)) for t, v in zip(targets, values, strict=True)]
    )


def update_all(
    targets: Sequence[ir.Var], indices: Sequence[ir.Expr], values: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Store values that may read all targets: several are computed before one is stored.

    It is the form that TVM's cross-thread reductions want of a block.
    """
    if len(targets) == 1:
        return store_all(targets, indices, values)
    names = [tirx.Var(f"new{i}", str(value.ty.dtype)) for i, value in enumerate(values)]
    binds = [tirx.Bind(name, value) for name, value in zip(names, values, strict=True)]
    return sequence([*binds, store_all(targets, indices, names)])


def update_in_turn(
    targets: Sequence[ir.Var], indices: Sequence[ir.Expr], values: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Store values that may read all targets, each before what it reads is overwritten.

    Only values that read each other's targets are bound first: TVM's passes simplify what a
    variable is bound to, half a second for each vector of an argmax of bits.
    """
    left, stores = dict(enumerate(values)), []
    reads = {i: [load.source for load in loads(value)] for i, value in left.items()}

    def is_read_elsewhere(i: int) -> bool:
        return any(source.same_as(targets[i]) for j in left if j != i for source in reads[j])

    while unread := [i for i in left if not is_read_elsewhere(i)]:
        stores.append(tirx.BufferStore(targets[unread[0]], left.pop(unread[0]), list(indices)))
    kept = [targets[i] for i in left]
    return sequence([*stores, *([update_all(kept, indices, [*left.values()])] if left else [])])


def when(condition: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Guard a statement; a guard that always holds vanishes."""
    if sym.Analyzer().can_prove(condition):
        return body
    return tirx.IfThenElse(condition, body, None)


def coordinates(flat: ir.Expr, extents: Sequence[ir.Expr | int]) -> list[ir.Expr]:
    """Row-major coordinates of a flat position."""
    found: list[ir.Expr] = []
    for extent in reversed(extents[1:]):
        if constant(extent) == 1:
            found.append(index(0))
            continue
        found.append(tirx.floormod(flat, index(extent)))
        flat = tirx.floordiv(flat, index(extent))
    return [*([flat] if extents else []), *reversed(found)]


def choose(task: ir.Expr, pieces: Sequence[tuple[ir.Expr, Body]]) -> tirx.Stmt:
    """Dispatch on the task number: each piece has a range of its own, one after the other."""
    (count, body), *rest = pieces
    if not rest:
        return body(task)
    return tirx.IfThenElse(task < count, body(task), choose(task - count, rest))


DATA = 1  # rather than instructions


def prefetch(element: ir.Expr, level: int, is_write: bool = False) -> tirx.Stmt:
    """Ask memory for the cache line of an element, which need not exist.

    Parameters
    ----------
    level
        The nearest cache that is to hold it: 1 or 2.
    is_write
        Whether it will be written.
    """
    hints = [tirx.const(hint, "int32") for hint in (int(is_write), 4 - level, DATA)]
    address = tirx.address_of(element)
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *hints))


def substitute(
    expr: ir.Expr,
    values: Mapping[ir.Var, ir.Expr],
    load: Callable[[ir.TensorLoad], ir.Expr] | None = None,
) -> ir.Expr:
    """Replace variables, all at once, by values that are converted to their types.

    Optionally loads as well, whose indices are replaced before.
    """
    by_hash = {hash(var): value for var, value in values.items()}  # see expressions.substitute
    if load is None and (not values or (isinstance(expr, ir.Var) and hash(expr) not in by_hash)):
        return expr

    def swap(var: ir.Var) -> ir.Expr:
        value = by_hash.get(hash(var))
        if value is None or str(value.ty.dtype) == str(var.ty.dtype):
            return var if value is None else value
        if isinstance(value, tirx.IntImm):
            return tirx.IntImm(str(var.ty.dtype), value.value)
        return tirx.Cast(str(var.ty.dtype), value)

    callbacks = [(ir.Var, swap)] if load is None else [(ir.TensorLoad, load), (ir.Var, swap)]
    return structural_map(expr, callbacks)


def find(expr: ir.Expr, kind: type) -> list:
    """List the nodes of a kind in an expression or statement."""
    found: list = []
    structural_walk(expr, (kind, found.append))
    return found


def with_fields(block: s_tir.SBlock, **fields: Any) -> s_tir.SBlock:
    """Copy a block with other fields, by their names."""
    return s_tir.SBlock(*(fields.get(name, getattr(block, name)) for name in _BLOCK_FIELDS))


def whole(buffer: ir.Var) -> tirx.BufferRegion:
    """Return the region of all elements of a buffer."""
    return tirx.BufferRegion(
        buffer, [ir.Range.from_min_extent(index(0), d) for d in buffer.ty.shape]
    )


def local(name: str, shape: Sequence[int], dtype: str) -> ir.Var:
    """Declare a buffer in registers."""
    return scratch([index(d) for d in shape], dtype, name, scope="local")


def block(name: str, body: tirx.Stmt, buffers: Sequence[ir.Var] = ()) -> tirx.Stmt:
    """Wrap a statement into a block without iterators that owns some buffers."""
    owner = s_tir.SBlock([], [], [], name, body, alloc_buffers=list(buffers))
    return s_tir.SBlockRealize([], True, owner)


def kernel(
    program: Program,
    body: tirx.Stmt,
    prologue: Sequence[tirx.Stmt] = (),
    buffers: Sequence[ir.Var] = (),
) -> tirx.PrimFunc:
    """Make a finished kernel of a program: parameters are inputs, scalars, outputs."""
    params = [*program.inputs, *program.scalars, *program.outputs]
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    whole = block("root", sequence([*prologue, body]), buffers)
    return tirx.PrimFunc(params, whole).with_attrs(attrs)
