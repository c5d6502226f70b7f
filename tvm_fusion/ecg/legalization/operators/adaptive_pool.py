"""Adaptive average pooling as sums over windows of one length, masked beyond each window.

TOPI's windows have a length that depends on the position: a reduction inside a map, which no
schedule of a GPU takes.
"""

from functools import reduce

from tvm import ir, relax, te, tirx


def adaptive_avg_pool(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Mean of ``x[i * I // O : ceil((i + 1) * I / O)]`` along every spatial axis."""
    extents = call.ty.shape.values
    spatial = [d for d, letter in enumerate(call.attrs.layout) if letter not in "NC"]

    def compute(x: te.Tensor) -> te.Tensor:
        windows = {d: _Window(x.shape[d], extents[d]) for d in spatial}
        steps = [te.reduce_axis((0, w.longest), name=f"rv{d}") for d, w in windows.items()]

        def total(*at: ir.Expr) -> ir.Expr:
            place, inside = list(at), []
            for (d, window), step in zip(windows.items(), steps, strict=True):
                place[d] = window.start(at[d]) + step.var
                if not window.is_even:
                    inside.append(step.var < window.length(at[d]))
            value = x(*place)
            if inside:
                zero = tirx.const(0, str(x.dtype))
                value = tirx.if_then_else(reduce(tirx.And, inside), value, zero)
            return te.sum(value, axis=steps)

        sums = te.compute(extents, total, name="adaptive_pool_sum")

        def mean(*at: ir.Expr) -> ir.Expr:
            count = reduce(lambda a, b: a * b, (w.length(at[d]) for d, w in windows.items()))
            return sums(*at) / tirx.Cast(str(x.dtype), count)

        return te.compute(extents, mean, name="adaptive_pool_avg")

    hint = str(call.op.name).rsplit(".", 1)[-1]
    return bb.call_te(compute, call.args[0], primfunc_name_hint=hint)


class _Window:
    """Windows along an axis of ``size`` elements, ``count`` of them."""

    def __init__(self, size: ir.Expr, count: ir.Expr) -> None:
        self._size, self._count = size, count
        known = all(isinstance(extent, tirx.IntImm) for extent in (size, count))
        one = isinstance(count, tirx.IntImm) and int(count) == 1
        self.is_even = one or (known and int(size) % int(count) == 0)
        quotient = tirx.floordiv(size + count - 1, count)
        self.longest = quotient if self.is_even else quotient + 1

    def start(self, at: ir.Expr) -> ir.Expr:
        return at * self.longest if self.is_even else tirx.floordiv(at * self._size, self._count)

    def length(self, at: ir.Expr) -> ir.Expr:
        if self.is_even:
            return self.longest
        end = tirx.floordiv((at + 1) * self._size + self._count - 1, self._count)
        return end - self.start(at)
