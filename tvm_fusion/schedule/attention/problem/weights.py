"""Maps of the softmax before the second product: a guard of rows, factors, masks."""

from dataclasses import dataclass

import ml_dtypes
import tvm_ffi
from tvm import ir, tirx

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ....core.tir.expressions import call_name, choice, substitute, variables
from .pattern import FLOAT

# A bool as a number, compared with zero: which operand is the zero, and which the bool.
_TRUTHS = ((tirx.LT, "a", "b"), (tirx.GT, "b", "a"), (tirx.NE, "b", "a"))


@dataclass(frozen=True)
class Weights:
    """The weights of the values, as a function of the exponential of their score."""

    exponential: ir.Var  # placeholder of ``exp(score - row's maximum)``
    value: ir.Expr  # the weight without the division by the row's sum; linear in ``exponential``
    # The weight that a guard puts where softmax is NaN; ``None`` without one.
    masked_weight: ir.Expr | None
    # Whether a guard puts zeros in rows whose scores are all minus infinity, and there alone.
    zeros_dead_rows: bool


def read_weights(
    normal: ir.Expr, score: ir.Expr, exponent: ir.Expr, total: ir.Var
) -> Weights | Refusal:
    """Take the division by the row's sum out of an expression over the softmax.

    Parameters
    ----------
    score
        The input of softmax.
    exponent
        The exponential that a row's sum adds up.
    total
        Placeholder of the row's sum.
    """
    dtype = str(exponent.ty.dtype)
    numerator, softmax = tirx.Var("numerator", dtype), tirx.Var("softmax", dtype)

    def name(node: ir.Expr) -> ir.Expr:
        if tvm_ffi.structural_equal(node, exponent, map_free_vars=False):
            return numerator
        return node

    def divide(node: ir.Expr) -> ir.Expr:
        return softmax if _is_quotient(node, numerator, total) else node

    named = tvm_ffi.structural_map(normal, (ir.Call, name), order="pre")
    divided = tvm_ffi.structural_map(named, ((tirx.Div, tirx.Mul), divide), order="post")
    if {numerator, total} & variables(divided):
        return Refusal("no_softmax", "The exponentials are not divided by their row's sum.")
    linear = _Linear(softmax, score)
    value = linear.read(divided)
    if value is None:
        return Refusal(
            "weights_changed",
            "Operators after the softmax are not linear in its weights.",
        )
    exponential = tirx.Var("exponential", FLOAT)
    stands = exponential if dtype == FLOAT else tirx.Cast(dtype, exponential)
    masked_weight = (
        None if linear.masked_weight is None else substitute(value, {softmax: linear.masked_weight})
    )
    weight = substitute(value, {softmax: stands})
    return Weights(exponential, weight, masked_weight, linear.zeros_dead_rows)


def _is_quotient(node: ir.Expr, numerator: ir.Var, total: ir.Var) -> bool:
    if isinstance(node, tirx.Div):
        return node.a.same_as(numerator) and node.b.same_as(total)
    for one, other in ((node.a, node.b), (node.b, node.a)):
        is_inverse = isinstance(other, tirx.Div) and isinstance(other.a, tirx.FloatImm)
        if one.same_as(numerator) and is_inverse:
            return float(other.a.value) == 1 and other.b.same_as(total)
    return False


class _Linear:
    """Match an expression that is linear in a variable, and take guards out of it."""

    def __init__(self, variable: ir.Var, score: ir.Expr) -> None:
        self._variable = variable
        self._score = score
        self.zeros_dead_rows = False
        self.masked_weight: ir.Expr | None = None

    def read(self, expr: ir.Expr) -> ir.Expr | None:
        if expr.same_as(self._variable):
            return expr
        if isinstance(expr, tirx.Cast):
            inner = self.read(expr.value)
            return None if inner is None else tirx.Cast(expr.ty.dtype, inner)
        chosen = choice(expr)
        if chosen is not None:
            return self._choice(expr, *chosen)
        if isinstance(expr, tirx.Mul | tirx.Div):
            left, right = self._depends(expr.a), self._depends(expr.b)
            if left and not right:
                inner = self.read(expr.a)
                return None if inner is None else type(expr)(inner, expr.b)
            if right and not left and isinstance(expr, tirx.Mul):
                inner = self.read(expr.b)
                return None if inner is None else tirx.Mul(expr.a, inner)
        return None

    def _choice(
        self, expr: ir.Expr, condition: ir.Expr, then: ir.Expr, otherwise: ir.Expr
    ) -> ir.Expr | None:
        if self._is_plain(otherwise) and not self._depends(then):
            if self._is_guard(condition):
                self.masked_weight = then
                return otherwise
            if _is_zero(then) and self._is_dead(condition):
                # In other rows these weights are zeros, or another one of the row stays NaN.
                self.zeros_dead_rows = True
                return otherwise
        if self._depends(condition):
            return None
        for branch, other in ((then, otherwise), (otherwise, then)):
            inner = self.read(branch) if self._depends(branch) and _is_zero(other) else None
            if inner is not None:
                pair = (inner, then if branch is otherwise else otherwise)
                pair = pair if branch is then else pair[::-1]
                return tirx.Select(condition, *pair)
        return None

    def _is_guard(self, condition: ir.Expr) -> bool:
        """Whether a condition is ``isnan(softmax)``, as a bool or as a number."""
        if isinstance(condition, tirx.Cast):
            return self._is_guard(condition.value)
        for kind, zero, truth in _TRUTHS:
            if isinstance(condition, kind) and _is_zero(getattr(condition, zero)):
                return self._is_guard(getattr(condition, truth))
        if isinstance(condition, tirx.NE):
            return condition.a.same_as(self._variable) and condition.b.same_as(self._variable)
        return call_name(condition) == "isnan" and self._is_plain(condition.args[0])

    def _is_dead(self, condition: ir.Expr) -> bool:
        """Whether a condition is true of minus infinity alone, as a bool or as a number."""
        if isinstance(condition, tirx.Cast):
            return self._is_dead(condition.value)
        for kind, zero, truth in _TRUTHS:
            if isinstance(condition, kind) and _is_zero(getattr(condition, zero)):
                return self._is_dead(getattr(condition, truth))
        return (
            isinstance(condition, tirx.LT)
            and isinstance(condition.b, tirx.FloatImm)
            and float(condition.b.value) == _lowest(condition.b)
            and tvm_ffi.structural_equal(
                _narrow(condition.a), _narrow(self._score), map_free_vars=False
            )
        )

    def _is_plain(self, expr: ir.Expr) -> bool:
        while isinstance(expr, tirx.Cast):
            expr = expr.value
        return expr.same_as(self._variable)

    def _depends(self, expr: ir.Expr) -> bool:
        return self._variable in variables(expr)


def _lowest(number: ir.Expr) -> float:
    return float(ml_dtypes.finfo(numpy_dtype(str(number.ty.dtype))).min)


def _narrow(score: ir.Expr) -> ir.Expr:
    """Return a score before it was widened, which keeps infinities."""
    while isinstance(score, tirx.Cast) and score.value.ty.dtype.bits < score.ty.dtype.bits:
        score = score.value
    return score


def _is_zero(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.IntImm | tirx.FloatImm) and float(expr.value) == 0
