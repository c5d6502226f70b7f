"""Scaling by rows and columns moves through a matrix product, and into constant weights."""

from __future__ import annotations

from tvm import relax

from ...schedule.template import Refusal
from ..extents import aligned, extents, is_one, magnitudes, reshaped, same, spreads
from ..law import Law, Match
from ..pattern import function, tensors
from .matmuls import Linear, matrices

a, b, s = tensors("a b s")
diagonal = function("relax.reshape", "diagonal")

_VECTOR = Refusal("vector", "An operand has no rows or no columns.")


def _sizes(match: Match, name: str) -> tuple:
    """Give the extents of the last two axes, as broadcasting reads them."""
    ty = match.type(name)
    return tuple(aligned(ty, max(2, ty.ndim))[-2:])


class _Scaled(Linear):
    """The product of a scaled matrix."""

    both = True
    into: str  # the operand that is scaled

    def exempt(self, match: Match) -> bool:
        """Let integers pass, and factors that are 1 or -1."""
        sizes = magnitudes(match.value("s"))
        return super().exempt(match) or (sizes is not None and bool((sizes == 1).all()))

    def check(self, match: Match) -> Refusal | None:
        if not matrices(match, "a", "b"):
            return _VECTOR
        if not spreads(match.type("s"), match.type(self.into)):
            return Refusal("larger_factor", "The factor has axes that the matrix lacks.")
        return self.mixed(match, "a", "b")


class ScaleRows(_Scaled):
    """a * s @ b = a @ b * s."""

    name = "scale_rows"
    before = (a * s) @ b
    after = (a @ b) * s
    into = "a"

    def check(self, match: Match) -> Refusal | None:
        if not is_one(_sizes(match, "s")[1]):
            return Refusal("varies", "The factor varies along what is added up.")
        return super().check(match)


class DivideRows(ScaleRows):
    """a / s @ b = a @ b / s."""

    name = "divide_rows"
    before = (a / s) @ b
    after = (a @ b) / s


class ScaleColumns(_Scaled):
    """a @ (b * s) = a @ b * s."""

    name = "scale_columns"
    before = a @ (b * s)
    after = (a @ b) * s
    into = "b"

    def check(self, match: Match) -> Refusal | None:
        if not is_one(_sizes(match, "s")[0]):
            return Refusal("varies", "The factor varies along what is added up.")
        return super().check(match)


class DivideColumns(ScaleColumns):
    """a @ (b / s) = a @ b / s."""

    name = "divide_columns"
    before = a @ (b / s)
    after = (a @ b) / s


class ScaleTerms(Linear):
    """a * s @ b = a @ (b * reshape(s, diagonal))."""

    name = "scale_terms"
    before = (a * s) @ b
    after = a @ (b * diagonal(s))
    operator = "multiply"

    def check(self, match: Match) -> Refusal | None:
        rows, columns = _sizes(match, "s")
        if not matrices(match, "a", "b"):
            return _VECTOR
        if not is_one(rows) or is_one(columns):
            return Refusal("not_terms", "The factor is not one for each term of the sum.")
        if not same(columns, extents(match.type("a"))[-1]):
            return Refusal("larger_factor", "The matrix is broadcast by the factor.")
        if not _is_plain(match):
            return Refusal("batches", "The factor differs between the matrices of a batch.")
        return self.mixed(match, "a", "b")

    def rewrite(self, match: Match) -> int | None:
        graph, name = match.graph, self.name
        column = [extents(match.type("s"))[-1], 1]
        factor = reshaped(graph, match.number("s"), column, name)
        if factor is None:
            return None
        make = getattr(relax.op, self.operator)
        scaled = graph.call(make, match.number("b"), factor, law=name)
        if scaled is None:
            return None
        return graph.add(match.head("@"), [match.number("a"), scaled], name)


class ScaleTermsOfWeights(ScaleTerms):
    """a @ (b * s) = a * reshape(s, diagonal) @ b."""

    name = "scale_terms_of_weights"
    before = a @ (b * s)
    after = (a * diagonal(s)) @ b

    def check(self, match: Match) -> Refusal | None:
        rows, columns = _sizes(match, "s")
        if not matrices(match, "a", "b"):
            return _VECTOR
        if is_one(rows) or not is_one(columns):
            return Refusal("not_terms", "The factor is not one for each term of the sum.")
        if not same(rows, extents(match.type("b"))[-2]):
            return Refusal("larger_factor", "The matrix is broadcast by the factor.")
        if not _is_plain(match):
            return Refusal("batches", "The factor differs between the matrices of a batch.")
        return self.mixed(match, "a", "b")

    def rewrite(self, match: Match) -> int | None:
        graph, name = match.graph, self.name
        row = extents(match.type("s"))[-2:-1]
        factor = reshaped(graph, match.number("s"), row, name)
        scaled = (
            None
            if factor is None
            else graph.call(relax.op.multiply, match.number("a"), factor, law=name)
        )
        if scaled is None:
            return None
        return graph.add(match.head("@"), [scaled, match.number("b")], name)


def _is_plain(match: Match) -> bool:
    """Whether the factor is one row or one column."""
    return all(map(is_one, extents(match.type("s"))[:-2]))


LAWS: tuple[Law, ...] = (
    ScaleRows(),
    DivideRows(),
    ScaleColumns(),
    DivideColumns(),
    ScaleTerms(),
    ScaleTermsOfWeights(),
)
