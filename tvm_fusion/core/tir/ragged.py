"""Rows of a tensor in groups, one behind the other, that end where a tensor of offsets says.

group e    rows offsets[e - 1] .. offsets[e] - 1; the first begins with row 0
           offsets never fall; equal ones are an empty group, and rows behind the last are of none
"""

from typing import Any

from tvm import te, tirx

from .loops import index


def is_of_group(offsets: Any, group: Any, row: Any) -> Any:
    """Whether a row is one of a group.

    Parameters
    ----------
    group, row : Expr
        Numbers of both, int64.
    """
    before = tirx.Cast("int64", offsets[tirx.max(group - index(1), index(0))])
    start = tirx.if_then_else(group > index(0), before, index(0))
    return tirx.all(start <= row, row < tirx.Cast("int64", offsets[group]))


def grouped_matmul(rows: Any, matrices: Any, offsets: Any, dtype: str) -> Any:
    """Multiply each row by the matrix of its group; rows of none give zeros.

    Written as a sum over groups as well, all of whose terms but those of one are zeros: so it is
    right wherever it is lowered. Kernels for it know what it is, and multiply once.

    Parameters
    ----------
    rows : te.Tensor
        ``[rows, k]``.
    matrices : te.Tensor
        ``[groups, k, n]``.
    offsets : te.Tensor
        ``[groups]``, int32 or int64.
    dtype
        Of the result, and of the sums.
    """
    groups, inner, columns = map(index, matrices.shape)
    group, k = te.reduce_axis((index(0), groups), "group"), te.reduce_axis((index(0), inner), "k")

    def element(row: Any, column: Any) -> Any:
        zero = tirx.const(0, rows.dtype)
        own = tirx.if_then_else(is_of_group(offsets, group, row), rows[row, k], zero)
        return te.sum(own.astype(dtype) * matrices[group, k, column].astype(dtype), [group, k])

    return te.compute((rows.shape[0], columns), element, name="grouped_matmul")
