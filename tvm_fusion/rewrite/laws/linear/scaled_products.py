"""Scaling by rows and columns moves through a matrix product, and into constant weights."""

from math import frexp

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.extents import aligned, extents, is_one, magnitudes, reshaped, same, spreads
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import function, tensors
from ...nonfinite import ALL
from ..conditions import floating
from .matmuls import VECTOR, Linear, matrices

a, b, s = tensors("a b s")
diagonal = function("relax.reshape", "diagonal")

WIDE = ("float32", "bfloat16")  # eight bits of exponent: weights are far from its ends
EXPONENT = 16


def _sizes(match: Match, name: str) -> tuple:
    """Return the extents of the last two axes, as broadcasting reads them."""
    ty = match.type(name)
    return tuple(aligned(ty, max(2, ty.ndim))[-2:])


class _Scaled(Linear):
    """The product of a scaled matrix."""

    both = True
    into: str  # the operand that is scaled
    summed: int  # its axis that is added up, of the last two

    def exempt(self, match: Match) -> bool:
        """Let integers pass, and factors that are 1 or -1."""
        sizes = magnitudes(match.value("s"))
        return super().exempt(match) or (sizes is not None and bool((sizes == 1).all()))

    def check(self, match: Match) -> Refusal | None:
        if not is_one(_sizes(match, "s")[self.summed]):
            return Refusal("varies", "The factor varies along the reduced axis (K).")
        if not matrices(match, "a", "b"):
            return VECTOR
        if not spreads(match.type("s"), match.type(self.into)):
            return Refusal("larger_factor", "The factor has axes that the matrix lacks.")
        return self.mixed(match, "a", "b")


class ScaleRows(_Scaled):
    """a * s @ b = a @ b * s."""

    name = "scale_rows"
    before = (a * s) @ b
    after = (a @ b) * s
    into, summed = "a", 1


class _Divided(_Scaled):
    """The product of a divided matrix: quotients of integers are rounded."""

    is_modular = False

    def check(self, match: Match) -> Refusal | None:
        return floating(match) or super().check(match)


class DivideRows(_Divided):
    """a / s @ b = a @ b / s."""

    name = "divide_rows"
    before = (a / s) @ b
    after = (a @ b) / s
    into, summed = "a", 1


class ScaleColumns(_Scaled):
    """a @ (b * s) = a @ b * s."""

    name = "scale_columns"
    before = a @ (b * s)
    after = (a @ b) * s
    into, summed = "b", 0


class DivideColumns(_Divided):
    """a @ (b / s) = a @ b / s."""

    name = "divide_columns"
    before = a @ (b / s)
    after = (a @ b) / s
    into, summed = "b", 0


class _ScaledTerms(Linear):
    """The factors of the terms of a sum move from one matrix to the other."""

    into: str  # the operand that is scaled
    summed: int  # its axis that is added up, of the last two

    def check(self, match: Match) -> Refusal | None:
        sizes = _sizes(match, "s")
        if not matrices(match, "a", "b"):
            return VECTOR
        if is_one(sizes[self.summed]) or not is_one(sizes[1 - self.summed]):
            return Refusal(
                "not_along_k", "The factor does not vary along the reduced axis (K) alone."
            )
        if not same(sizes[self.summed], _sizes(match, self.into)[self.summed]):
            return Refusal("larger_factor", "The matrix is broadcast by the factor.")
        if not all(map(is_one, extents(match.type("s"))[:-2])):
            return Refusal("batches", "The factor differs between the matrices of a batch.")
        return self.mixed(match, "a", "b")

    def rewrite(self, match: Match) -> int | None:
        graph, terms = match.graph, _sizes(match, "s")[self.summed]
        numbers = {name: match.number(name) for name in "ab"}
        other, shape = ("b", [terms, 1]) if self.into == "a" else ("a", [terms])
        factor = reshaped(graph, match.number("s"), shape, self.name)
        if factor is None:
            return None
        scaled = graph.call(relax.op.multiply, numbers[other], factor, law=self.name)
        if scaled is None:
            return None
        numbers[other] = scaled
        return graph.add(match.head("@"), [*numbers.values()], self.name)


class ScaleTerms(_ScaledTerms):
    """a * s @ b = a @ (b * reshape(s, diagonal))."""

    name = "scale_terms"
    before = (a * s) @ b
    after = a @ (b * diagonal(s))
    into, summed = "a", 1


class ScaleTermsOfWeights(_ScaledTerms):
    """a @ (b * s) = a * reshape(s, diagonal) @ b."""

    name = "scale_terms_of_weights"
    before = a @ (b * s)
    after = (a * diagonal(s)) @ b
    into, summed = "b", 0


def _exact_factor(match: Match) -> Refusal | None:
    """Refuse what rounds: factors other than powers of two, and types as narrow as float16."""
    if str(match.type("b").dtype) not in WIDE or not match.graph[match.number("b")].is_constant:
        return Refusal("not_exact", "The matrix is no constant of float32 or bfloat16.")
    factor = match.uniform("s")
    mantissa, exponent = frexp(factor or 0.0)
    if abs(mantissa) != 0.5 or not -EXPONENT <= exponent - 1 <= 0:
        return Refusal("not_exact", f"The factor is no power of two from 2^-{EXPONENT} to 1.")
    if not matrices(match, "a", "b"):
        return VECTOR
    if not spreads(match.type("s"), match.type("a")):
        return Refusal("larger_factor", "The factor has axes that the matrix lacks.")
    if not all(map(is_one, extents(match.type("s")))):
        return Refusal("varies", "The factor is no single number.")
    return None if match.type("s").ndim <= match.type("b").ndim else VECTOR


LAWS: tuple[Law, ...] = (
    Equation(
        "scale_weights",
        (a * s) @ b,
        a @ (b * s),
        _exact_factor,
        changes=ALL,  # where a * s overflows, if b is small
    ),
    ScaleRows(),
    DivideRows(),
    ScaleColumns(),
    DivideColumns(),
    ScaleTerms(),
    ScaleTermsOfWeights(),
)
