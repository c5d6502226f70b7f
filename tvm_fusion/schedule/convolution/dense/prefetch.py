"""What a dense convolution on a CPU prefetches: what comes from a far cache or from memory."""

import math
from collections.abc import Sequence
from enum import IntFlag

from tvm import DataType, ir

from ....core.tir.expressions import has_load, loads, variables
from ....core.tir.loops import constant
from ...contraction.cpu.blocking import Machine
from ...index.address import lies_along
from ..problem.problem import ConvProblem

SYMBOLIC = 4  # images, if symbolic


class Prefetch(IntFlag):
    """What tiles prefetch."""

    NONE = 0
    WEIGHT = 1  # of the next tile of channels
    IMAGE = 2  # of the next tile of pixels
    OPERANDS = 4  # of the results of the tile itself


def far_streams(problem: ConvProblem, machine: Machine) -> Prefetch:
    """Tell which of the image and the operands of the results come from far.

    The kernel before has written a large one, and evicted its begin from the caches. An image that
    tasks copy, or of which several pixels read a line, is read in long pieces, which hardware
    follows.
    """
    found = Prefetch.NONE
    read = problem.reads_in_place and problem.c is not None and not problem.window
    operands = pixel_operands(problem, machine.unit.lanes)
    if read and _bytes(loads(problem.image.value)) > machine.far_bytes:
        found |= Prefetch.IMAGE
    if _bytes(operands) > machine.far_bytes:
        found |= Prefetch.OPERANDS
    return found


def pixel_operands(problem: ConvProblem, lanes: int) -> list[ir.TensorLoad]:
    """List what results read at every pixel, vectors of channels at a time, as a residual is.

    Parameters
    ----------
    lanes
        Elements of a vector.
    """
    if problem.pool is not None:
        return []
    pixels = {problem.y.var, problem.x.var}
    found: dict[tuple, ir.TensorLoad] = {}
    for result in problem.contraction.results:
        for operand in loads(result.value):
            indices = operand.indices
            used = {v for i in indices for v in variables(i)}
            if not used & pixels or any(has_load(i) for i in indices):
                continue
            if lies_along(operand.source, indices, problem.k, lanes):
                found[(operand.source, *map(str, indices))] = operand
    return list(found.values())


def _bytes(found: Sequence[ir.TensorLoad]) -> int:
    """Count the bytes of the buffers of some loads."""
    return sum(
        math.prod(constant(d) or SYMBOLIC for d in x.source.ty.shape)
        * DataType(x.source.ty.dtype).itemsize
        for x in found
    )
