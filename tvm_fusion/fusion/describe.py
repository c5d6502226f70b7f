"""What an artifact keeps of a group's kernels: members, work, and the price with its source."""

from ..core.contract.kernel_info import KernelInfo
from ..core.contract.template import Claim
from ..device import Device
from ..ecg.mapping_types.table import most_complex
from ..ecg.operator import Operator
from ..ecg.work import Count, flops
from ..frontend.dimensions.extents import from_tir
from .cost import CostModel
from .features import is_contraction

_LONGEST = 400  # characters of an expression
_PRODUCTS = ("matmul", "conv", "attention")  # of few bytes these are contractions as well


def describe(claim: Claim, device: Device) -> KernelInfo:
    """Describe the kernels of a claim, in the template's default configuration."""
    group = claim.group
    symbolic = _symbolic_flops(claim)
    estimate = CostModel(device).cost(claim)
    return KernelInfo(
        claim.template.name,
        tuple(op.title for op in group.members),
        most_complex(op.type for op in group.members).value,
        dict(next(iter(claim.template.configs(claim, device)), {})),
        claim.bytes if symbolic is None else None,
        sum(op.flops for op in group.members) if symbolic is None else symbolic,
        _dtype(claim),
        estimate.us,
        estimate.source,
        estimate.record,
    )


def _symbolic_flops(claim: Claim) -> str | None:
    """Write a group's operations over its symbolic dimensions; None where all shapes are fixed.

    0 where the expression is too long to be kept.
    """
    tensors = (*claim.group.inputs, *claim.group.outputs)
    extents = [from_tir(extent) for value in tensors for extent in value.type.shape.values]
    if all(isinstance(extent, int) for extent in extents):
        return None
    total: Count = 0
    for op in claim.group.members:
        if op.func is not None:
            total = total + flops(op.func)
    text = str(from_tir(total))
    return text if len(text) <= _LONGEST else "0"


def _dtype(claim: Claim) -> str:
    """Return the type at whose rate the products run; that of vectors where there are none."""
    if claim.matrix_dtype:
        return claim.matrix_dtype
    products = [op for op in claim.group.members if op.tensors and _is_product(op)]
    largest = max(products, key=lambda op: op.flops, default=None)
    return "float32" if largest is None else largest.tensors[0].dtype


def _is_product(op: Operator) -> bool:
    known = op.record is not None and op.record.name.rpartition(".")[2].startswith(_PRODUCTS)
    return known or is_contraction(op)
