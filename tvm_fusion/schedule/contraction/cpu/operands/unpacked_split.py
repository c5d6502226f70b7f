"""Column splits that a CPU kernel refuses: those of a B that is not packed by whole vectors."""

from .....core.contract.template import Refusal
from .....program.group import Group
from ...problem.gemm_view import gemm_view
from ...problem.ragged_rows import ragged_rows
from ...problem.sum_of_products import SumOfProducts
from ...problem.template import constants_of
from ..blocking import MAX_VECTORS
from .packed_weights import packable

WIDEST = 16  # elements of a vector


def refuse_unpacked_split(group: Group, contraction: SumOfProducts) -> Refusal | None:
    """Refuse a column split on a CPU unless B is a constant, of which tiles load whole vectors."""
    split = contraction.column_split
    if split is None:
        return None
    ragged = ragged_rows(contraction)
    contraction = contraction if ragged is None else ragged[0]
    view = gemm_view(contraction)
    if (
        view is not None
        and split.width % WIDEST == 0
        and split.count <= MAX_VECTORS
        and view.n_axes[-2:] == (split.part, split.position)
        and packable(contraction, view, constants_of(group)) is not None
    ):
        return None
    return unpacked_split(contraction)


def unpacked_split(contraction: SumOfProducts) -> Refusal:
    """Say that a column split cannot be packed."""
    return Refusal(
        "epilogue_elsewhere",
        f"The epilogue of {contraction.stage.title} reads several columns of its result, which "
        "takes a constant weight of a width that can be packed by whole vectors.",
    )
