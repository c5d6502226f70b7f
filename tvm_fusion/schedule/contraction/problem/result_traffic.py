"""Bytes that an element of a GEMM's results reads and writes, and whether they outgrow L2."""

from collections.abc import Sequence

from tvm import DataType, ir

from ....core.tir.expressions import loads, variables
from ....device import Device
from ....program.stage import Axis
from .results import Result


def written_bytes(results: Sequence[Result]) -> int:
    """Count the bytes of an element of all results."""
    return sum(_bytes(r.buffer) for r in results)


def read_bytes(results: Sequence[Result], m_axes: Sequence[Axis], n_axes: Sequence[Axis]) -> int:
    """Count the bytes that an element of the results reads, of tensors with rows and columns."""
    sides = [{a.var for a in axes} for axes in (m_axes, n_axes)]
    found = {x.source: x for r in results for x in loads(r.value)}
    return sum(
        _bytes(x)
        for x in found.values()
        if all(side & {v for i in x.indices for v in variables(i)} for side in sides)
    )


def outgrows_l2(
    results: Sequence[Result],
    m_axes: Sequence[Axis],
    n_axes: Sequence[Axis],
    elements: int,
    device: Device,
) -> bool:
    """Whether results and what they read are more than L2 holds, so that they are streamed.

    Until the next kernel reads them, the rest has evicted them; so would they A and B.
    """
    size = elements * (written_bytes(results) + read_bytes(results, m_axes, n_axes))
    return device.l2_bytes is not None and size > device.l2_bytes


def _bytes(tensor: ir.Expr) -> int:
    return int(DataType(str(tensor.ty.dtype)).itemsize)
