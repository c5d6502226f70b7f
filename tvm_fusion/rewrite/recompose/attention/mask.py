"""Masks of attention: tensors before they are broadcast, and comparisons of positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ....frontend.tensor_types import dtype_of
from ..matching.extents import extent, known_shape, longer, same_extent
from ..matching.view import View, op_name
from ..pattern import Writer
from .indices import Axis, Indices, place
from .reading import read
from .scores import Step

_LARGEST = 1 << 24  # elements of a constant that is looked through


@dataclass(frozen=True)
class Mask:
    """What a step combines scores with.

    Attributes
    ----------
    source : ir.Expr or None
        A tensor; None where positions say all, or nothing happens at all.
    own
        Indices along its axes.
    causal
        Positions that it lets through.
    rows, keys
        Indices of the positions.
    """

    source: Any
    own: tuple[Axis, ...]
    causal: CausalMask | None = None
    rows: Axis = ()
    keys: Axis = ()

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.causal is not None

    @property
    def is_nothing(self) -> bool:
        """Whether the step leaves all scores as they are."""
        return self.source is None and self.causal is None

    def describe(self, step: Step) -> str:
        """Name the kind of mask for a record."""
        if self.is_nothing:
            return "nothing"
        if self.causal is not None:
            return "by position"
        kind = {"add": "added", "where": "boolean"}.get(step.kind, step.kind)
        name = getattr(self.source, "name", "constant")
        return f"{kind} {name}"

    def apply(
        self,
        write: Writer,
        step: Step,
        scores: Any,
        other: Any,
        layout: Sequence[Axis],
        indices: Indices,
    ) -> Any:
        """Write the step on scores, over whose axes run the indices of ``layout``."""
        if self.is_nothing:
            return scores
        if self.causal is None:
            other = place(write, other, self.own, layout, indices)
            if step.kind == "where":
                return self._choose(write, scores, other, step.number, step.keeps)
            other = write.cast(other, dtype_of(scores))
            return write.emit(getattr(relax.op, step.kind)(scores, other))
        seen = self._seen(write, layout, indices)
        causal = self.causal
        if step.kind == "where":
            return self._choose(write, scores, seen, step.number, bool(causal.inside) == step.keeps)
        if np.isneginf(causal.outside):
            return self._choose(write, scores, seen, causal.outside, True)
        pair = (relax.const(x, dtype_of(scores)) for x in (causal.inside, causal.outside))
        added = write.emit(relax.op.where(seen, *pair))
        return write.emit(relax.op.add(scores, added))

    def _choose(
        self, write: Writer, scores: Any, condition: Any, number: float, keeps: bool
    ) -> Any:
        instead = relax.const(number, dtype_of(scores))
        pair = (scores, instead) if keeps else (instead, scores)
        return write.emit(relax.op.where(condition, *pair))

    def _seen(self, write: Writer, layout: Sequence[Axis], indices: Indices) -> Any:
        """Compare the positions of keys with those of queries."""
        offset = self.causal.offset if self.causal is not None else 0
        positions = []
        for axis in (self.keys, self.rows):
            size = indices.size(axis)
            position = write.keep(relax.op.arange(0, size, 1, "int32"))
            positions.append(place(write, position, [axis], layout, indices))
        key, query = positions
        if offset:
            query = write.keep(relax.op.add(query, relax.const(offset, "int32")))
        return write.keep(relax.op.less_equal(key, query))


def read_mask(view: View, step: Step, axes: Sequence[Axis], indices: Indices) -> Mask | None:
    """Relate a mask's axes to the indices of the scores that it is combined with."""
    reading = read(view, step.other, indices)
    if reading is None or len(reading.axes) > len(axes):
        return None
    for own, scores in zip(reversed(reading.axes), reversed(axes), strict=False):
        if own and not indices.join(scores, own):
            return None
    return Mask(reading.source, reading.own)


def simplified(
    view: View, mask: Mask, step: Step, rows: Axis, keys: Axis, indices: Indices
) -> Mask:
    """Recognise masks that say nothing, and those that positions alone decide."""
    own = [index for axis in mask.own for index in indices.resolve(axis)]
    neutral = _neutral(step)
    if neutral is not None and _is_filled(view.value(mask.source), neutral):
        return Mask(None, ())
    if len(rows) != 1 or len(keys) != 1 or sorted(own) != sorted(rows + keys):
        return mask
    order = [next((a for a, x in enumerate(mask.own) if indices.resolve(x) == i), -1)
             for i in (rows, keys)]  # fmt: skip
    found = causal_mask_of(view, mask.source, order[0], order[1]) if min(order) >= 0 else None
    if found is None or found.inside != (neutral if step.kind != "where" else found.inside):
        return mask
    if step.kind == "where" and {found.inside, found.outside} != {0.0, 1.0}:
        return mask
    return Mask(None, (), found, rows, keys) if step.kind in ("add", "where") else mask


