"""How a group is read as one product for a GPU: with what else its kernel computes.

product                    a sum of products, and maps of it
product and other parts    the same, written next to the other parts of a concatenation
product and statistics     the same, and sums of few elements of its rows, or of its results
product that is pooled      the same of convolutions, reduced over windows of pixels
product of a norm          the same, and the sum that scales its rows (RMS norm)
product and heads          a product, maybe of a norm, and sums over each head that its results read
two products               of one A, whose results one epilogue reads
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tvm import ir

from ....core.contract.template import Refusal
from ....device import Device
from ....program.group import Group
from ....program.program import Program
from ....program.stage import Stage
from ..copies.implicit_gemm import with_stored_columns
from ..problem.epilogue.concat import concat_epilogue
from ..problem.epilogue.head_sum import with_head_sum
from ..problem.epilogue.pooled_rows import pooled_product
from ..problem.epilogue.row_statistics import with_statistics
from ..problem.norm_scale import NormScale, with_norm_scale
from ..problem.sum_of_products import SumOfProducts, analyse
from ..problem.template import constants_of, has_convolution
from ..tile.results.concat_parts import ConcatParts
from ..wgmma.dual_gemm import dual_gemm, has_two_products
from .space import GpuGemmProblem


class Reading(Enum):
    """As what a group is read."""

    PRODUCT = "one product"
    PARTS = "one product, and other parts of a concatenation"
    STATISTICS = "one product, and statistics of rows"
    POOLED = "one product, pooled over windows of its rows"
    NORM = "one product, and the scale of a norm before it"
    HEADS = "one product, and sums over the heads of its columns"
    DUAL = "two products of one operand"


@dataclass(frozen=True, eq=False)
class Product:
    """A group that is read as one product."""

    reading: Reading
    group: Group
    # Its program's, without internal maps; a concatenation is cut into its parts.
    stages: tuple[Stage, ...]
    as_read: SumOfProducts  # the product, its axes in the order of the graph
    device: Device  # A GPU
    norm_scale: NormScale | None = None  # of a norm before the product
    concat_parts: ConcatParts | None = None  # other parts of a concatenation
    # The same product, pooled, whose rows are pixels in their order.
    by_pixels: SumOfProducts | None = None

    @property
    def program(self) -> Program:
        """The group's program."""
        return self.group.program

    @cached_property
    def constants(self) -> frozenset[ir.Var]:
        """Inputs that may be packed at compile time: what other parts read stays as it is."""
        constants, concat_parts = constants_of(self.group), self.concat_parts
        if concat_parts is None:
            return constants
        return frozenset(x for x in constants if not concat_parts.reads(x))

    @cached_property
    def contraction(self) -> SumOfProducts:
        """The product, its axes in the order in which results are stored in vectors."""
        if self.norm_scale is not None or self.as_read.head_sum is not None:
            return self.as_read
        return with_stored_columns(self.as_read, self.constants)

    @cached_property
    def problem(self) -> GpuGemmProblem:
        """The product as a GEMM."""
        return GpuGemmProblem(self.contraction, self.device, self.norm_scale)


def read_product(group: Group, stages: tuple[Stage, ...], device: Device) -> Product | Refusal:
    """Read a group as one product.

    Parameters
    ----------
    group
        With at least one reduction.
    stages
        Its program's, without internal maps.
    """
    program = group.program
    if has_two_products(program):
        dual = dual_gemm(program, stages)
        if dual is None:
            return no_dual(stages, "are not such")
        return Product(Reading.DUAL, group, stages, dual, device)
    reductions = sum(not stage.is_map for stage in stages)
    if reductions > 1:
        found = with_statistics(program, stages)
        if not isinstance(found, Refusal):
            return Product(Reading.STATISTICS, group, stages, found, device)
        heads = with_head_sum(program, stages)
        if isinstance(heads, Refusal):
            return heads
        if heads is not None:
            contraction, norm_scale = heads
            return Product(Reading.HEADS, group, stages, contraction, device, norm_scale)
        if reductions > 2:
            return found
        if has_convolution(group):
            pooled = pooled_product(program, stages)
            if isinstance(pooled, Refusal):
                return pooled
            given = Reading.POOLED, group, stages, pooled.by_rows, device
            return Product(*given, by_pixels=pooled.by_pixels)
        scaled = with_norm_scale(program, stages)
        if isinstance(scaled, Refusal):
            return scaled
        contraction, scale = scaled
        return Product(Reading.NORM, group, stages, contraction, device, scale)
    found = analyse(program, stages, takes_pairs=True)
    if not isinstance(found, Refusal):
        return Product(Reading.PRODUCT, group, stages, found, device)
    concat = concat_epilogue(stages)
    cut = found if concat is None else analyse(program, concat.stages, takes_pairs=True)
    if concat is None or isinstance(cut, Refusal):
        return found
    stages, concat_parts = (*concat.stages, *concat.others), ConcatParts.of(concat.others)
    return Product(Reading.PARTS, group, stages, cut, device, concat_parts=concat_parts)


def no_dual(stages: Sequence[Stage], why: str) -> Refusal:
    """Say why two products are not computed by one kernel."""
    first, second = (s.title for s in stages if not s.is_map)
    return Refusal(
        "several_reductions",
        f"A contraction kernel computes two products only if they share A and an epilogue reads "
        f"both, and only by wgmma: {first} and {second} {why}.",
    )
