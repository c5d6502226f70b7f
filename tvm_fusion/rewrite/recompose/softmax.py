"""Softmax, with or without the maximum that keeps the exponentials small.

Exponentials are of any base: ``power(2, x)`` is ``exp(log(2) * x)``.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ...core.flags import REASSOCIATE
from ...frontend.tensor_types import dtype_of
from ..nonfinite import ALL, MINUS, NONE, NonFinite
from .matching.coefficient import is_close
from .matching.extents import extent, known_shape, same_shape
from .matching.match import (
    Axes,
    Marked,
    X,
    anchored,
    atom,
    candidates,
    is_itself,
    is_same,
    kept,
    over,
    reduced,
    reductions,
    terms,
)
from .matching.view import View, op_name
from .pattern import Match, Mismatch, Pattern, Writer

_L = atom("log")


class LogSoftmax(Pattern):
    """``x - max(x) - log(sum(exp(x - max(x)), axis)) = log_softmax(x, axis)``.

    So are ``u - log(sum(exp(u), axis))`` of any ``u``, and ``log(softmax(x, axis))``, whose
    logarithm of a small quotient loses digits, or is infinite.
    """

    name = "log_softmax"
    roots = frozenset({"subtract", "add", "log"})
    anchors = frozenset({"log"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a logarithm of a sum of exponentials, or of softmax."""
        logarithm = view.call(root, "log")
        if logarithm is not None:
            found = self._of_quotient(view, logarithm.args[0])
        else:
            found = _difference(view, root)
        if not isinstance(found, tuple):
            return found
        source, axis, factor, dtype, base, changes = found

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype), factor)
            y = write.emit(relax.op.nn.log_softmax(x, axis))
            return write.like(write.scale(y, 1 / base), root)

        return Match((source,), build, changes=changes)

    def _of_quotient(self, view: View, quotient: Any) -> _Found | Mismatch | None:
        quotient = _uncast(view, quotient)
        softmax = view.call(quotient, "nn.softmax")
        if softmax is not None:
            rank = len(softmax.ty.shape.values)
            axis = int(softmax.attrs.axis) % rank
            return softmax.args[0], axis, 1.0, dtype_of(softmax), 1.0, MINUS
        found = exponentials(view, quotient)
        if not isinstance(found, tuple):
            return found
        source, factor, changes = shifted(view, *found)
        return source, found[1], factor, dtype_of(found[0]), 1.0, changes | MINUS


# Source, axis, factor, type, logarithm of the base, and what the operator changes.
_Found = tuple[Any, int, float, str, float, NonFinite]


def _difference(view: View, root: Any) -> _Found | Mismatch | None:
    """Find the logarithm of a sum of exponentials that is subtracted from their exponent."""
    for logarithm in anchored(view, root, "log"):
        reduction = view.reduction(_uncast(view, view.value(logarithm).args[0]))
        e = None if reduction is None else _uncast(view, reduction.source)
        power = None if e is None else exponent(view, e)
        if reduction is None or reduction.kind != "sum" or power is None:
            continue
        if len(reduction.axes) != 1:
            return Mismatch(logarithm, "the sum is over several axes")
        (axis,) = reduction.axes
        argument, base = power
        source, factor, changes = shifted(view, e, axis)
        rows = _maxima(view, source, axis, is_guarded=changes == MINUS)
        found = over(view, root, source, {"log": (logarithm, reduction.kept), "max": rows})
        expected = over(view, argument, source, {"max": rows})
        below = terms((-1 / base, {_L: 1}))
        if expected is None or not is_same(found, {**expected, **below}):
            return Mismatch(
                logarithm, "the logarithm of the sum is not subtracted from the exponent"
            )
        return source, axis, factor, dtype_of(e), base, changes
    return None


def _uncast(view: View, expr: Any) -> Any:
    while view.is_cast(expr):
        expr = view.value(expr).args[0]
    return expr


_S, _M = atom("sum"), atom("max")
_EXPONENTIALS = frozenset({"exp", "power"})


