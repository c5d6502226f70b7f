"""Node weights of the search before the planner is asked: arithmetic, and a launch each."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeAlias

from tvm import relax

from ....ecg.properties import properties_of
from ....ecg.work import at
from ..head import Head, type_key
from ..terms import Term, subterms

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


Weigh: TypeAlias = Callable[[Head, relax.TensorType, Sequence[relax.TensorType]], float]


def weight(head: Head, result: relax.TensorType, operands: Sequence[relax.TensorType]) -> float:
    """Weigh one operator.

    Parameters
    ----------
    head
        The operator, or a leaf, which weighs nothing.

    Returns
    -------
    float
        In operations; symbolic dimensions count as :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.
    """
    if head.call is None:
        return 0.0
    name = head.name.removeprefix("relax.")
    count = operations(head, result, operands)
    if name in REDUCTIONS or name == "matmul" or name.startswith("nn.conv"):
        return KERNEL + count
    return OPERATOR + _WEIGHTS.get(name, 1) * count


def operations(head: Head, result: relax.TensorType, operands: Sequence[relax.TensorType]) -> float:
    """Count operations as DNNFusion does: one an element, whatever it is; none of a move."""
    name = head.name.removeprefix("relax.")
    if name in MOVES:
        return 0
    if name in REDUCTIONS:
        return elements(operands[0])
    if name == "matmul":
        return 2 * elements(result) * at(operands[0].shape.values[-1])
    if name.startswith("nn.conv"):
        filters = operands[1]
        return 2 * elements(result) * elements(filters) / max(1, at(filters.shape.values[0]))
    return elements(result)


def elements(ty: relax.TensorType) -> int:
    """Count a tensor's elements."""
    return math.prod(at(extent) for extent in ty.shape.values)


def total(terms: Iterable[Term], weigh: Weigh = weight) -> float:
    """Weigh expressions: all distinct subterms that are no expressions of constants."""
    found, constants = 0.0, set()
    for term in subterms(terms):
        is_leaf = term.head.call is None
        if all(o in constants for o in term.operands) and (
            not is_leaf or term.head.key[0] != "input"
        ):
            constants.add(term)
        elif not is_leaf:
            found += weigh(term.head, term.type, [o.type for o in term.operands])
    return found


def outline(term: Term, operands: tuple[int, ...]) -> Hashable:
    """Key of a numbering of terms that do the same work on the same tensors.

    The planner need not be asked about ``relu(x)`` and ``maximum(x, 0)`` both.
    """
    if term.head.call is None:
        return "value" if _is_number(term) else term.head.key
    read = [n for o, n in zip(term.operands, operands, strict=True) if not _is_number(o)]
    if properties_of(term.head.name).commutative:
        read.sort()
    name = "" if term.head.name in _ALIKE else term.head.name
    work = weight(term.head, term.type, [o.type for o in term.operands])
    return name, work, type_key(term.type), tuple(read)


def _is_number(term: Term) -> bool:
    return term.head.call is None and term.head.key[0] == "value"
