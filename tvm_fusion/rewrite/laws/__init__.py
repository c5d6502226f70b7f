"""The laws, one family a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..law import Law, OnIntegers
from . import (
    casts,
    concats,
    exponentials,
    lattice,
    logic,
    order,
    powers,
    products,
    quotients,
    roots,
    select,
    signs,
    slices,
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
)


def allowed(
    flags: Collection[str] = (), without: Collection[str] = (), laws: Sequence[Law] = LAWS
) -> tuple[Law, ...]:
    """List the laws that hold always, and those that flags allow; others on integers only.

    Parameters
    ----------
    flags : collection of str
        Of :data:`tvm_fusion.rewrite.law.FLAGS`.
    without : collection of str
        Names of laws that are switched off.
    laws : sequence of Law
        That there are.
    """
    found = []
    for law in laws:
        if law.name in without:
            continue
        if not law.needs or law.needs in flags:
            found.append(law)
        elif law.is_modular:
            found.append(OnIntegers(law))
    return tuple(found)
