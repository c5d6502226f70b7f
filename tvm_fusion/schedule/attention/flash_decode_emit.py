"""The two launches of flash-decoding, and the partial results between them.

split_kv    grid: batches and KV heads by splits of the keys
            o, m, l = online softmax attention of the split's keys, for all rows of the query group
            partial_o[row, split, :] = o;  partial_ml[row, :, split] = (m, l)
reduction   grid: rows
            m = max m_s;  l = sum l_s exp(m_s - m)
            C[row, :] = epilogue(sum o_s exp(m_s - m) / l)
"""

from __future__ import annotations

from tvm import relax

from ..._tvm.buffer import declare
from ...core.loops import index
from ...core.template import Emission, Kernel, Slot
from ...program.group import Group
from .flash_decode import FlashDecodeConfig
from .pattern import FLOAT
from .split_kv_reduce import reduction_kernel
from .split_kv_simt import split_kv_kernel


def flash_decode(group: Group, config: FlashDecodeConfig) -> Emission:
    """Make the split-KV kernel and the reduction kernel.

    Parameters
    ----------
    group : Group
        What was claimed.
    config : FlashDecodeConfig
        Its configuration.
    """
    program = group.program
    rows = [config.kv_batch, index(config.query_group.size)]
    shapes = [
        [*rows, index(config.splits), index(config.head_dim_v)],
        [*rows, index(2), index(config.splits)],
    ]
    names = ("partial_o", "partial_ml")
    between = [declare(s, FLOAT, n) for s, n in zip(shapes, names, strict=True)]
    inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
    scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
    outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
    workspaces = tuple(Slot("workspace", i) for i in range(len(between)))
    # Scalars follow the tensors that they are passed with.
    first = split_kv_kernel(program, config, *between)
    second = reduction_kernel(program, config, *between)
    return Emission(
        (
            Kernel(first, (*inputs, *scalars), workspaces),
            Kernel(second, (*inputs, *workspaces, *scalars), outputs),
        ),
        tuple(relax.TensorType(shape, FLOAT) for shape in shapes),
    )
