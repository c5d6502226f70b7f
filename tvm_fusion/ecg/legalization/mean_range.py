"""Means of bfloat16 whose sums leave float32's range, although the means do not.

Terms are summed at 2^-16 of their size, and what divides the sum puts the factor back: both are
exact, since float32 holds 2^-16 of bfloat16's least number.
"""

from __future__ import annotations

from tvm import ir, tirx

from ..._tvm.ir.structural import structural_map, structural_walk

MEANS = frozenset(
    {
        *("relax.mean", "relax.variance"),
        *(f"relax.nn.{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)),
    }
)
_FACTOR = 2.0**-16


def scaled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Sum smaller terms in the float32 kernel of one of :data:`MEANS`.

    Parameters
    ----------
    func
        Unscheduled. A first sum that is read by anything but a quotient is left as it is; a second
        one is of a variance's squares, which overflow by themselves.
    """
    total = _first_sum(func)

    def is_total(expr: ir.Expr) -> bool:
        return isinstance(expr, ir.TensorLoad) and hash(expr.source) == total

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if hash(node.buffer) != total or not isinstance(node.value, tirx.Add):
            return node
        value = node.value.a + node.value.b * tirx.const(_FACTOR, "float32")
        return tirx.BufferStore(node.buffer, value, node.indices)

    def quotient(node: tirx.Div) -> ir.Expr:
        return node * tirx.const(1 / _FACTOR, "float32") if is_total(node.a) else node

    handlers = ((tirx.BufferStore, store), (tirx.Div, quotient))
    return func.with_body(structural_map(func.body, handlers, order="post"))


def _first_sum(func: tirx.PrimFunc) -> int | None:
    """Find the first buffer that terms are added to, by its hash, if the rest only divides it."""
    sums: list[int] = []
    loads: list[int] = []
    expected: list[int] = []

    def store(node: tirx.BufferStore) -> None:
        first = node.value.a if isinstance(node.value, tirx.Add) else None
        if isinstance(first, ir.TensorLoad) and hash(first.source) == hash(node.buffer):
            sums.append(hash(node.buffer))
            expected.append(hash(node.buffer))

    def quotient(node: tirx.Div) -> None:
        if isinstance(node.a, ir.TensorLoad):
            expected.append(hash(node.a.source))

    structural_walk(
        func.body,
        [
            (ir.TensorLoad, lambda load: loads.append(hash(load.source))),
            (tirx.BufferStore, store),
            (tirx.Div, quotient),
        ],
    )
    return sums[0] if sums and loads.count(sums[0]) == expected.count(sums[0]) else None
