"""Sorts of integers as ranks: how many numbers stand before each.

    rank[.., i, ..] = sum over j of (key j stands before key i)
    y[.., rank[.., i, ..], ..] = key or number of i          of topk, where the rank is below k

Equal keys keep their order. On an H200, 1,024 float32 numbers take 3.5 us, 8,192 17.3 (PyTorch 20.8
and 47.7); 8,192 of int64, whose comparisons take two instructions, 35.7. TVM's own way, 24 us of
1,024, sorts pieces of 128 and launches a merge for each factor of two behind that, all of it in
global memory. On a CPU TVM's function sorts row after row by one thread, and is in a library that a
process has to load besides the runtime.
"""

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.target import Target

from ...._tvm.ir.buffer import declare
from ....core.tir.loops import index, loop, sequence, when

SORTS = ("relax.sort", "relax.argsort", "relax.topk")
SHORT = 1024  # keys of a row that cost less to compare than to merge, however many rows there are
SHORT_CPU = 512  # a row of so many in 25 us, TVM's sort 95 (one thread of Zen 3)
SHORT_TOPK_CPU = 128  # TVM's topk of the first few does not sort the others
COMPARISONS = 1 << 28  # of longer rows: 16,384 keys of one
LONGEST = 1 << 15


def rank_sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Sort, or give the places of what would be sorted, or the first of both."""
    (given,) = (arg for arg in call.args if isinstance(arg.ty, relax.TensorType))
    axis, falls, outputs = order_of(str(call.op.name), call.attrs, given.ty.ndim)
    fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    made = [declare(ty.shape.values, str(ty.dtype.dtype), "sorted") for ty in fields]

    def compute(x: te.Tensor) -> Any:
        j = te.reduce_axis((0, x.shape[axis]), "j")

        def counted(*i: ir.Expr) -> ir.Expr:
            own, other = x(*i), x(*i[:axis], j, *i[axis + 1 :])
            before = tirx.any(
                other > own if falls else other < own, tirx.all(tirx.EQ(other, own), j < i[axis])
            )
            return te.sum(before.astype("int32"), axis=j)

        rank = te.compute(x.shape, counted, name="rank")
        shapes, dtypes = [b.shape for b in made], [str(b.dtype) for b in made]
        return te.extern(
            shapes,
            [x, rank],
            lambda ins, outs: _placed(ins[0], ins[1], outs, axis, outputs),
            dtype=dtypes,
            out_buffers=made,
            name="placed",
        )

    return builder.call_te(compute, given, primfunc_name_hint=str(call.op.name).split(".")[-1])


def order_of(name: str, attrs: Any, rank: int) -> tuple[int, bool, tuple[str, ...]]:
    """Read the axis, whether numbers fall, and which of values and places an operator gives."""
    read = attrs.__getitem__ if hasattr(attrs, "keys") else attrs.__getattribute__
    axis = int(read("axis")) % rank
    if name == "relax.topk":
        kinds = {"both": ("values", "places"), "values": ("values",), "indices": ("places",)}
        return axis, bool(read("largest")), kinds[str(read("ret_type"))]
    outputs = ("values",) if name == "relax.sort" else ("places",)
    return axis, bool(read("descending")), outputs


def has_kernel(call: relax.Call) -> bool:
    """Whether keys are integers of static rows, short enough to compare all."""
    target = Target.current(allow_none=True)
    if target is None or str(call.op.name) not in SORTS:
        return False
    ty = call.args[0].ty
    if not isinstance(ty.shape, relax.ShapeExpr) or ty.ndim == 0:
        return False
    dtype, shape = str(ty.dtype.dtype), list(ty.shape.values)
    found = fits(str(call.op.name), shape, int(call.attrs.axis), "gpu" in target.keys)
    return found and dtype.startswith(("int", "uint"))


def fits(name: str, shape: Sequence[Any], axis: int, is_gpu: bool) -> bool:
    """Whether comparing all keys of a row costs less than merges."""
    if not all(isinstance(d, tirx.IntImm) and int(d) > 0 for d in shape):
        return False
    keys = int(shape[axis])
    rows = math.prod(map(int, shape)) // keys
    if not is_gpu:
        return keys <= (SHORT_TOPK_CPU if name == "relax.topk" else SHORT_CPU)
    return keys <= SHORT or (keys <= LONGEST and rows * keys * keys <= COMPARISONS)


def _placed(x: Any, rank: Any, outs: Any, axis: int, outputs: Sequence[str]) -> tirx.Stmt:
    """Write each key, or its number, where its rank is."""

    def element(at: list[ir.Expr]) -> tirx.Stmt:
        place = tirx.Cast("int64", tirx.BufferLoad(rank, at))
        where = [*at[:axis], place, *at[axis + 1 :]]
        stores = []
        for out, kind in zip(outs, outputs, strict=True):
            value = tirx.BufferLoad(x, at) if kind == "values" else at[axis]
            stores.append(tirx.BufferStore(out, tirx.Cast(str(out.dtype), value), where))
        return when(place < index(outs[0].shape[axis]), sequence(stores))

    def level(done: list[ir.Expr]) -> tirx.Stmt:
        if len(done) == len(x.shape):
            return element(done)
        return loop("i", x.shape[len(done)], lambda i: level([*done, i]))

    return level([])
