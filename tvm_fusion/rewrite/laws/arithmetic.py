"""Sums, differences, products and quotients."""

from __future__ import annotations

from ..law import Law
from ..pattern import tensors

a, b, c, d = tensors("a b c d")


class AssociateAdd(Law):
    """a + (b + c) = a + b + c."""

    name = "associate_add"
    before = a + (b + c)
    after = (a + b) + c
    needs = "reassociate"


class AssociateMultiply(Law):
    """a * (b * c) = a * b * c."""

    name = "associate_multiply"
    before = a * (b * c)
    after = (a * b) * c
    needs = "reassociate"


class FactorMultiply(Law):
    """a * c + b * c = (a + b) * c."""

    name = "factor_multiply"
    before = a * c + b * c
    after = (a + b) * c
    both = True
    needs = "reassociate"


class FactorOne(Law):
    """a + a * b = a * (b + 1)."""

    name = "factor_one"
    before = a + a * b
    after = a * (b + 1)


class NeutralMultiply(Law):
    """a * 1 = a."""

    name = "neutral_multiply"
    before = a * 1
    after = a


LAWS: tuple[Law, ...] = (
    NeutralMultiply(),
    AssociateAdd(),
    AssociateMultiply(),
    FactorMultiply(),
    FactorOne(),
)
