"""Rotary embedding: pairs of elements rotated by an angle that depends on the position."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ...frontend.tensor_types import dtype_of
from .matching.extents import known_shape
from .matching.view import View, op_name
from .pairs import Half, Order, half_of, halves, joined
from .pattern import Match, Mismatch, Pattern, Writer

_LARGEST = 1 << 24  # elements of a table that is looked through
_TABLE = ("strided_slice", "concat", "take", "multiply", "permute_dims", "index_tensor")


class Rotary(Pattern):
    """``concat(a * cos - b * sin, b * cos + a * sin) = rotary(concat(a, b), cos, sin)``.

    ``a`` and ``b`` are the halves of the last axis, or every other element: then both are
    interleaved again. ``x * cos + concat(-b, a) * sin`` with tables as wide as ``x``, and products
    of real and imaginary parts, are the same. Relax has no operator for it, so all become the
    equation's left side: of tables half as wide, without a negation, each element read once.
    """

    name = "rotary"
    roots = frozenset({"add", "subtract", "concat", "reshape", "flatten"})
    anchors = frozenset({"concat", "stack"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a turned tensor, in parts or whole."""
        if op_name(view.value(root)) in ("add", "subtract"):
            found = _whole(view, root)
        else:
            found = _parts(view, root)
        if isinstance(found, str):
            return Mismatch(root, found)
        if found is None:
            return None
        reason = found.mistake(view)
        if reason:
            return Mismatch(root, reason)
        return Match((found.source, found.cos, found.sin), found.writer(root), str(found))


@dataclass(frozen=True)
class _Rotary:
    """A turned tensor.

    Attributes
    ----------
    source, cos, sin : ir.Expr
        The tensor and its tables.
    order : str
        Which elements are pairs.
    is_whole
        Whether the tables are as wide as the tensor, with each angle twice.
    """

    source: Any
    cos: Any
    sin: Any
    order: Order
    is_whole: bool

    def __str__(self) -> str:
        """Describe it for a record."""
        tables = [getattr(t, "name", "constant") for t in (self.cos, self.sin)]
        return (
            f"x {getattr(self.source, 'name', 'constant')}, {self.order},"
            f" cos {tables[0]}, sin {tables[1]}"
        )

    def mistake(self, view: View) -> str:
        """Say what the tables show to be wrong; nothing where they are only known at run time."""
        kinds = [_function(view, table) for table in (self.cos, self.sin)]
        if kinds[0] == "sin" or kinds[1] == "cos":
            return "sine and cosine are exchanged"
        tables = [view.value(t) for t in (self.cos, self.sin)]
        if not all(isinstance(t, GenericConst) and np.prod(t.value.shape) <= _LARGEST
                   for t in tables):  # fmt: skip
            return ""
        cos, sin = (np.asarray(t.value.numpy(), "float64") for t in tables)
        if self.is_whole:
            for table in (cos, sin):
                a, b = _halved(table, self.order)
                if not np.array_equal(a, b):
                    return "the elements of a pair are rotated by different angles"
        if cos.ndim > 1 and not cos[..., 0, :].any() and sin[..., 0, :].any():
            return "sine and cosine are exchanged"
        return ""

    def writer(self, root: relax.Var) -> Any:
        """Make the function that writes it."""
        shape = known_shape(root) or []

        def build(write: Writer, x: Any, cos: Any, sin: Any) -> Any:
            a, b = (write.emit(part) for part in halves(x, self.order))
            if self.is_whole:
                cos, sin = (write.emit(halves(table, self.order)[0]) for table in (cos, sin))

            def times(x: Any, table: Any) -> Any:
                return write.emit(relax.op.multiply(x, table))

            first = write.emit(relax.op.subtract(times(a, cos), times(b, sin)))
            second = write.emit(relax.op.add(times(b, cos), times(a, sin)))
            if self.order == "half-split":
                return write.emit(relax.op.concat([first, second], -1))
            together = write.emit(relax.op.stack([first, second], -1))
            return write.reshape(together, shape)

        return build


