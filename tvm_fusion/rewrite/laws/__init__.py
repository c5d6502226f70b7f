"""The laws, one family a file."""

from __future__ import annotations

from collections.abc import Collection

from ..law import Law
from . import arithmetic

LAWS: tuple[Law, ...] = (*arithmetic.LAWS,)


def allowed(flags: Collection[str] = (), without: Collection[str] = ()) -> tuple[Law, ...]:
    """List the laws that hold always, and those that flags allow.

    Parameters
    ----------
    flags : collection of str
        Of :data:`tvm_fusion.rewrite.law.FLAGS`.
    without : collection of str
        Names of laws that are switched off.
    """
    return tuple(
        law for law in LAWS if (not law.needs or law.needs in flags) and law.name not in without
    )
