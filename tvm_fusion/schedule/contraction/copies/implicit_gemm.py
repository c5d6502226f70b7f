"""Convolutions of channels-last images as implicit GEMMs.

    C[pixel, k] = sum over (window, c) of image[pixel + window, c] * packed[k, window, c]

Rows of A are not in memory: a chunk of 16 bytes is channels of one pixel, copied from the image
where the window is inside of it; of an image whose channels are planes, loaded from each of them.
The constant weight is packed at compile time in the order of the sum, channels last, as
``[groups][k][window][c]``.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.forms import other_form
from ....core.contract.template import Emission, Refusal
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import constant, index
from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ....program.images import convolved_rank
from ....program.program import Program
from ....program.stage import Axis
from ...index.address import known_step
from ...index.proposals import leaves, own_producers
from ..problem.functions.packing import Reordered, packings, with_packed
from ..problem.results import Result
from ..problem.sum_of_products import SumOfProducts, is_weight
from ..tile.config import is_plain, narrow_operand, unguarded
from ..tile.operand.chunks import is_planar
from ..tile.results.vectors import WIDTHS


@dataclass(frozen=True, eq=False)
class ImplicitGemm:
    """A convolution whose weight is packed in the order of its sum."""

    contraction: SumOfProducts  # over the packed weight, with the channels as last axis of the sum
    source: ir.Var  # the weight
    packed: ir.Var  # what kernels read instead
    axes: tuple[Axis, ...]  # of the packed weight
    value: ir.Expr  # the weight over these axes

    def program(self, program: Program) -> Program:
        """Replace the weight among the inputs of a program."""
        return with_packed(program, [self._weight])

    def emission(self, program: Program, made: Emission) -> Emission:
        """Pack the weight in front of a kernel; parameters as of OperandCopies.emission."""
        return replace(made, packing=self.packing(program))

    def packing(self, program: Program) -> dict[int, tirx.PrimFunc]:
        """Make the function that packs, by the weight's position among the inputs of a program."""
        return packings(program, [self._weight])

    @property
    def _weight(self) -> Reordered:
        return Reordered(self.source, self.packed, self.axes, self.value)


def implicit_gemm(
    contraction: SumOfProducts, constants: Collection[ir.Var], of_planes: bool = False
) -> ImplicitGemm | Refusal:
    """View a convolution as an implicit GEMM.

    Parameters
    ----------
    constants
        Inputs that may be packed: those that are known at compile time, or all.
    of_planes
        Whether channels are planes, instead of contiguous.

    Returns
    -------
    ImplicitGemm or Refusal
        Refused without a window, without a weight, or where channels are not contiguous.
    """
    stage = contraction.stage
    reduce = [a for a in stage.reduce if constant(a.extent) != 1]
    if len(reduce) < 2:
        return other_form("Its sum has a single axis: there is no window.")
    if any(constant(a.extent) is None for a in reduce):
        return other_form("An extent of its sum is symbolic.")
    if contraction.column_split is not None:
        return other_form("Its epilogue reads several columns of the result.")
    if not isinstance(contraction.term(), tirx.Mul):
        return other_form("Its terms are not plain products.")
    weight, image = contraction.right, contraction.left
    if not is_weight(weight, constants):
        weight, image = image, weight
    if not is_weight(weight, constants):
        return other_form("Neither operand is a weight: a single tensor, read without conditions.")
    core = narrow_operand(weight)
    (source,) = {x.source for x in loads(core)}
    others = [image, *(r.value for r in contraction.results)]
    if any(x.source.same_as(source) for e in others for x in loads(e)):
        return other_form("Something other than the product reads the weight, too.")
    pixel = stage.axes[-1].var if of_planes else None
    channels = _channels(image, reduce, variables(core), pixel)
    if channels is None:
        where = "planes of contiguous pixels" if of_planes else "contiguous"
        return other_form(f"Channels are not {where} in the image.")
    order = [*(a for a in stage.reduce if a is not channels), channels]
    used = variables(core)
    axes = tuple(a for a in (*stage.axes, *order) if a.var in used)
    if any(constant(a.extent) is None for a in axes):
        return other_form("An extent of the weight is symbolic.")
    shape = [index(a.extent) for a in axes]
    packed = declare(shape, str(core.ty.dtype), f"{source.name}_packed")
    made = with_weight(contraction, weight, load(packed, [a.var for a in axes]))
    made = replace(made, stage=replace(stage, reduce=tuple(order)))
    return ImplicitGemm(made, source, packed, axes, core)


