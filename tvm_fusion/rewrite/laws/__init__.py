"""The laws, one family a file.

``elements``    arithmetic, element by element
``choices``     maxima, comparisons, conditions, types
``shapes``      slices, concatenations, what moves elements
``reduced``     reductions
``linear``      products and convolutions
``conditions``  what laws ask before they hold
"""

from collections.abc import Collection, Sequence

from ..egraph.law import Law
from .choices import casts, lattice, logic, order, select
from .elements import exponentials, powers, products, quotients, roots, signs, sums
from .linear import convolution, joined, matmuls, reparameterized, scaled_products, special_products
from .reduced import extrema, means, nested, scaled
from .shapes import concats, moves, slices

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
    *scaled.LAWS,
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
