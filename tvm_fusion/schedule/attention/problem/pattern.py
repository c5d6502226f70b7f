"""The attention pattern: operands q, k, v, a map of the scores, weights, and an epilogue."""

from collections.abc import Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.expressions import choice
from ....program.stage import Axis
from ...contraction.problem.sum_of_products import SumOfProducts

FLOAT = "float32"  # type of everything between operands and results
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)


@dataclass(frozen=True)
class Pattern:
    """``result[.., q, e] = sum over t of weight(softmax over t of score(q . k)) * v``.

    All expressions are over one set of axes: those of the scores, and ``column``.
    """

    batch: tuple[Axis, ...]  # axes of the scores other than the following two: batch, heads
    query: Axis | None  # runs along the queries of a head; ``None`` where there is a single one
    key: Axis  # runs along the keys and values
    depth: Axis  # reduction axis of the first product: the head dimension
    column: Axis  # runs along the values' elements: the head dimension of v
    # Elements of the operands, in float32: of ``(batch, query, depth)``, ``(batch, key, depth)``
    # and ``(batch, key, column)``.
    q: ir.Expr
    k: ir.Expr
    v: ir.Expr
    # Placeholder of ``q . k`` in ``score``.
    raw: ir.Var
    score: ir.Expr  # input of softmax (scale, mask and bias applied), in float32
    exponential: ir.Var  # placeholder of ``exp(score - row's maximum)`` in ``weight``
    # Factor of the values, without the division by the row's sum; linear in ``exponential``.
    weight: ir.Expr
    # The weight in rows whose softmax is NaN, such as those that are masked completely, if a guard
    # replaces these.
    masked_weight: ir.Expr | None
    # Whether a guard puts zeros in rows whose scores are all minus infinity; others stay NaN.
    zeros_dead_rows: bool
    # A score that takes its share of a row's softmax without a value, in float32.
    sink: ir.Expr | None
    product: SumOfProducts  # the second product with its epilogue, over its own axes
    own: Mapping[ir.Var, ir.Var]  # the axes here by the axes of ``product``
    operand_dtypes: tuple[str, str, str]  # types that q, k and v were computed in

    def place(self, at: Mapping[ir.Var, ir.Expr]) -> list[ir.Expr]:
        """Order the positions along the axes as the second product has them."""
        return [at[self.own[axis.var]] for axis in self.product.stage.axes]


def widened(expr: ir.Expr) -> ir.Expr:
    """Compute in float32 what is computed in a half type; elements are loaded as they are.

    Raises
    ------
    ValueError
        For a node whose type cannot be changed.
    """
    if isinstance(expr, tirx.Cast) and _is_short(expr):
        inner = widened(expr.value)
        return inner if _is_float(inner) else tirx.Cast(FLOAT, inner)
    if isinstance(expr, tirx.Cast):
        inner = widened(expr.value)
        return (
            inner if str(inner.ty.dtype) == str(expr.ty.dtype) else tirx.Cast(expr.ty.dtype, inner)
        )
    if isinstance(expr, ir.TensorLoad | ir.Var):
        return tirx.Cast(FLOAT, expr) if _is_short(expr) else expr
    if isinstance(expr, tirx.FloatImm):
        return tirx.FloatImm(FLOAT, expr.value) if _is_short(expr) else expr
    if not _holds_short(expr):
        return expr
    chosen = choice(expr)
    if chosen is not None:
        condition, then, otherwise = map(widened, chosen)
        if isinstance(expr, tirx.Select):
            return tirx.Select(condition, then, otherwise)
        return tirx.if_then_else(condition, then, otherwise)
    if isinstance(expr, _ARITHMETIC):
        return type(expr)(widened(expr.a), widened(expr.b))
    if isinstance(expr, tirx.And | tirx.Or):
        return type(expr)(widened(expr.a), widened(expr.b))
    if isinstance(expr, tirx.Not):
        return tirx.Not(widened(expr.a))
    if isinstance(expr, ir.Call):
        type_ = ir.PrimType(FLOAT) if _is_short(expr) else expr.ty
        args = [widened(a) for a in expr.args]
        return ir.Call(expr.op, args, expr.attrs, expr.ty_args, None, type_)
    raise ValueError(f"{type(expr).__name__} over float16 has no float32 form")


def _holds_short(expr: ir.Expr) -> bool:
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(expr, (ir.Expr, found.append))
    return any(_is_short(e) for e in found)


def _is_short(expr: ir.Expr) -> bool:
    return isinstance(expr.ty, ir.PrimType) and str(expr.ty.dtype) in ("float16", "bfloat16")


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype) == FLOAT