class Softmax(Pattern):
    """``exp(x - max(x)) / sum(exp(x - max(x)), axis) = softmax(x, axis)``.

    So is ``exp(u) / sum(exp(u), axis)`` of any ``u``, but where the sum overflows and the quotients
    are 0: that takes the flag ``reassociate``. So is ``exp`` of what :class:`LogSoftmax` finds.
    What is done about rows without a finite element stays outside, as written.
    """

    name = "softmax"
    roots = frozenset({"divide", "multiply", *_EXPONENTIALS})
    anchors = _EXPONENTIALS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find ``exp(u)`` over its own sum, or of a difference that has its logarithm."""
        if view.call(root, *_EXPONENTIALS) is not None:
            difference = _of_logarithm(view, root)
            if difference is None:
                return None
            source, axis, factor, dtype, _, changes = difference
        else:
            found = exponentials(view, root)
            if not isinstance(found, tuple):
                return found
            (e, axis), dtype = found, dtype_of(found[0])
            source, factor, changes = shifted(view, e, axis)

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype), factor)
            return write.like(write.emit(relax.op.nn.softmax(x, axis)), root)

        return Match((source,), build, needs=_flag(view, root, changes, axis))


class LateSoftmax(Pattern):
    """``exp(x - max(x)) @ v / sum(exp(x - max(x))) = softmax(x) @ v``.

    Attention's kernels divide as late, but for a sum of products that overflows.
    """

    name = "late_softmax"
    roots = frozenset({"divide", "multiply"})
    anchors = _EXPONENTIALS

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a product of exponentials over the sum of their rows."""
        for total, reduction in reductions(view, root, "sum"):
            e = _uncast(view, reduction.source)
            rank = len(known_shape(e) or [])
            if exponent(view, e) is None or reduction.axes != (rank - 1,):
                continue
            source, factor, changes = shifted(view, e, rank - 1)
            for weighed in candidates(view, root):
                product = view.call(_without_moves(view, weighed), "matmul")
                if product is None or hash(_without_moves(view, product.args[0])) != hash(e):
                    continue
                behind = len(known_shape(weighed) or []) - rank
                rows = tuple(
                    None if extent(n) == 1 else axis + behind
                    for axis, n in enumerate((known_shape(e) or [])[:-1])
                )
                marks = {"sum": (total, rows)}
                if not is_same(over(view, root, weighed, marks), terms((1, {X: 1, _S: -1}))):
                    return Mismatch(e, "the product is not divided by the sums of its rows")
                flag = "" if changes in (NONE, MINUS) else REASSOCIATE
                return _late(root, (source, factor, dtype_of(e)), product, flag)
        return None


def _late(root: Any, scores: tuple[Any, float, str], product: relax.Call, flag: str) -> Match:
    """Write softmax, then the product."""
    source, factor, dtype = scores

    def build(write: Writer, x: Any, values: Any) -> Any:
        x = write.scale(write.cast(x, dtype), factor)
        weights = write.cast(write.emit(relax.op.nn.softmax(x, -1)), dtype_of(product.args[0]))
        weights = write.reshape(weights, known_shape(product.args[0]) or [])
        out = write.emit(relax.op.matmul(weights, values, product.attrs.out_dtype))
        return write.like(out, root)

    return Match((source, product.args[1]), build, needs=flag)


def _flag(view: View, root: Any, changes: NonFinite, axis: int) -> str:
    """Name the flag that softmax takes, by what its logarithm changes.

    Beside an infinity, whose weight is no number, a guarded maximum gives zeros: a sum over the row
    is none either.
    """
    is_same = not changes or (changes == MINUS and _is_summed(view, root, axis))
    return "" if is_same else REASSOCIATE


def _is_summed(view: View, rows: Any, axis: int) -> bool:
    """Whether nothing but products reads rows, along their axis."""
    if axis != len(known_shape(rows) or []) - 1 or 0 in view.readers(rows):
        return False
    for binding in view.bindings:
        call = view.call(binding.value)
        if call is None or all(hash(a) != hash(rows) for a in call.args):
            continue
        is_moved = hash(_without_moves(view, binding.var)) == hash(_without_moves(view, rows))
        is_product = op_name(call) == "matmul" and hash(call.args[0]) == hash(rows)
        if is_moved:
            is_product = _is_summed(view, binding.var, len(known_shape(binding.var) or []) - 1)
        if not is_product:
            return False
    return True


def _without_moves(view: View, expr: Any) -> Any:
    """Strip casts, and reshapes that leave the rows of matrices as they are."""
    while True:
        call = view.call(expr, "reshape", "expand_dims", "squeeze", "flatten")
        if call is not None:
            before, after = known_shape(call.args[0]) or [], known_shape(call) or []
            if min(len(before), len(after)) < 2 or not same_shape(before[-2:], after[-2:]):
                return expr
        elif not view.is_cast(expr):
            return expr
        expr = view.value(expr).args[0]


def _of_logarithm(view: View, root: relax.Var) -> _Found | None:
    """Find what an exponential's argument is the logarithm of softmax of."""
    argument, base = exponent(view, root) or (None, 1.0)
    if argument is None:
        return None
    for var in anchored(view, argument, "nn.log_softmax"):
        if is_same(over(view, argument, var), terms((1 / base, {X: 1}))):
            call = view.value(var)
            axis = int(call.attrs.axis) % len(known_shape(call) or [])
            return call.args[0], axis, 1.0, dtype_of(call), base, NONE
    found = _difference(view, argument)
    return found if isinstance(found, tuple) and is_close(found[4], base) else None


