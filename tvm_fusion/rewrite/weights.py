"""What an operator counts for before the planner is asked: arithmetic, and a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

from tvm import relax

from ..ecg.properties import properties_of
from ..ecg.work import at
from .head import Head, type_key
from .terms import Term, subterms

KERNEL = 50_000  # operations that take as long as what a reduction or a product keeps from fusing
OPERATOR = 100  # of any operator, so that the shorter of two equally cheap expressions is taken

_TRANSCENDENTAL = 16  # as ecg.work counts them
_DIVISION = 4
_WEIGHTS = {
    **dict.fromkeys(("divide", "sqrt", "rsqrt", "mod", "floor_divide"), _DIVISION),
    **dict.fromkeys(
        ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "power", "log2", "log10"),
        _TRANSCENDENTAL,
    ),
    **dict.fromkeys(("nn.gelu", "nn.gelu_tanh", "nn.silu"), 2 * _TRANSCENDENTAL),
}
MOVES = (
    *("reshape", "permute_dims", "squeeze", "expand_dims", "flatten", "broadcast_to", "astype"),
    *("strided_slice", "concat"),
)
_ALIKE = frozenset(  # one instruction each: the planner cannot tell them apart
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "negative", "maximum", "minimum", "nn.relu", "abs")
)
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "variance", "std", "cumsum", "cumprod")


def weight(head: Head, result: relax.TensorType, operands: Sequence[relax.TensorType]) -> float:
    """Weigh one operator.

    Parameters
    ----------
    head : Head
        The operator, or a leaf, which weighs nothing.
    result : relax.TensorType
        Its result.
    operands : sequence of relax.TensorType
        Its tensors.

    Returns
    -------
    float
        In operations; symbolic dimensions count as :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.
    """
    if head.call is None:
        return 0.0
    name = head.name.removeprefix("relax.")
    if name in MOVES:
        return OPERATOR
    if name in REDUCTIONS:
        return KERNEL + elements(operands[0])
    if name == "matmul":
        terms = at(operands[0].shape.values[-1])
        return KERNEL + 2 * elements(result) * terms
    if name.startswith("nn.conv"):
        filters = elements(operands[1]) / max(1, at(operands[1].shape.values[0]))
        return KERNEL + 2 * elements(result) * filters
    return OPERATOR + _WEIGHTS.get(name, 1) * elements(result)


def elements(ty: relax.TensorType) -> int:
    """Count a tensor's elements."""
    return math.prod(at(extent) for extent in ty.shape.values)


def total(terms: Iterable[Term]) -> float:
    """Weigh expressions: all distinct subterms that are no expressions of constants."""
    found, constants = 0.0, set()
    for term in subterms(terms):
        is_leaf = term.head.call is None
        if all(o in constants for o in term.operands) and (
            not is_leaf or term.head.key[0] != "input"
        ):
            constants.add(term)
        elif not is_leaf:
            found += weight(term.head, term.type, [o.type for o in term.operands])
    return found


class Outlines:
    """Numbers of terms: equal ones where the same work is done on the same tensors.

    The planner need not be asked about ``relu(x)`` and ``maximum(x, 0)`` both.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, terms: Sequence[Term]) -> Hashable:
        """Give the numbers of terms, and how many operators they are."""
        found: dict[int, int | None] = {}
        operators = 0
        for term in subterms(terms):
            read = [n for o in term.operands if (n := found[id(o)]) is not None]
            key: Hashable = term.head.key
            if term.head.call is not None:
                operators += 1
                if properties_of(term.head.name).commutative:
                    read.sort()
                name = "" if term.head.name in _ALIKE else term.head.name
                work = weight(term.head, term.type, [o.type for o in term.operands])
                key = name, work, type_key(term.type), tuple(read)
            is_number = term.head.call is None and term.head.key[0] == "value"
            found[id(term)] = (
                None if is_number else self._numbers.setdefault(key, len(self._numbers))
            )
        return tuple(found[id(term)] for term in terms), operators
