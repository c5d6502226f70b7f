"""What stands between the products of attention: scales, masks, softmax and its guard."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
from tvm import relax, tirx

from ....core.constants.numpy_types import numpy_dtype
from ....frontend.tensor_types import dtype_of
from ..matching.extents import extent, known_shape, same_shape
from ..matching.view import View, op_name
from .indices import MOVES
from .reading import scale_of

_STEPS = 24  # operators that are looked through on the way to a product
_COMBINED = ("add", "subtract", "multiply", "divide", "maximum")
#: Rows of minus infinity alone, or weights that are no numbers.
Guard = Literal["dead", "nan"]
_TRUTH = ("astype", "reshape", "broadcast_to", "expand_dims", "squeeze")


@dataclass(frozen=True)
class Step:
    """One operator on the way from the product to softmax.

    Attributes
    ----------
    kind
        ``move``, ``cast``, ``scale``, ``where`` or the name of an operator of two tensors.
    call
        The operator.
    source : ir.Expr
        The scores before it.
    number
        The factor, or what ``where`` puts in the place of a score.
    other : ir.Expr or None
        The operator's other operand, or the condition.
    keeps
        Whether a score stays where the condition holds, or where it does not.
    """

    kind: str
    call: relax.Call
    source: Any
    number: float = 1.0
    other: Any = None
    keeps: bool = True


@dataclass(frozen=True)
class Weights:
    """Softmax and what was done with it before it meets the values."""

    softmax: relax.Call  # the operator
    scores: Any  # of the keys
    # A score behind those of the keys, whose weight is dropped: of extent 1 along softmax's axis.
    sink: Any
    steps: tuple[Step, ...]  # movements and casts, in the order of computation
    # Which weights zeros replace: those of ``dead`` rows, whose scores are all minus infinity, or
    # all that are ``nan``, as those of a row with a NaN or plus infinity, too.
    guard: Guard | None
    scaled: bool  # whether there is a factor or a sum, too: then this is no attention


def read_weights(view: View, expr: Any) -> Weights | None:
    """Follow the operand of a product back to softmax; None where it does not lead there."""
    steps: list[Step] = []
    guard: Guard | None = None
    is_scaled = False
    cut: relax.Call | None = None  # drops the weight of a sink
    for _ in range(_STEPS):
        call = view.call(expr)
        if call is None:
            return None
        name = op_name(call)
        if name == "nn.softmax":
            pair = (call.args[0], None) if cut is None else _beside_sink(view, call, cut)
            if pair is None or (cut is not None and guard is not None):
                return None
            scores, sink = pair
            return Weights(call, scores, sink, tuple(reversed(steps)), guard, is_scaled)
        scaled = scale_of(view, expr)
        if name in MOVES and cut is None:
            steps.append(Step("move", call, call.args[0]))
            expr = call.args[0]
        elif view.is_cast(expr):
            steps.append(Step("cast", call, call.args[0]))
            expr = call.args[0]
        elif name == "strided_slice" and cut is None:
            cut, expr = call, call.args[0]
        elif scaled is not None:
            is_scaled |= scaled[1] != 1
            expr = scaled[0]
        elif name == "where":
            found = _guarded(view, call)
            if found is None:
                return None
            expr, guard = found
        else:
            return None
    return None


def _beside_sink(view: View, softmax: relax.Call, cut: relax.Call) -> tuple[Any, Any] | None:
    """Find scores and sink where softmax is over both, and what is cut off is the sink's weight."""
    concat, rank = view.call(softmax.args[0], "concat"), len(known_shape(softmax) or [])
    if concat is None or len(concat.args[0]) != 2 or not all(map(_is_zero, cut.args[2])):
        return None
    axis = int(softmax.attrs.axis) % rank
    scores, sink = concat.args[0]
    kept, shapes = known_shape(cut), [known_shape(x) or [] for x in (scores, sink)]
    is_one = len(shapes[1]) == rank and extent(shapes[1][axis]) == 1
    is_along = int(concat.attrs.axis) % rank == axis
    return (scores, sink) if is_one and is_along and same_shape(kept or [], shapes[0]) else None


def _is_zero(begin: Any) -> bool:
    return isinstance(begin, tirx.IntImm) and int(begin) == 0


def read_scores(view: View, expr: Any) -> tuple[Any, list[Step]] | None:
    """Follow softmax's operand back to the first product.

    Returns
    -------
    product : relax.Var
        Queries times keys.
    steps : list of Step
        In the order of computation.
    """
    steps: list[Step] = []
    found = _descend(view, expr, steps, _STEPS)
    return None if found is None else (found, steps[::-1])


def _descend(view: View, expr: Any, steps: list[Step], budget: int) -> Any:
    call = view.call(expr)
    if call is None or not budget:
        return None
    if op_name(call) == "matmul":
        return expr
    for step in _steps(view, expr, call):
        steps.append(step)
        found = _descend(view, step.source, steps, budget - 1)
        if found is not None:
            return found
        steps.pop()
    return None