def _neutral(step: Step) -> float | None:
    if step.kind == "where":
        return float(step.keeps)
    return {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}.get(step.kind)


def _is_filled(value: Any, number: float) -> bool:
    if not isinstance(value, GenericConst) or not known_shape(value):
        return False
    if np.prod([int(d) for d in value.value.shape]) > _LARGEST:
        return False
    return bool((value.value.numpy() == number).all())


# Causal masks: tensors of one number up to a diagonal, and another beyond it.
_DEEPEST = 16


@dataclass(frozen=True)
class CausalMask:
    """``inside`` where ``key <= query + offset``, ``outside`` elsewhere."""

    inside: float
    outside: float
    offset: int


@dataclass(frozen=True)
class _Position:
    """``row * query + column * key + offset``."""

    row: int
    column: int
    offset: int


_Value: TypeAlias = "float | _Position | CausalMask"

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "bitwise_and": np.logical_and,
    "bitwise_or": np.logical_or,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "less": np.less,
    "where": lambda c, a, b: a if c else b,
    "negative": np.negative,
    "logical_not": np.logical_not,
    "bitwise_not": np.logical_not,
    "astype": lambda x: x,
}
# Of key - query: what the difference is compared with, and whether the inside of the mask is true.
_COMPARED = {"less_equal": (0, True), "less": (-1, True), "greater": (0, False),
             "greater_equal": (-1, False)}  # fmt: skip


def causal_mask_of(view: View, expr: Any, row: int, column: int) -> CausalMask | None:
    """Read a tensor as a causal mask.

    Parameters
    ----------
    expr : ir.Expr
        The tensor: a constant, or computed from positions.
    row, column
        Axes along which queries and keys run; all others have extent 1.
    """
    found = _Reader(view).read(expr, (row, column), _DEEPEST)
    return found if isinstance(found, CausalMask) else None


class _Reader:
    """Evaluates expressions of positions."""

    def __init__(self, view: View) -> None:
        self._view = view

    def read(self, expr: Any, axes: tuple[int, int], depth: int) -> _Value | None:
        """Evaluate a tensor; ``axes`` are those of queries and keys, -1 for one it lacks."""
        view = self._view
        number = view.number(expr)
        if number is not None:
            return number
        value, shape = view.value(expr), known_shape(expr)
        if not depth or shape is None:
            return None
        if isinstance(value, GenericConst):
            return _of_constant(value, axes)
        call, name = view.call(expr), op_name(value)
        if call is None:
            return None
        if name == "arange":
            return self._arange(call, axes)
        if name in ("tril", "triu"):
            return self._half(call, name, axes, depth)
        if view.is_moved(expr):
            return self._moved(call, shape, axes, depth)
        if name not in _ARITHMETIC and name not in _COMPARED:
            return None
        values = []
        for arg in call.args:
            own = known_shape(arg)
            if own is None:
                return None
            missing = len(shape) - len(own)
            inner = tuple(
                a - missing if a >= missing and extent(own[a - missing]) != 1 else -1 for a in axes
            )
            values.append(self.read(arg, (inner[0], inner[1]), depth - 1))
        return _combine(name, values)

    def _arange(self, call: relax.Call, axes: tuple[int, int]) -> _Value | None:
        start, step = (self._view.number(a) for a in (call.args[0], call.args[2]))
        if start is None or step != 1 or start != int(start) or sorted(axes) != [-1, 0]:
            return None
        return _Position(int(axes[0] == 0), int(axes[1] == 0), int(start))

    def _half(
        self, call: relax.Call, name: str, axes: tuple[int, int], depth: int
    ) -> CausalMask | None:
        rank = len(known_shape(call) or [])
        inner = self.read(call.args[0], axes, depth - 1)
        offset = self._view.number(call.args[1])
        if axes != (rank - 2, rank - 1) or not isinstance(inner, float) or offset is None:
            return None
        if name == "tril":
            return CausalMask(inner, 0.0, int(offset))
        return CausalMask(0.0, inner, int(offset) - 1)

    def _moved(
        self, call: relax.Call, shape: list[Any], axes: tuple[int, int], depth: int
    ) -> _Value | None:
        """Find the axes again before axes of extent 1 were added, dropped or repeated."""
        own = known_shape(call.args[0])
        if own is None:
            return None
        if op_name(call) == "broadcast_to":
            missing = len(shape) - len(own)
            inner = [a - missing if a >= missing else -1 for a in axes]
            inner = [a if a >= 0 and same_extent(own[a], shape[a + missing]) else -1 for a in inner]
        else:
            places = [i for i, e in enumerate(own) if extent(e) != 1]
            wide = [i for i, e in enumerate(shape) if extent(e) != 1]
            if len(longer(own)) != len(longer(shape)):
                return None
            inner = [places[wide.index(a)] if a in wide else -1 for a in axes]
        return self.read(call.args[0], (inner[0], inner[1]), depth - 1)


