"""Tables of the generated pages."""

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def marked(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with other lines between the markers of a name, which a command writes.

    The markers are ``<!-- begin NAME -->``, words may follow the name, and ``<!-- end NAME -->``.
    """
    before, begin, rest = re.split(rf"(<!-- begin {re.escape(name)}\b.*?-->\n)", page)
    _, end, after = rest.partition(f"<!-- end {name} -->")
    return before + begin + "\n".join(lines) + "\n" + end + after
