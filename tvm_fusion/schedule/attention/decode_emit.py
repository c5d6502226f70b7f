"""The two launches of attention of few rows, with what lies between them."""

from __future__ import annotations

from tvm import relax

from ..._tvm.buffer import declare
from ...core.loops import index
from ...core.template import Emission, Kernel, Slot
from ...program.group import Group
from .combine_gpu import combine_gpu
from .decode import Decode
from .pattern import FLOAT
from .split_gpu import split_gpu


def decode_gpu(group: Group, cut: Decode) -> Emission:
    """Make both kernels.

    Parameters
    ----------
    group : Group
        What was claimed.
    cut : Decode
        How it is cut.
    """
    program = group.program
    rows = [cut.pairs, index(cut.sharing.count)]
    shapes = [
        [*rows, index(cut.splits), index(cut.columns)],
        [*rows, index(2), index(cut.splits)],
    ]
    between = [declare(s, FLOAT, n) for s, n in zip(shapes, ("sums", "rest"), strict=True)]
    inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
    scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
    outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
    workspaces = tuple(Slot("workspace", i) for i in range(len(between)))
    # Scalars follow the tensors that they are passed with.
    first = split_gpu(program, cut, *between)
    second = combine_gpu(program, cut, *between)
    return Emission(
        (
            Kernel(first, (*inputs, *scalars), workspaces),
            Kernel(second, (*inputs, *workspaces, *scalars), outputs),
        ),
        tuple(relax.TensorType(shape, FLOAT) for shape in shapes),
    )
