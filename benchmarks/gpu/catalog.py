"""All that is timed, in the order of the table."""

from __future__ import annotations

from .convolutions import CONVOLUTIONS
from .decoder import STEPS
from .narrow_products import NARROW_PRODUCTS
from .others import OTHERS
from .packed import PACKED
from .products import PRODUCTS, drawn_products
from .works import NAMED, Work, drawn


def works(seed: int, count: int) -> list[Work]:
    """List the named works, further ones, a whole step of a decoder, products, and drawn ones."""
    products = [*PRODUCTS, *PACKED, *NARROW_PRODUCTS, *drawn_products(seed, count)]
    return [*NAMED, *OTHERS, *STEPS, *products, *CONVOLUTIONS, *drawn(seed, count)]
