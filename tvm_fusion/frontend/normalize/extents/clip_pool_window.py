"""Clip pooling windows that are larger than the padded input."""

import math
from typing import Any

from tvm import relax, tirx

from ..engine import Scope, op_name, rewrite_pass
from .apply_ranges import ranged_analyzer

_POOLS = {f"relax.nn.{kind}_pool{n}d": (kind, n) for kind in ("avg", "max") for n in (1, 2, 3)}
_AXES = {1: "W", 2: "HW", 3: "DHW"}


@rewrite_pass
def ClipPoolWindow(value: Any, scope: Scope) -> Any:
    """Cut pooling windows down to the padded input; average over all of it as a mean.

    Along an axis on which the window is larger than the padded input there is one output, and
    elements beyond the padding count neither for the sum nor for the divisor (ONNX's AveragePool
    with ``ceil_mode``). TVM would pad the input to the window's size instead. An average over a
    whole input without padding becomes ``relax.mean``. Windows over a symbolic extent are cut down
    to the largest that it may be, with as much of the padding behind, unless padding counts.
    """
    if op_name(value) not in _POOLS:
        return None
    kind, n = _POOLS[op_name(value)]
    data, attrs = value.args[0], value.attrs
    layout = str(attrs.layout)
    axes = [layout.find(letter) for letter in _AXES[n]]
    if data.ty.shape is None or len(layout) != n + 2 or -1 in axes:
        return None
    extents = [data.ty.shape[axis] for axis in axes]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return _clipped_to_bounds(value, scope, kind, extents)
    extents = [int(extent) for extent in extents]
    window, dilation = [int(x) for x in attrs.pool_size], [int(x) for x in attrs.dilation]
    padding = [int(x) for x in attrs.padding]
    padded = [e + padding[i] + padding[n + i] for i, e in enumerate(extents)]
    # One element of the window every `dilation` positions.
    clipped = [min(w, math.ceil(p / d)) for w, p, d in zip(window, padded, dilation, strict=True)]
    whole = clipped == padded and not any(padding) and set(dilation) == {1}
    if kind == "avg" and whole and str(attrs.out_layout) == layout:
        return relax.op.mean(data, axis=axes, keepdims=True)
    # A cut window must reach to the very end, lest ceil_mode begin a second one behind it.
    reach = [(c - 1) * d + 1 for c, d in zip(clipped, dilation, strict=True)]
    cut = [c != w for c, w in zip(clipped, window, strict=True)]
    if not any(cut) or any(x and r != p for x, r, p in zip(cut, reach, padded, strict=True)):
        return None
    return _pool(value, clipped, padding, bool(attrs.ceil_mode))


def _clipped_to_bounds(value: Any, scope: Scope, kind: str, extents: list[Any]) -> Any:
    """Cut windows and the padding behind them alike, so that as many are left of any extent."""
    attrs, n = value.attrs, len(extents)
    if kind == "avg" and attrs.count_include_pad:
        return None
    analyzer = ranged_analyzer(extents, scope)
    windows, padding = list(map(int, attrs.pool_size)), list(map(int, attrs.padding))
    before = [*windows]
    for axis, (extent, stride, by) in enumerate(
        zip(extents, map(int, attrs.strides), map(int, attrs.dilation), strict=True)
    ):
        if attrs.ceil_mode:  # padding that makes rounding down count as many windows
            if padding[axis] + stride > (windows[axis] - 1) * by + 1:
                return None  # a last one may begin in the padding, where it does not count
            padding[n + axis] += stride - 1
        most = int(analyzer.const_int_bound(extent).max_value)
        needed = (most - 1 + padding[axis]) // by + 1
        cut = max(0, min(windows[axis] - needed, padding[n + axis] // by))
        windows[axis] -= cut
        padding[n + axis] -= cut * by
    return None if windows == before else _pool(value, windows, padding, False)


def _pool(value: Any, windows: list[int], padding: list[int], ceil_mode: bool) -> Any:
    attrs = value.attrs
    return getattr(relax.op.nn, op_name(value).rsplit(".", 1)[-1])(
        value.args[0],
        windows,
        list(map(int, attrs.strides)),
        padding,
        list(map(int, attrs.dilation)),
        ceil_mode,
        bool(attrs.count_include_pad),
        str(attrs.layout),
        str(attrs.out_layout),
    )
