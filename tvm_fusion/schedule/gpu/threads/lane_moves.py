"""Reductions and exchanges between the lanes of AMD waves by moves of registers.

TVM writes both as shuffles, which are ``ds_bpermute`` on AMD: each takes the way through the LDS,
64 clocks and a wait. The rows of :mod:`...instructions.lanes` take none:

    all-reduce of a, b over threadIdx.x:         for each move of the wave:
                                                     there = move.read(here), of a and of b
                                                     here = combine(here, there)
    shuffle(x, threadIdx.x ^ mask)        ->     exchange moves of the mask, of x
"""

from collections.abc import Sequence
from functools import reduce

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from ...._tvm.ir.target import target_kind
from ....core.tir.expressions import call_name, substitute
from ....core.tir.loops import constant, find, store_all, update_all
from ....device import Device, device_of
from ...instructions.lanes import all_reduce_moves, exchange_moves, from_last

_SCOPE, _INNERMOST = "reduce_scope", "threadIdx.x"
_AXES = (_INNERMOST, "threadIdx.y", "threadIdx.z")
_ALL_REDUCE, _SHUFFLE = "tvm_thread_allreduce", "tvm_warp_shuffle"


@tirx.transform.prim_func_pass(opt_level=0, name="ReduceByLaneMoves")
class ReduceByLaneMoves:
    """Lower all-reduces over ``threadIdx.x`` within a wave; runs before LowerThreadAllreduce.

    What the moves have no step for is left to it.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an AMD GPU; others are unchanged."""
        if target_kind(func) != "rocm":
            return func
        device, threads = device_of(func.attrs["target"]), _Threads(func.body)

        def lower(attr: tirx.AttrStmt) -> tirx.Stmt:
            if attr.attr_key != _SCOPE:
                return attr
            found = _reduced(attr, device, threads)
            return attr if found is None else found

        return func.with_body(
            tvm_ffi.structural_map(func.body, (tirx.AttrStmt, lower), order="post")
        )


@tirx.transform.prim_func_pass(opt_level=0, name="ExchangeByLaneMoves")
class ExchangeByLaneMoves:
    """Lower shuffles from ``threadIdx.x ^ mask``; others stay as they are."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an AMD GPU; others are unchanged."""
        if target_kind(func) != "rocm":
            return func
        device, threads = device_of(func.attrs["target"]), _Threads(func.body)

        def lower(call: ir.Call) -> ir.Expr:
            if call_name(call) != _SHUFFLE:
                return call
            _mask, value, lane, width, _warp_size = call.args
            mask = threads.exchange_mask(lane)
            if mask is None or mask >= int(width):
                return call
            moves = exchange_moves(device, mask)
            return call if moves is None else reduce(lambda x, move: move.read(x), moves, value)

        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, lower), order="post"))


class _Threads:
    """The threads of a block, as far as they are bound in a body."""

    def __init__(self, body: tirx.Stmt) -> None:
        attrs = [a for a in find(body, tirx.AttrStmt) if a.attr_key == "thread_extent"]
        self._axes = {a.node.thread_tag: (a.node.var, constant(a.value)) for a in attrs}

    def is_innermost(self, expr: ir.Expr) -> bool:
        """Whether an expression is ``threadIdx.x``."""
        while isinstance(expr, tirx.Cast):
            expr = expr.value
        variable, _extent = self._axes.get(_INNERMOST, (None, None))
        return variable is not None and expr.same_as(variable)

    @property
    def lanes(self) -> int | None:
        """How many threads are along ``threadIdx.x``; None unless a power of two."""
        _variable, extent = self._axes.get(_INNERMOST, (None, None))
        return extent if extent is not None and extent & (extent - 1) == 0 else None

    def lane(self, warp_size: int) -> ir.Expr:
        """Return a thread's number in its wave."""
        place: ir.Expr = tirx.const(0, "int32")
        for tag in reversed(_AXES):
            if tag in self._axes:
                variable, extent = self._axes[tag]
                place = place * tirx.const(extent, "int32") + tirx.Cast("int32", variable)
        return tirx.bitwise_and(place, tirx.const(warp_size - 1, "int32"))

    def exchange_mask(self, lane: ir.Expr) -> int | None:
        """Return the constant of ``threadIdx.x ^ constant``."""
        while isinstance(lane, tirx.Cast):
            lane = lane.value
        if self.lanes is None or not isinstance(lane, tirx.BitwiseXor):
            return None
        return constant(lane.b) if self.is_innermost(lane.a) else None


def _reduced(attr: tirx.AttrStmt, device: Device, threads: _Threads) -> tirx.Stmt | None:
    """Lower one all-reduce; None where it is not over the lanes of a wave."""
    reducer, calls = attr.node, [c for c in find(attr, ir.Call) if call_name(c) == _ALL_REDUCE]
    if len(calls) != 1:
        return None
    count = len(reducer.result)
    _size, *arguments = calls[0].args
    terms, condition = arguments[:count], arguments[count]
    results, over = arguments[count + 1 : 2 * count + 1], arguments[2 * count + 1 :]
    lanes, warp_size = threads.lanes, device.warp_size or 1
    if len(over) != 1 or not threads.is_innermost(over[0]) or not lanes or lanes > warp_size:
        return None
    moves = all_reduce_moves(device, lanes)
    if moves is None:
        return None
    if not constant(condition):
        pairs = zip(terms, reducer.identity_element, strict=True)
        terms = [tirx.Select(condition, term, start) for term, start in pairs]
    here, at = [load.source for load in results], list(results[0].indices)
    there = [tirx.decl_buffer([1], str(b.dtype), f"{b.name}_moved", scope="local") for b in here]
    first = [tirx.const(0, "int32")]
    own = [tirx.BufferLoad(b, at) for b in here]
    others = [tirx.BufferLoad(b, first) for b in there]

    def combined() -> Sequence[ir.Expr]:
        given = [*zip(reducer.lhs, own, strict=True), *zip(reducer.rhs, others, strict=True)]
        return [substitute(value, dict(given)) for value in reducer.result]

    stmts = [*map(tirx.AllocBuffer, there), store_all(here, at, terms)]
    for move in moves:
        stmts.append(store_all(there, first, [move.read(value) for value in own]))
        stmts.append(update_all(here, at, combined()))
    if not all(move.mask for move in moves):
        lane = threads.lane(warp_size)
        stmts.append(store_all(here, at, [from_last(device, lanes, x, lane) for x in own]))
    return tirx.SeqStmt(stmts)
