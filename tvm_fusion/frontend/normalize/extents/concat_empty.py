"""Remove empty tensors from concatenations."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...tensor_types import static
from ..engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ConcatEmpty(value: Any, scope: Scope) -> Any:
    """Leave operands without elements out of concatenations.

    A causal convolution with a kernel of one concatenates a state of no elements. As a constant,
    TVM 0.27 would write it into an executable that it cannot read ("Invalid DLTensor file format").
    """
    if op_name(value) != "relax.concat":
        return None
    operands = scope.value(value.args[0])
    if not isinstance(operands, relax.Tuple) or value.attrs.axis is None:
        return None
    axis = int(value.attrs.axis)
    kept = [field for field in operands.fields if not _is_empty(field.ty, axis)]
    if not kept or len(kept) == len(operands.fields):
        return None
    return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis)


def _is_empty(ty: Any, axis: int) -> bool:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return False
    return static(ty.shape[axis]) == 0
