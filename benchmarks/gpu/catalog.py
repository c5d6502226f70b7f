"""All that is timed, in the order of the table."""

from .attention import ATTENTION
from .convolutions import CONVOLUTIONS
from .decoder import STEPS
from .experts import EXPERTS
from .layer_pairs import LAYER_PAIRS
from .narrow_products import NARROW_PRODUCTS
from .others import OTHERS
from .packed import PACKED
from .packed_products import PACKED_PRODUCTS
from .products import PRODUCTS, drawn_products
from .works import NAMED, Work, drawn, drawn_norms, norm_parts


def works(seed: int, count: int) -> list[Work]:
    """List the named workloads, others, a whole step of a decoder, products, and random ones."""
    products = [*PRODUCTS, *ATTENTION, *PACKED, *PACKED_PRODUCTS, *NARROW_PRODUCTS, *EXPERTS]
    products += [*LAYER_PAIRS, *drawn_products(seed, count), *CONVOLUTIONS]
    rows = [*drawn(seed, count), *drawn_norms(seed), *norm_parts(seed)]
    return [*NAMED, *OTHERS, *STEPS, *products, *rows]