def _combine(name: str, values: list[_Value | None]) -> _Value | None:
    if any(v is None for v in values):
        return None
    if any(isinstance(v, _Position) for v in values):
        return _with_positions(name, values)
    if name not in _ARITHMETIC:
        return None
    function = _ARITHMETIC[name]
    masks = [v for v in values if isinstance(v, CausalMask)]
    with np.errstate(all="ignore"):
        if not masks:
            return float(function(*values))
        if len({t.offset for t in masks}) != 1:
            return None
        inside = [v.inside if isinstance(v, CausalMask) else v for v in values]
        outside = [v.outside if isinstance(v, CausalMask) else v for v in values]
        return CausalMask(float(function(*inside)), float(function(*outside)), masks[0].offset)


def _with_positions(name: str, values: list[Any]) -> _Value | None:
    if name == "astype":
        return values[0]
    if len(values) != 2 or any(isinstance(v, CausalMask) for v in values):
        return None
    if any(isinstance(v, float) and v != int(v) for v in values):
        return None
    one, other = (v if isinstance(v, _Position) else _Position(0, 0, int(v)) for v in values)
    sign = 1 if name == "add" else -1
    both = _Position(
        one.row + sign * other.row,
        one.column + sign * other.column,
        one.offset + sign * other.offset,
    )
    if name in ("add", "subtract"):
        return both
    if name not in _COMPARED:
        return None
    bound, is_inside = _COMPARED[name]
    if (both.row, both.column) == (1, -1):  # query - key compared with 0, so turned around
        both = _Position(-1, 1, -both.offset)
        bound, is_inside = {"less_equal": (-1, False), "less": (0, False), "greater": (-1, True),
                            "greater_equal": (0, True)}[name]  # fmt: skip
    if (both.row, both.column) != (-1, 1):
        return None
    return CausalMask(float(is_inside), float(not is_inside), bound - both.offset)


def _of_constant(constant: GenericConst, axes: tuple[int, int]) -> _Value | None:
    """Read a constant: of one number, of positions as an exporter folds them, or a whole mask."""
    shape = [int(d) for d in constant.value.shape]
    if np.prod(shape) > _LARGEST or 0 in shape or dtype_of(constant) == "bfloat16":
        return None
    if any(s != 1 for i, s in enumerate(shape) if i not in axes):
        return None
    queries, keys = (shape[a] if a >= 0 else 1 for a in axes)
    array = constant.value.numpy()
    array = array.reshape(keys, queries).T if axes[0] > axes[1] >= 0 else array
    array = array.reshape(queries, keys)
    if (array == array[0, 0]).all():
        return float(array[0, 0])
    return _mask(array) or _positions(array)


def _mask(array: np.ndarray) -> CausalMask | None:
    queries, keys = array.shape
    visible = int((array[0] == array[0, 0]).argmin()) if (array[0] != array[0, 0]).any() else keys
    if queries < 2 or visible >= keys:
        return None
    causal = CausalMask(float(array[0, 0]), float(array[0, -1]), visible - 1)
    seen = np.arange(keys) <= np.arange(queries)[:, None] + causal.offset
    expected = np.where(seen, array[0, 0], array[0, -1])
    return causal if (array == expected).all() else None


def _positions(array: np.ndarray) -> _Position | None:
    if array.dtype.kind not in "iu":
        return None
    array = array.astype("int64")
    queries, keys = array.shape
    first = int(array[0, 0])
    row = int(array[1, 0]) - first if queries > 1 else 0
    column = int(array[0, 1]) - first if keys > 1 else 0
    expected = first + row * np.arange(queries)[:, None] + column * np.arange(keys)
    return _Position(row, column, first) if (array == expected).all() else None
