"""Evaluate functions of one variable by piecewise polynomials and series in TIR expressions.

    segment = clamp(floor((x - low) / width), 0, segments - 1)
    t       = 2 * ((x - low) / width - segment) - 1                 # -1 to 1 in the segment
    y       = ((c[segment, d] * t + c[segment, d - 1]) * t + ...)   # Horner's rule

The coefficients interpolate torch's own float64 function at Chebyshev nodes of each segment, so
that the error is a few units in the last place of the segment's largest value. They are a constant
of the model, of some kilobytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from tvm import relax, te, tirx

from ...call import Call

#: Converges below float64's precision on the segments chosen here.
_DEGREE = 15


@dataclass(frozen=True)
class Piecewise:
    """A function on an interval, by polynomials on segments of equal width."""

    # From a float64 tensor to a float64 tensor: what is interpolated, analytic on the interval.
    function: Callable[[torch.Tensor], torch.Tensor]
    # The interval and its segments; beyond it the outermost polynomials go on.
    low: float
    high: float
    width: float

    def coefficients(self, dtype: str) -> np.ndarray:
        """Return ``[segments, degree + 1]`` coefficients, the constant terms first."""
        return _coefficients(self).astype(dtype)

    def at(self, x: Any, table: Any) -> Any:
        """Return the TIR expression of the value at ``x``; ``table`` reads the coefficients."""
        segments = round((self.high - self.low) / self.width)
        position = (x - _like(self.low, x)) * _like(1 / self.width, x)
        # A comparison with NaN is false, so that the index of NaN is 0.
        inside = tirx.Select(position > _like(0, x), position, _like(0, x))
        inside = tirx.Select(inside < _like(segments - 1, x), inside, _like(segments - 1, x))
        segment = tirx.Cast("int32", tirx.floor(inside))
        t = (position - tirx.Cast(_dtype(x), segment)) * _like(2, x) - _like(1, x)
        value = table(segment, _DEGREE)
        for power in reversed(range(_DEGREE)):
            value = value * t + table(segment, power)
        return value


@cache
def _coefficients(piece: Piecewise) -> np.ndarray:
    starts = np.arange(piece.low, piece.high, piece.width)
    nodes = chebyshev.chebpts1(_DEGREE + 1)
    points = starts[:, None] + (nodes + 1) * piece.width / 2
    values = piece.function(torch.from_numpy(points.ravel())).numpy().reshape(points.shape)
    series = np.linalg.solve(chebyshev.chebvander(nodes, _DEGREE), values.T).T
    return np.array(
        [np.pad(p := chebyshev.cheb2poly(s), (0, _DEGREE + 1 - len(p))) for s in series]
    )


def horner(x: Any, coefficients: Sequence[float]) -> Any:
    """Return a polynomial's TIR expression, the constant term first."""
    value = _like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _like(coefficient, x)
    return value


def const(value: float, x: Any) -> Any:
    """Return a number of an expression's dtype."""
    return _like(value, x)


def choose(condition: Any, one: Any, other: Any) -> Any:
    """Return one of two values; both are computed."""
    return tirx.Select(condition, one, other)


def sine_of_pi(x: Any) -> tuple[Any, Any]:
    """Return sin and cos of pi times the distance to the nearest integer, and so up to a sign."""
    rest = (x - tirx.round(x)) * _like(math.pi, x)
    return tirx.sin(rest), tirx.cos(rest)


def elementwise(
    call: Call,
    name: str,
    body: Callable[..., Any],
    *pieces: Piecewise,
    operands: Sequence[str] = (),
) -> Any:
    """Emit one fusable map.

    Parameters
    ----------
    call
        Its operands, the first by default, are cast to float32, or to float64 where the result
        is of it.
    name
        Of the function in TensorIR.
    body
        From the operands' elements and, for each piece, a function of ``x`` that evaluates it, to
        the element of the result.
    """
    wide = "float64" if call.dtype == "float64" else "float32"
    shape = call.shape()
    operands = operands or [call.node.target._schema.arguments[0].name]
    tensors = [call.tensor(operand, wide) for operand in operands]
    tensors = [
        x if len(tensors) == 1 else call.emit(relax.op.broadcast_to(x, shape)) for x in tensors
    ]
    tables = [relax.const(piece.coefficients(wide), wide) for piece in pieces]

    def compute(*arguments: te.Tensor) -> te.Tensor:
        elements, stored = arguments[: len(tensors)], arguments[len(tensors) :]

        def evaluator(piece: Piecewise, table: te.Tensor) -> Callable[[Any], Any]:
            return lambda x: piece.at(x, lambda *at: table(*at))

        def element(*index: Any) -> Any:
            evaluators = map(evaluator, pieces, stored)
            return body(*(x(*index) for x in elements), *evaluators)

        return te.compute(elements[0].shape, element, name=name)

    builder = call.importer.block_builder
    result = builder.emit_te(compute, *tensors, *tables, primfunc_name_hint=name)
    return call.cast(result, call.dtype)


def _like(value: float, x: Any) -> Any:
    return tirx.const(value, _dtype(x))


def _dtype(x: Any) -> str:
    return str(x.ty.dtype)
