"""Find reshapes: operators that keep the order of the elements in memory."""

from .._tvm.ir.reshape import is_reshape
from ..ecg.graph import Operator
from ..ecg.mapping_types.table import MappingType


def is_view(op: Operator) -> bool:
    """Whether an operator is a reshape of one tensor: the virtual machine does it for nothing."""
    return (
        op.type is MappingType.REORGANIZE
        and len(op.tensors) == 1
        and len(op.results) == 1
        and op.tensors[0].dtype == op.results[0].dtype
        and is_reshape(op.func)
    )
