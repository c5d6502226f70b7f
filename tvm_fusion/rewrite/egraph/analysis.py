"""What is known of the tensors of an e-class: constants, types, and ranges of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx

from ...core.constants.evaluate import evaluate
from .head import Head, type_key


class Bounds(NamedTuple):
    """Between which numbers all elements lie that are no NaN."""

    low: float = -math.inf
    high: float = math.inf

    def hull(self, other: Bounds) -> Bounds:
        """Return the union of two bounds."""
        return Bounds(min(self.low, other.low), max(self.high, other.high))


ANY = Bounds()
NONNEGATIVE = Bounds(0.0)
_UNIT = Bounds(0.0, 1.0)
_SIGNED_UNIT = Bounds(-1.0, 1.0)

_RANGES = {
    **dict.fromkeys(("exp", "sqrt", "rsqrt", "abs", "square", "nn.relu", "cosh"), NONNEGATIVE),
    **dict.fromkeys(("variance", "std"), NONNEGATIVE),
    **dict.fromkeys(("sigmoid", "nn.softmax"), _UNIT),
    **dict.fromkeys(("tanh", "erf", "sin", "cos", "sign"), _SIGNED_UNIT),
    "zeros": Bounds(0.0, 0.0),
    "zeros_like": Bounds(0.0, 0.0),
    "ones": Bounds(1.0, 1.0),
    "ones_like": Bounds(1.0, 1.0),
    "nn.log_softmax": Bounds(high=0.0),
}
# Moves give elements of their operands back, and so do a maximum and an average over an axis.
CHOOSES = frozenset(
    f"relax.{name}"
    for name in (
        *("reshape", "permute_dims", "squeeze", "expand_dims", "flatten", "broadcast_to", "flip"),
        *("strided_slice", "concat", "stack", "repeat", "tile", "max", "min", "mean", "full_like"),
    )
)
FILLS = frozenset(
    f"relax.{name}" for name in ("full", "full_like", "zeros", "ones", "zeros_like", "ones_like")
)
_INCREASING: dict[str, Callable[[float], float]] = {
    "relax.exp": lambda x: math.exp(min(x, 709.0)) if x != math.inf else x,
    "relax.sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "relax.nn.relu": lambda x: max(x, 0.0),
    "relax.floor": lambda x: math.floor(x) if math.isfinite(x) else x,
    "relax.ceil": lambda x: math.ceil(x) if math.isfinite(x) else x,
}


def bounds_of(head: Head, ty: relax.TensorType, operands: Sequence[tuple[int, Bounds]]) -> Bounds:
    """Bound what an operator computes.

    Parameters
    ----------
    ty
        Of its result; integers wrap around, so little is known of what arithmetic makes of them.
    operands
        Numbers that tell them apart, and their bounds.

    Returns
    -------
    Bounds
        Of all elements that are no NaN.
    """
    name, dtype = head.name, str(ty.dtype)
    given = [bounds for _, bounds in operands]
    is_sum = name == "relax.mean" and "float" not in dtype  # which wraps around before
    if name in CHOOSES and not is_sum:
        return _all(given)
    if name == "relax.where":
        return _all(given[1:])
    if name == "relax.full":
        return given[0]
    if name in ("relax.maximum", "relax.minimum"):
        choose = max if name == "relax.maximum" else min
        return Bounds(choose(b.low for b in given), choose(b.high for b in given))
    if name == "relax.clip" and head.call is not None:
        return _clip(given[0], head.call.args[1:])
    if "float" in dtype:
        return _floating(name, operands)
    return NONNEGATIVE if dtype.startswith("uint") or dtype == "bool" else ANY


def bounds_of_value(value: np.ndarray) -> Bounds:
    """Bound a constant."""
    if not value.size:
        return ANY
    wide = value.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    is_exact = value.dtype.kind not in "iu" or max(abs(low), abs(high)) < 2.0**53
    return Bounds(low, high) if is_exact and low <= high else ANY  # neither is so of a NaN


def _floating(name: str, operands: Sequence[tuple[int, Bounds]]) -> Bounds:
    known = _RANGES.get(name.removeprefix("relax."), ANY)
    given = [bounds for _, bounds in operands]
    if name in _INCREASING:
        function = _INCREASING[name]
        return Bounds(function(given[0].low), function(given[0].high))
    if name == "relax.astype":
        return given[0]
    if name == "relax.negative":
        return Bounds(-given[0].high, -given[0].low)
    has_both = len(operands) == 2  # an operand may be an extent, which is none of these
    if name == "relax.multiply" and has_both and operands[0][0] == operands[1][0]:
        return NONNEGATIVE
    arithmetic = _ARITHMETIC.get(name) if has_both else None
    if arithmetic is not None:
        first, second = given
        return arithmetic(first, second)
    is_kept = name in ("relax.sum", "relax.prod", "relax.cumsum", "relax.power")
    if is_kept and given[0].low >= 0:
        return NONNEGATIVE
    return known


def _add(a: Bounds, b: Bounds) -> Bounds:
    return Bounds(_known(a.low + b.low, -math.inf), _known(a.high + b.high, math.inf))


def _subtract(a: Bounds, b: Bounds) -> Bounds:
    return _add(a, Bounds(-b.high, -b.low))


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]  # of what is finite
    return Bounds(min(ends), max(ends))


def _divide(a: Bounds, b: Bounds) -> Bounds:
    if b.low < 0:
        return ANY
    return Bounds(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)


_ARITHMETIC = {
    "relax.add": _add,
    "relax.subtract": _subtract,
    "relax.multiply": _multiply,
    "relax.divide": _divide,
}


def _clip(bounds: Bounds, ends: Sequence[object]) -> Bounds:
    if not all(isinstance(end, tirx.IntImm | tirx.FloatImm) for end in ends):
        return ANY
    low, high = (float(end.value) for end in ends)  # type: ignore[attr-defined]
    return Bounds(min(max(bounds.low, low), high), min(max(bounds.high, low), high))


def _all(given: Sequence[Bounds]) -> Bounds:
    found = given[0]
    for bounds in given[1:]:
        found = found.hull(bounds)
    return found


def _known(bound: float, otherwise: float) -> float:
    return otherwise if math.isnan(bound) else bound


# What is known of an e-class: its type, its value if it is constant, bounds of its elements.
#
# egg calls this an e-class analysis: it is made for a node from what is known of its operands.


FOLDED = 1024  # elements of a constant that is computed at once, so that laws know its value


class Node(NamedTuple):
    """An operator on classes; operands of a commutative one are in order."""

    head: Head
    operands: tuple[int, ...]


@dataclass(eq=False)
class EClass:
    """Expressions that are equal."""

    type: relax.TensorType
    is_constant: bool  # whether it is known at compile time
    value: np.ndarray | None  # a small constant itself
    bounds: Bounds = ANY  # between which its elements lie, wherever they are finite
    # Each with the law that wrote it; empty for what the region has.
    nodes: dict[Node, str] = field(default_factory=dict)
    parents: dict[Node, int] = field(default_factory=dict)  # nodes that read it, and their classes


class Analysis:
    """Types and values of nodes; equal types are one object, so that they can be compared by id."""

    def __init__(self) -> None:
        self._types: dict[object, relax.TensorType] = {}
        self._variables: dict[int, relax.Var] = {}
        self._results: dict[tuple, relax.TensorType | None] = {}
        self._builder = relax.BlockBuilder()

    def intern(self, ty: relax.TensorType) -> relax.TensorType:
        """Return the one object that stands for all types equal to this one."""
        return self._types.setdefault(type_key(ty), ty)

    def variable(self, ty: relax.TensorType) -> relax.Var:
        """Return the variable that stands for classes of a type."""
        if id(ty) not in self._variables:
            self._variables[id(ty)] = relax.Var("x", ty)
        return self._variables[id(ty)]

    def infer(self, head: Head, types: Sequence[relax.TensorType]) -> relax.TensorType | None:
        """Infer a node's type; None where the operator does not take operands of these types."""
        key = (head, *map(id, types))
        if key not in self._results:
            self._results[key] = self._normalized(head.apply([*map(self.variable, types)]))
        return self._results[key]

    def _normalized(self, call: relax.Call) -> relax.TensorType | None:
        try:
            ty = self._builder.normalize(call).ty
        except (tvm.error.InternalError, ValueError, TypeError):
            return None
        is_known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        return self.intern(ty) if is_known else None

    def evaluate(
        self, head: Head, ty: relax.TensorType, operands: Sequence[EClass]
    ) -> np.ndarray | None:
        """Compute a node of small constants; None where it is larger, or cannot be computed."""
        if any(o.value is None for o in operands):
            return None
        consts = [relax.const(o.value, str(o.type.dtype)) for o in operands]
        call = self._builder.normalize(head.apply(consts))
        extents = [int(v) if hasattr(v, "value") else FOLDED + 1 for v in ty.shape.values]
        return evaluate(call) if 0 < np.prod(extents, dtype=np.int64) <= FOLDED else None


def is_in_range(head: Head, value: np.ndarray, operands: Sequence[EClass]) -> bool:
    """Whether the type holds a constant: finite where its operands are, and no product lost."""
    given = [np.asarray(o.value, np.float64) for o in operands]
    if value.dtype.kind in "biu" or not all(np.isfinite(array).all() for array in given):
        return True
    sizes = np.abs(value.astype(np.float64))
    if not np.isfinite(sizes).all():
        return False
    if head.name not in ("relax.multiply", "relax.divide"):
        return True
    is_lost = bool((sizes < float(ml_dtypes.finfo(value.dtype).smallest_normal)).all())
    return not (is_lost and all(array.any() for array in given))


def is_static(ty: relax.TensorType) -> bool:
    """Whether all extents are numbers."""
    return all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)