def _whole(view: View, root: relax.Var) -> _Rotary | str | None:
    """Read ``x * cos + swapped(x) * sin``."""
    call = view.value(root)
    is_sum = op_name(call) == "add"
    one, other = call.args
    for left, right in ((one, other), (other, one)) if is_sum else ((one, other),):
        for x, cos in _factors(view, left):
            for swapped, sin in _factors(view, right):
                pair = joined(view, swapped)
                parts = [half_of(view, f) for f in pair[1]] if pair else []
                if pair is None or any(p is None for p in parts):
                    continue
                first, second = (p for p in parts if p is not None)
                if not _is_pair(first, second, pair[0]) or hash(first.source) != hash(x):
                    continue
                if (first.which, second.which) != (1, 0) or first.sign == second.sign:
                    return "the halves are not exchanged with one sign changed"
                if (first.sign < 0) != is_sum:
                    return "the sign is on the other half"
                if not _fits(root, x) or not all(_has_pairs(t, x) for t in (cos, sin)):
                    return None
                return _Rotary(x, cos, sin, pair[0], True)
    return None


def _parts(view: View, root: relax.Var) -> _Rotary | str | None:
    """Read both parts of a turned tensor."""
    pair = joined(view, root)
    if pair is None:
        return None
    order, fields = pair
    reason = None
    for source in _sources(view, fields[0]):
        terms = [_terms(view, field, source) for field in fields]
        if any(t is None for t in terms) or not _fits(root, source):
            continue
        real, imaginary = (t for t in terms if t is not None)
        if any(half.order != order for half, _ in (*real.values(), *imaginary.values())):
            continue
        (a, cos), (b, sin) = real[0], real[1]
        (d, other_sin), (c, other_cos) = imaginary[0], imaginary[1]
        if (hash(cos), hash(sin)) != (hash(other_cos), hash(other_sin)):
            reason = "its parts are not rotated by one angle"
        elif (a.sign, b.sign, c.sign, d.sign) != (1, -1, 1, 1):
            reason = "the sign is on the other half"
        else:
            return _Rotary(source, cos, sin, order, False)
    return reason


def _sources(view: View, field: Any) -> list[Any]:
    """List what the first term of a part may be a half of."""
    call = view.call(field, "add", "subtract")
    if call is None:
        return []
    factors = [factor for factor, _ in _factors(view, call.args[0])]
    return [half.source for half in (half_of(view, f) for f in factors) if half is not None]


def _terms(view: View, expr: Any, source: Any) -> dict[int, tuple[Half, Any]] | None:
    """Read ``a * s + b * t`` as the half and the table of each term, by which half it is."""
    call = view.call(expr, "add", "subtract")
    if call is None:
        return None
    found: dict[int, tuple[Half, Any]] = {}
    for i, term in enumerate(call.args):
        sign = -1 if i and op_name(call) == "subtract" else 1
        inner = view.call(term, "negative")
        if inner is not None:
            sign, term = -sign, inner.args[0]
        for factor, table in _factors(view, term):
            half = half_of(view, factor)
            if half is not None and hash(half.source) == hash(source):
                found[half.which] = replace(half, sign=half.sign * sign), table
    return found if len(found) == 2 else None


def _factors(view: View, expr: Any) -> Iterator[tuple[Any, Any]]:
    call = view.call(expr, "multiply")
    if call is not None:
        yield call.args[0], call.args[1]
        yield call.args[1], call.args[0]


def _is_pair(first: Half, second: Half, order: Order) -> bool:
    return hash(first.source) == hash(second.source) and first.order == second.order == order


def _fits(root: relax.Var, source: Any) -> bool:
    """Whether the tables broadcast to the rotated tensor without enlarging or casting it."""
    own, other = known_shape(root) or [], known_shape(source) or []
    return str(own) == str(other) and dtype_of(root) == dtype_of(source)


def _has_pairs(table: Any, x: Any) -> bool:
    """Whether a table is as wide as a tensor."""
    own, other = known_shape(table), known_shape(x) or []
    return bool(own) and str((own or [0])[-1]) == str(other[-1])


def _halved(array: np.ndarray, order: Order) -> tuple[np.ndarray, np.ndarray]:
    if order == "interleaved":
        return array[..., 0::2], array[..., 1::2]
    middle = array.shape[-1] // 2
    return array[..., :middle], array[..., middle:]


def _function(view: View, table: Any) -> str:
    """Name the function that a table is computed by, where that can be seen."""
    for _ in range(12):
        name = op_name(view.value(table))
        if name in ("cos", "sin"):
            return name
        if not (view.is_cast(table) or view.is_moved(table) or name in _TABLE):
            return ""
        inner = view.value(table).args[0]
        table = inner.fields[0] if isinstance(inner, relax.Tuple) else inner
    return ""
