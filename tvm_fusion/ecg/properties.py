"""Algebraic properties of operators, by their Relax names.

DNNFusion (Niu et al., PLDI 2021, section 3.1) lists associativity, commutativity and distributivity
as what rewriting needs to know of an operator. They are properties over the real numbers; whether a
rewrite may rest on one in floating point is for the rewrite to say.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Properties:
    """Algebraic properties of one operator."""

    # ``f(f(a, b), c) = f(a, f(b, c))``; of a reduction: any split of its axis gives the same.
    associative: bool = False
    # ``f(a, b) = f(b, a)``; of a reduction: any order of the elements gives the same.
    commutative: bool = False
    # Operators ``g`` with ``f(g(a, b), c) = g(f(a, c), f(b, c))``; of a unary ``f``, ``f(g(a, b)) =
    # g(f(a), f(b))``.
    distributes_over: frozenset[str] = frozenset()


_SUMS = frozenset({"relax.add", "relax.subtract"})
_ORDER = frozenset({"relax.maximum", "relax.minimum"})
# A reduction is a linear map: f(a + b) = f(a) + f(b).
_LINEAR_REDUCTION = Properties(associative=True, commutative=True, distributes_over=_SUMS)
# Moving elements around commutes with everything elementwise; these are what rewriting asks about.
_MOVE = Properties(distributes_over=_SUMS | _ORDER | {"relax.multiply", "relax.divide"})
# Monotone maps can change places with a choice of the larger or the smaller.
_INCREASING = Properties(distributes_over=_ORDER)

_PROPERTIES = {
    "relax.add": Properties(True, True, _ORDER),
    "relax.multiply": Properties(True, True, _SUMS),
    "relax.maximum": Properties(True, True, frozenset({"relax.minimum"})),
    "relax.minimum": Properties(True, True, frozenset({"relax.maximum"})),
    "relax.subtract": Properties(distributes_over=_ORDER),  # max(a, b) - c = max(a - c, b - c)
    "relax.divide": Properties(distributes_over=_SUMS),  # (a + b) / c = a / c + b / c
    "relax.negative": Properties(distributes_over=_SUMS),
    "relax.logical_and": Properties(True, True, frozenset({"relax.logical_or"})),
    "relax.logical_or": Properties(True, True, frozenset({"relax.logical_and"})),
    "relax.logical_xor": Properties(True, True),
    "relax.bitwise_and": Properties(True, True, frozenset({"relax.bitwise_or"})),
    "relax.bitwise_or": Properties(True, True, frozenset({"relax.bitwise_and"})),
    "relax.bitwise_xor": Properties(True, True),
    "relax.equal": Properties(commutative=True),
    "relax.not_equal": Properties(commutative=True),
    "relax.log_add_exp": Properties(True, True),
    "relax.matmul": Properties(True, False, _SUMS),
    "relax.sum": _LINEAR_REDUCTION,
    "relax.mean": Properties(False, True, _SUMS),
    "relax.max": Properties(True, True),
    "relax.min": Properties(True, True),
    "relax.prod": Properties(True, True, frozenset({"relax.multiply"})),
    "relax.cumsum": Properties(distributes_over=_SUMS),
    "relax.nn.conv1d": Properties(distributes_over=_SUMS),
    "relax.nn.conv2d": Properties(distributes_over=_SUMS),
    "relax.nn.conv3d": Properties(distributes_over=_SUMS),
    "relax.nn.conv1d_transpose": Properties(distributes_over=_SUMS),
    "relax.nn.conv2d_transpose": Properties(distributes_over=_SUMS),
    "relax.nn.conv3d_transpose": Properties(distributes_over=_SUMS),
    "relax.nn.avg_pool1d": Properties(distributes_over=_SUMS),
    "relax.nn.avg_pool2d": Properties(distributes_over=_SUMS),
    "relax.nn.avg_pool3d": Properties(distributes_over=_SUMS),
    "relax.abs": Properties(distributes_over=frozenset({"relax.multiply", "relax.divide"})),
    "relax.square": Properties(distributes_over=frozenset({"relax.multiply", "relax.divide"})),
    "relax.sqrt": _INCREASING,
    "relax.exp": _INCREASING,
    "relax.log": _INCREASING,
    "relax.tanh": _INCREASING,
    "relax.sigmoid": _INCREASING,
    "relax.nn.relu": _INCREASING,
    "relax.clip": _INCREASING,
    "relax.reshape": _MOVE,
    "relax.flatten": _MOVE,
    "relax.squeeze": _MOVE,
    "relax.expand_dims": _MOVE,
    "relax.permute_dims": _MOVE,
    "relax.broadcast_to": _MOVE,
    "relax.strided_slice": _MOVE,
    "relax.flip": _MOVE,
    "relax.take": _MOVE,
}
_NONE = Properties()


def properties_of(name: str) -> Properties:
    """Look up the operator of a Relax name; nothing holds of one that is not listed."""
    return _PROPERTIES.get(name, _NONE)
