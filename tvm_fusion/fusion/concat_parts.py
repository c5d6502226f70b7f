"""Concatenations that need no kernel: whoever computes an input stores it in its place."""

from dataclasses import replace

from ..core.contract.template import Claim
from ..core.tir.loops import constant
from ..ecg.graph import Operator, Value
from ..ecg.mapping_types.table import MappingType
from .reshapes import is_view


def is_stored_by_parts(op: Operator) -> bool:
    """Whether kernels of reductions, such as convolutions, compute each input for it alone.

    :mod:`tvm_fusion.deploy.memory.concat_parts` lets them do so. What maps alone compute is rather
    computed by the kernel that joins it.
    """
    if op.record is None or op.record.name != "relax.concat":
        return False
    values = (*op.tensors, *op.results)
    is_static = all(constant(d) is not None for value in values for d in value.shape)
    is_once = len(set(op.tensors)) == len(op.tensors) > 1
    return is_static and is_once and all(map(_is_reduced, op.tensors))


def free(claim: Claim) -> Claim:
    """Price a claim as nothing: what it promises others do."""
    return replace(claim, launches=0, bytes=0, flops=0, priced_flops=0, laid_out=None)


def _is_reduced(value: Value) -> bool:
    """Whether a value that is read once comes from a reduction, through maps of it."""
    op = value.producer
    if op is None or op.is_opaque or is_view(op):
        return False
    while op.type is not MappingType.MANY_TO_MANY:
        if value.leaves or len(value.consumers) != 1 or op.type is MappingType.OPAQUE:
            return False
        before = [v for v in op.tensors if not v.is_parameter and v.producer is not None]
        if len(before) != 1:
            return False
        (value,) = before
        op = value.operator
    return not value.leaves and len(value.consumers) == 1
