"""The laws, one family a file."""

from __future__ import annotations

from collections.abc import Collection

from ..law import Law, OnIntegers
from . import products, quotients, sums

LAWS: tuple[Law, ...] = (*sums.LAWS, *products.LAWS, *quotients.LAWS)


def allowed(flags: Collection[str] = (), without: Collection[str] = ()) -> tuple[Law, ...]:
    """List the laws that hold always, and those that flags allow; others on integers only.

    Parameters
    ----------
    flags : collection of str
        Of :data:`tvm_fusion.rewrite.law.FLAGS`.
    without : collection of str
        Names of laws that are switched off.
    """
    found = []
    for law in LAWS:
        if law.name in without:
            continue
        if not law.needs or law.needs in flags:
            found.append(law)
        elif law.is_modular:
            found.append(OnIntegers(law))
    return tuple(found)
