"""All rows, in the order of the page."""

from . import convs, groups, memory, products, simplified
from .row import Example, Row

ROWS: tuple[Row, ...] = (
    *simplified.ROWS,
    *products.ROWS,
    *memory.ROWS,
    *groups.ROWS,
    *convs.ROWS,
)
EXAMPLES: dict[str, Example] = {e.name: e for row in ROWS for e in row.examples}
