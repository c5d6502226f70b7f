"""Transpose square tiles in vector registers by shuffles."""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...core.tir.loops import index, sequence


def transposed(rows: Sequence[ir.Expr], store: Callable[[int, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Run ``store(column, elements)`` for every column of a square, as a vector of its rows.

    log2(lanes) rounds of shuffles interleave the rows of the upper half with those of the lower
    half; each halves the distance in rows between neighbouring elements.

    Parameters
    ----------
    rows
        As many vectors as one has lanes, which is a power of two.
    """
    lanes = len(rows)
    low = [n // 2 + n % 2 * lanes for n in range(lanes)]
    high = [n + lanes // 2 for n in low]
    stmts: list[tirx.Stmt] = []

    def named(value: ir.Expr) -> ir.Expr:
        var = tirx.Var("row", str(value.ty.dtype))
        stmts.append(tirx.Bind(var, value))
        return var

    rows = [named(row) for row in rows]
    for _ in range(lanes.bit_length() - 1):
        pairs = list(zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True))
        rows = [named(tirx.Shuffle(list(pair), order)) for pair in pairs for order in (low, high)]
    stmts.extend(store(d, row) for d, row in enumerate(rows))
    return sequence(stmts)


def squares(extent: int, lanes: int) -> list[tuple[int, int]]:
    """Divide the shorter side of a tile among squares: pairs of a start and a power of two."""
    found, start = [], 0
    while start < extent:
        side = min(lanes, 1 << ((extent - start).bit_length() - 1))
        found.append((start, side))
        start += side
    return found


def adjacent(first: ir.Expr | int, count: int) -> ir.Expr:
    """Return the index of adjacent elements."""
    return index(first) if count == 1 else tirx.Ramp(index(first), index(1), count)