def _steps(view: View, expr: Any, call: relax.Call) -> list[Step]:
    """List the ways in which an operator may continue from scores."""
    name = op_name(call)
    if name in MOVES:
        return [Step("move", call, call.args[0])]
    if view.is_cast(expr):
        return [Step("cast", call, call.args[0])]
    scaled = scale_of(view, expr)
    if scaled is not None:
        return [Step("scale", call, scaled[0], scaled[1])]
    shape = known_shape(call)
    if shape is None:
        return []
    found: list[Step] = []
    if name in _COMBINED:
        operands = [(call.args[0], call.args[1])]
        if name not in ("subtract", "divide"):
            operands.append((call.args[1], call.args[0]))
        found = [Step(name, call, one, other=other) for one, other in operands]
    elif name == "where":
        condition, then, otherwise = call.args
        for one, other, keeps in ((then, otherwise, True), (otherwise, then, False)):
            number = view.number(other)
            if number is not None:
                found.append(Step("where", call, one, number, condition, keeps))
    return [s for s in found if same_shape(known_shape(s.source) or [], shape)]


def _guarded(view: View, call: relax.Call) -> tuple[Any, Guard] | None:
    """Match a guard of softmax that puts zeros: its operand, and what it replaces."""
    condition, then, otherwise = call.args
    for kept, other, is_dead in ((otherwise, then, True), (then, otherwise, False)):
        if view.number(other) != 0:
            continue
        softmax = view.call(kept, "nn.softmax")
        found = _Guard(view, kept, softmax).read(condition)
        if found is not None and found[1] == is_dead:
            # Zeros for each score of minus infinity are those of dead rows: in others, these
            # weights are zeros, or another one of the row stays NaN and the result is NaN.
            return kept, "nan" if found[0] == "weight" else "dead"
    return None


def lowest(scores: Any) -> float:
    """Return the lowest finite number of a tensor's type: below are minus infinities alone.

    Unlike these, it is a literal in kernels.
    """
    return float(ml_dtypes.finfo(numpy_dtype(dtype_of(scores))).min)


#: Of scores, of whole rows or of weights, and whether the truth means "minus infinity" or "NaN".
_Meaning = tuple[Literal["element", "row", "weight"], bool]


class _Guard:
    """Reads a condition as "minus infinity alone" or "no number", or as its opposite."""

    def __init__(self, view: View, weights: Any, softmax: relax.Call | None) -> None:
        self._view = view
        self._weights = weights
        self._softmax = softmax

    def read(self, expr: Any) -> _Meaning | None:
        """Tell what the truth of an expression means; None for anything else."""
        call = self._view.call(expr)
        if call is None:
            return None
        name = op_name(call)
        if name in ("logical_not", "bitwise_not"):
            inner = self.read(call.args[0])
            return None if inner is None else (inner[0], not inner[1])
        if name in _TRUTH:
            return self.read(call.args[0])
        if name == "isnan" and self._is_weights(call.args[0]):
            return "weight", True
        if name in ("equal", "not_equal", "greater", "less"):
            return self._comparison(call)
        if name in ("max", "min"):
            return self._reduction(call)
        return None

    def _comparison(self, call: relax.Call) -> _Meaning | None:
        name, (one, other) = op_name(call), call.args
        if name == "not_equal" and self._is_weights(one) and self._is_weights(other):
            return "weight", True
        number = self._view.number(other)
        if number is None and name in ("equal", "not_equal"):
            one, other = other, one
            number = self._view.number(other)
        if number == 0 and name in ("not_equal", "greater"):
            return self.read(one)  # of a truth that was cast
        if number is None or self._softmax is None or name == "greater":
            return None  # NaN is not greater than minus infinity, but no dead score either
        if number != (lowest(one) if name == "less" else -math.inf):
            return None
        same = hash(self._view.peel(one)) == hash(self._view.peel(self._softmax.args[0]))
        return ("element", name != "not_equal") if same else None

    def _reduction(self, call: relax.Call) -> _Meaning | None:
        """All elements are dead, or any is alive, along softmax's axis."""
        if self._softmax is None:
            return None
        inner = self.read(call.args[0])
        reduction = self._view.reduction(call)
        rank = len(known_shape(self._softmax) or [])
        if inner is None or inner[0] != "element" or reduction is None or not call.attrs.keepdims:
            return None
        if reduction.axes != (int(self._softmax.attrs.axis) % rank,):
            return None
        is_all = op_name(call) == "min"
        return ("row", inner[1]) if is_all == inner[1] else None

    def _is_weights(self, expr: Any) -> bool:
        return hash(self._view.peel(expr)) == hash(self._view.peel(self._weights))