class ShiftedSoftmax(Pattern):
    """``softmax(x - max(x, axis), axis) = softmax(x, axis)``, and so its logarithm.

    Models that append attention sinks to the scores subtract the maximum themselves.
    """

    name = "shifted_softmax"
    roots = anchors = frozenset({"nn.softmax", "nn.log_softmax"})

    def match(self, view: View, root: relax.Var) -> Match | None:
        """Find softmax of what a maximum was subtracted from."""
        call = view.value(root)
        axis, argument = int(call.attrs.axis) % len(call.ty.shape.values), call.args[0]
        source, factor, _ = shifted(view, root, axis)
        if hash(source) == hash(argument):
            return None

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype_of(argument)), factor)
            return write.emit(relax.Call(call.op, [x], call.attrs))

        return Match((source,), build)


def exponentials(view: View, root: Any) -> tuple[Any, int] | Mismatch | None:
    """Find ``e`` and the axis in ``e / sum(e, axis)``, where ``e`` is an exponential."""
    for e in anchored(view, root, *_EXPONENTIALS):
        if exponent(view, e) is None:
            continue
        for total, reduction in reductions(view, root, "sum"):
            if not is_itself(view, reduction.source, e):
                return Mismatch(e, "the divisor is not the sum of exponentials")
            if len(reduction.axes) != 1:
                return Mismatch(e, "the sum is over several axes")
            found = over(view, root, e, {"sum": (total, kept(reduction))})
            if not is_same(found, terms((1, {X: 1, _S: -1}))):
                return Mismatch(e, "the exponential is not divided by its sum along the same axis")
            return e, reduction.axes[0]
    return None


def exponent(view: View, e: Any) -> tuple[Any, float] | None:
    """Read an exponential: its argument, and the logarithm of its base."""
    call = view.call(e, *_EXPONENTIALS)
    if call is None or op_name(call) == "exp":
        return None if call is None else (call.args[0], 1.0)
    base = view.number(call.args[0])
    return None if base is None or not 1 < base < math.inf else (call.args[1], math.log(base))


def shifted(view: View, e: Any, axis: int) -> tuple[Any, float, NonFinite]:
    """Find ``x`` and ``c`` in ``exp(c * x - c * max(x, axis))``; else the argument and its factor.

    Also says what log-softmax changes where it is written with such exponentials. A ``c`` above 1
    is no factor: ``c * x`` may overflow.
    """
    argument, base = exponent(view, e) or (view.value(e).args[0], 1.0)
    for var in anchored(view, argument, "max", "where"):
        largest = view.reduction(_guarded(view, var))
        if largest is None or (largest.kind, largest.axes) != ("max", (axis,)):
            continue
        x = largest.source
        if not same_shape(known_shape(x) or [], known_shape(e) or []):
            continue
        is_guarded = view.call(var, "where") is not None
        found = over(view, argument, x, {"max": _maxima(view, x, axis, is_guarded)})
        factor = (found or {}).get(next(iter(terms((1, {X: 1})))), 0.0)
        if factor > 0 and is_same(found, terms((factor, {X: 1}), (-factor, {_M: 1}))):
            whole, changes = factor * base, MINUS if is_guarded else NONE
            return (x, whole, changes) if whole <= 1 else (argument, base, changes)
    return argument, base, ALL


def _maxima(view: View, x: Any, axis: int, is_guarded: bool) -> tuple[Marked, Axes]:
    """Mark the maxima of a tensor; of guarded ones, those that keep their axis."""
    is_largest = reduced(view, "max", x, (axis,))
    axes = range(len(known_shape(x) or []))
    if is_guarded:
        guarded = tuple(None if a == axis else a for a in axes)
        return lambda expr: is_largest(_guarded(view, expr)), guarded
    return is_largest, tuple(a for a in axes if a != axis)


def _guarded(view: View, expr: Any) -> Any:
    """Strip ``where(abs(m) == inf, 0, m)``, which keeps a difference of infinities a number."""
    call = view.call(expr, "where")
    if call is None or view.number(call.args[1]) != 0:
        return expr
    test, size = view.call(call.args[0], "equal", "isinf"), None
    if test is not None and op_name(test) == "isinf":
        size = test.args[0]
    elif test is not None and view.number(test.args[1]) == math.inf:
        absolute = view.call(test.args[0], "abs")
        size = None if absolute is None else absolute.args[0]
    return call.args[2] if size is not None and hash(size) == hash(call.args[2]) else expr
