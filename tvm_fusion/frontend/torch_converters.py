"""Converters of PyTorch operators that TVM 0.27's importer does not know, or gets wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvm import relax

from .torch_indexing import index, index_put, select


def _shift(relax_operator: Callable[..., Any], of_numbers: Callable[..., Any]) -> Callable:
    def convert(node: Any, importer: Any) -> Any:
        return importer._binary_op(relax_operator, of_numbers)(node)

    return convert


_LEFT = _shift(relax.op.left_shift, operator.lshift)
_RIGHT = _shift(relax.op.right_shift, operator.rshift)

#: By the name of the operator and its overload, as the importer's own.
CONVERTERS: dict[str, Callable] = {
    **dict.fromkeys(("__lshift__.Scalar", "__lshift__.Tensor"), _LEFT),
    **dict.fromkeys(("__rshift__.Scalar", "__rshift__.Tensor"), _RIGHT),
    **{f"bitwise_left_shift.Tensor{o}": _LEFT for o in ("", "_Scalar")},
    **{f"bitwise_right_shift.Tensor{o}": _RIGHT for o in ("", "_Scalar")},
    "index.Tensor": index,
    "index_put.default": index_put,
    "select.int": select,
}
