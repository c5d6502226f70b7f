"""The mapping table as graphs of two operators, the first feeding the second.

Rows are the first operator's type, columns the second's. Where the second operator takes two
operands there are pairs with the first as either of them.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from .case import Case, module, tensor
from .cell_operators import OPERATORS

TYPES = ("One-to-One", "One-to-Many", "Many-to-Many", "Reorganize", "Shuffle")
_ROWS = 3
_DEFAULT = (5, 7, 9)

#: Pairs by cell; the first pair of a cell is also built with a symbolic leading extent.
PAIRS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("One-to-One", "One-to-One"): [
        ("exp", "subtract"),
        ("exp", "subtract_from"),
        ("add", "concat"),
        ("slice", "exp"),
    ],
    ("One-to-One", "One-to-Many"): [
        ("exp", "broadcast_subtract"),
        ("exp", "broadcast_subtract_from"),
        ("add", "tile"),
        ("slice", "resize"),
        ("concat", "take"),
    ],
    ("One-to-One", "Many-to-Many"): [
        ("exp", "softmax"),
        ("add", "sum"),
        ("slice", "layer_norm"),
        ("concat", "max_pool"),
        ("add", "matmul"),
        ("add", "matmul_by"),
        ("add", "conv2d"),
    ],
    ("One-to-One", "Reorganize"): [
        ("exp", "reshape"),
        ("add", "flatten"),
        ("subtract_from", "squeeze"),
        ("slice", "expand_dims"),
    ],
    ("One-to-One", "Shuffle"): [
        ("exp", "permute"),
        ("add", "flip"),
        ("subtract_from", "depth_to_space"),
        ("exp", "to_channels_last"),
    ],
    ("One-to-Many", "One-to-One"): [
        ("broadcast", "subtract"),
        ("tile", "subtract_from"),
        ("resize", "exp"),
        ("broadcast_subtract", "concat"),
        ("take", "add"),
    ],
    ("One-to-Many", "One-to-Many"): [
        ("repeat", "broadcast_subtract"),
        ("broadcast", "broadcast_subtract_from"),
        ("tile", "resize"),
        ("take", "repeat"),
    ],
    ("One-to-Many", "Many-to-Many"): [
        ("repeat", "matmul"),
        ("tile", "matmul_by"),
        ("resize", "conv2d"),
        ("broadcast_subtract", "softmax"),
    ],
    ("One-to-Many", "Reorganize"): [
        ("tile", "reshape"),
        ("repeat", "flatten"),
        ("broadcast_subtract", "expand_dims"),
        ("resize", "squeeze"),
    ],
    ("One-to-Many", "Shuffle"): [
        ("tile", "permute"),
        ("broadcast", "flip"),
        ("take", "permute"),
        ("resize", "depth_to_space"),
    ],
    ("Many-to-Many", "One-to-One"): [
        ("softmax", "subtract"),
        ("layer_norm", "subtract_from"),
        ("sum", "exp"),
        ("max_pool", "concat"),
        ("matmul", "add"),
        ("conv2d", "exp"),
    ],
    ("Many-to-Many", "One-to-Many"): [
        ("sum", "broadcast_subtract"),
        ("mean", "broadcast_subtract_from"),
        ("softmax", "repeat"),
        ("max_pool", "resize"),
        ("layer_norm", "take"),
    ],
    ("Many-to-Many", "Many-to-Many"): [
        ("matmul", "matmul"),
        ("matmul", "matmul_by"),
        ("conv2d", "conv2d"),
        ("max_pool", "matmul"),
    ],
    ("Many-to-Many", "Reorganize"): [
        ("softmax", "reshape"),
        ("sum", "flatten"),
        ("max_pool", "squeeze"),
        ("layer_norm", "expand_dims"),
        ("matmul", "reshape"),
    ],
    ("Many-to-Many", "Shuffle"): [
        ("softmax", "permute"),
        ("layer_norm", "flip"),
        ("max_pool", "depth_to_space"),
        ("conv2d", "permute"),
        ("matmul", "permute"),
    ],
    ("Reorganize", "One-to-One"): [
        ("reshape", "subtract"),
        ("squeeze", "subtract_from"),
        ("flatten", "exp"),
        ("expand_dims", "concat"),
    ],
    ("Reorganize", "One-to-Many"): [
        ("reshape", "broadcast_subtract"),
        ("squeeze", "broadcast_subtract_from"),
        ("reshape", "resize"),
        ("expand_dims", "tile"),
        ("flatten", "repeat"),
    ],
    ("Reorganize", "Many-to-Many"): [
        ("reshape", "softmax"),
        ("squeeze", "layer_norm"),
        ("expand_dims", "sum"),
        ("reshape", "max_pool"),
        ("reshape", "matmul"),
        ("squeeze", "matmul_by"),
    ],
    ("Reorganize", "Reorganize"): [
        ("reshape", "flatten"),
        ("squeeze", "reshape"),
        ("expand_dims", "reshape"),
    ],
    ("Reorganize", "Shuffle"): [
        ("reshape", "permute"),
        ("squeeze", "flip"),
        ("expand_dims", "permute"),
        ("flatten", "flip"),
    ],
    ("Shuffle", "One-to-One"): [
        ("permute", "subtract"),
        ("flip", "subtract_from"),
        ("depth_to_space", "exp"),
        ("to_channels_last", "concat"),
    ],
    ("Shuffle", "One-to-Many"): [
        ("permute", "broadcast_subtract"),
        ("flip", "broadcast_subtract_from"),
        ("depth_to_space", "resize"),
        ("to_channels_last", "tile"),
    ],
    ("Shuffle", "Many-to-Many"): [
        ("to_channels_last", "sum"),
        ("permute", "softmax"),
        ("flip", "layer_norm"),
        ("depth_to_space", "max_pool"),
        ("permute", "matmul"),
        ("permute_batch", "matmul_by"),
    ],
    ("Shuffle", "Reorganize"): [
        ("permute", "reshape"),
        ("flip", "flatten"),
        ("depth_to_space", "squeeze"),
    ],
    ("Shuffle", "Shuffle"): [
        ("permute", "flip"),
        ("flip", "permute"),
        ("depth_to_space", "permute"),
    ],
}


def case(first: str, second: str, *, symbolic: bool = False) -> Case:
    """Build a pair.

    Parameters
    ----------
    symbolic
        Whether the leading extent is a variable.
    """
    one, two = OPERATORS[first], OPERATORS[second]
    inner = one.shape or two.shape or _DEFAULT

    def build() -> tvm.IRModule:
        rows = tirx.Var("n", "int64") if symbolic else _ROWS
        x = tensor("x", rows, *inner)
        between = _type(first, x)
        firsts = _others(first, x.ty, "a")
        seconds = _others(second, between, "b")

        def body(builder: relax.BlockBuilder, x: relax.Var, *others: relax.Var) -> relax.Expr:
            value = builder.emit(one.emit(builder, x, *others[: len(firsts)]))
            return two.emit(builder, value, *others[len(firsts) :])

        return module([x, *firsts, *seconds], body)

    def reference(x: np.ndarray, *others: np.ndarray) -> np.ndarray:
        count = len(one.others(x.shape))
        return two.reference(one.reference(x, *others[:count]), *others[count:])

    name = f"{first}-{second}{'-symbolic' if symbolic else ''}"
    return Case(name, build, reference, {"n": _ROWS} if symbolic else {})


def _others(name: str, operand: relax.TensorType, prefix: str) -> list[relax.Var]:
    operator = OPERATORS[name]
    shapes = operator.others(list(operand.shape))
    return [tensor(f"{prefix}{i}", *shape, dtype=operator.dtype) for i, shape in enumerate(shapes)]


def _type(name: str, x: relax.Var) -> Any:
    """Type of an operator's result."""
    others = _others(name, x.ty, "a")
    body = lambda builder, *operands: OPERATORS[name].emit(builder, *operands)  # noqa: E731
    return module([x, *others], body)["main"].ret_ty
