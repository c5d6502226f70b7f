"""Bisections of a sorted row, a task for each value, whatever the target.

    for each value, in parallel:
        low, high = 0, number of boundaries
        while low < high: keep the half that the value stands in
        y[value] = low

TVM's own loop over values is a CPU's parallel one, which no GPU runs.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ....core.tir.loops import index
from ....core.tir.task_kernel import Extents, Local, repeat_while, store, task_kernel

NAME = "relax.bucketize"


def bucketize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Count the boundaries before each value, or with ``right`` up to it."""
    is_right = bool(call.attrs.right)

    def body(*given: Any) -> None:
        *at, values, boundaries, made = given
        low, high = Local("int64", 0), Local("int64", index(boundaries.shape[0]))
        with repeat_while(low.value < high.value):
            middle = Local("int64", (low.value + high.value) >> index(1))
            element = boundaries[middle.value]
            # One condition for both ends: TVM turns a negated ``>=`` into ``<``, and with NaN,
            # which stands behind all numbers, neither holds.
            is_behind = element > values[tuple(at)] if is_right else element >= values[tuple(at)]
            low.set(tirx.Select(is_behind, low.value, middle.value + index(1)))
            high.set(tirx.Select(is_behind, middle.value, high.value))
        store(made, at, tirx.Cast(str(made.dtype), low.value))

    own = Extents()
    types = [
        (own.of(ty.shape.values), str(ty.dtype.dtype))
        for ty in (*(arg.ty for arg in call.args), call.ty)
    ]
    *inputs, made = types
    func = task_kernel("bucketize", inputs[0][0], inputs, [made], body)
    return relax.call_tir(bb.add_func(func, "bucketize"), list(call.args), out_ty=call.ty)