def with_weight(contraction: SumOfProducts, weight: ir.Expr, packed: ir.Expr) -> SumOfProducts:
    """Read a packed weight, in its own type, where one of the operands is the weight."""
    if str(weight.ty.dtype) != str(packed.ty.dtype):
        packed = tirx.Cast(str(weight.ty.dtype), packed)
    side = "right" if weight is contraction.right else "left"
    return replace(contraction, **{side: packed})


def with_stored_columns(contraction: SumOfProducts, constants: Collection[ir.Var]) -> SumOfProducts:
    """Make the channels of a constant weight the last axis, where results are contiguous along it.

    The last axis is one of N, whose vectors an epilogue stores. Convolutions have their axes in the
    order of the graph, also where results are channels-last.
    """
    stage = contraction.stage
    if contraction.column_split is not None:
        return contraction
    wide = [a for a in stage.axes if constant(a.extent) != 1]
    for weight, other in (
        (contraction.left, contraction.right),
        (contraction.right, contraction.left),
    ):
        if not wide or not is_weight(weight, constants):
            continue
        own = variables(weight) - variables(other)
        result = contraction.results[0]
        stored = [a for a in wide if a.var in own and _is_stored(result, a, wide)]
        if len(stored) == 1 and wide[-1].var not in variables(weight):
            axes = (*(a for a in stage.axes if a is not stored[0]), stored[0])
            return replace(contraction, stage=replace(stage, axes=axes))
    return contraction


def _is_stored(result: Result, axis: Axis, wide: Sequence[Axis]) -> bool:
    """Whether a result is contiguous along an axis, at least in vectors of it.

    As where phases of a transposed convolution are channels: ``k % K`` of K in memory.
    """
    if known_step(result.buffer, result.indices, axis.var, [a.var for a in wide]) == 1:
        return True
    last = result.indices[-1]
    if not isinstance(last, tirx.FloorMod) or not axis.var.same_as(last.a):
        return False
    return (constant(last.b) or 1) % max(WIDTHS) == 0


def _channels(
    image: ir.Expr, reduce: list[Axis], of_weight: set[ir.Var], pixel: ir.Var | None
) -> Axis | None:
    """Find the axis of the sum along which an image is contiguous, and no pixel moves.

    With a pixel's axis, that along which pixels of planes are as far apart as a plane is large.
    """
    core, guard = unguarded(narrow_operand(image))
    if not is_plain(core):
        return None
    if pixel is not None:
        moving = set() if guard is None else variables(guard)
        fixed = [a for a in reduce if a.var not in moving]
        return next((a for a in fixed if is_planar(core, a.var, pixel)), None)
    own = [a.var for a in reduce]
    for axis in reduce:
        last = variables(core.indices[-1])
        if (
            axis.var in last
            and last <= of_weight
            and known_step(core.source, core.indices, axis.var, own) == 1
        ):
            return axis
    return None


# Convolutions with the transposes around them, in graphs whose images are channels-last.
#
#     x[n, h, w, c] -> permute_dims -> conv2d -> bias, activation -> permute_dims -> y[n, h, w, k]
#
# Kernels that multiply channels-last images take all of it, but no pair: with one of the transposes
# a convolution reads one layout and writes another.
_MAPS = (MappingType.ONE_TO_ONE, MappingType.SHUFFLE)


def transpose_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name each convolution between two transposes, with those and the maps between them."""
    for op in graph.operators:
        if not convolved_rank(op):
            continue
        before = own_producers(graph, [op], (MappingType.SHUFFLE,), 1)
        after = _up_to_transpose(graph, op) if before else []
        if after:
            yield *before, op, *after


def _up_to_transpose(graph: Graph, op: Operator) -> list[Operator]:
    """Follow an operator's only reader as far as a transpose; nothing where none comes."""
    found: list[Operator] = []
    while not leaves(op):
        readers = graph.successors(op)
        if len(readers) != 1 or readers[0].type not in _MAPS:
            break
        (op,) = readers
        found.append(op)
        if op.type is MappingType.SHUFFLE:
            return found
    return []
