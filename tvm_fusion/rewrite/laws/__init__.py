"""The laws, one family a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..egraph.law import Law
from . import (
    casts,
    concats,
    convolution,
    exponentials,
    extrema,
    joined,
    lattice,
    logic,
    matmuls,
    means,
    moves,
    nested,
    order,
    powers,
    products,
    quotients,
    reductions,
    reparameterized,
    roots,
    scaled_products,
    select,
    signs,
    slices,
    special_products,
    sums,
)

LAWS: tuple[Law, ...] = (
    *sums.LAWS,
    *products.LAWS,
    *quotients.LAWS,
    *exponentials.LAWS,
    *roots.LAWS,
    *powers.LAWS,
    *signs.LAWS,
    *lattice.LAWS,
    *order.LAWS,
    *casts.LAWS,
    *select.LAWS,
    *logic.LAWS,
    *slices.LAWS,
    *concats.LAWS,
    *reductions.LAWS,
    *means.LAWS,
    *extrema.LAWS,
    *nested.LAWS,
    *matmuls.LAWS,
    *scaled_products.LAWS,
    *special_products.LAWS,
    *convolution.LAWS,
    *joined.LAWS,
    *reparameterized.LAWS,
    *moves.LAWS,
)


def allowed(
    flags: Collection[str] = (), without: Collection[str] = (), laws: Sequence[Law] = LAWS
) -> tuple[Law, ...]:
    """List the laws that hold always, or where they do, and those that flags allow.

    Parameters
    ----------
    flags
        Of :data:`tvm_fusion.rewrite.egraph.law.FLAGS`.
    without
        Names of laws that are switched off.
    """
    kept = (law for law in laws if law.name not in without)
    given = (law if law.needs in flags else law.without_flag() for law in kept)
    return tuple(law for law in given if law is not None)
