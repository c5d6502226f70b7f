"""What an operator counts for before the planner is asked: arithmetic, and a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from ..ecg.work import at
from .head import Head

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
