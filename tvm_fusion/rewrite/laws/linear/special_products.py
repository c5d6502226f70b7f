"""Matrix products with identities, zeros, ones and equal parts of one."""

import math

import numpy as np
from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import reduce
from ...egraph.facts.extents import extents, is_one
from ...egraph.law import Law, Match
from ...egraph.pattern import constants, function, tensors
from ...nonfinite import NAN, ZERO

(a,) = tensors("a")
(k,) = constants("k")
total = function("relax.sum", "axes")
mean = function("relax.mean", "axes")


class TimesIdentity(Law):
    """a @ k = a."""

    name = "times_identity"
    before = a @ k
    after = a
    changes = NAN | ZERO

    def check(self, match: Match) -> Refusal | None:
        value = match.value("k")
        if value is not None and value.ndim == 2 and np.array_equal(value, np.eye(len(value))):
            return None
        return Refusal("not_identity", "The constant is not known to be an identity matrix.")


class IdentityTimes(TimesIdentity):
    """k @ a = a."""

    name = "identity_times"
    before = k @ a


class TimesZero(Law):
    """a @ 0 = 0."""

    name = "times_zero"
    before = a @ 0
    after = None
    changes = NAN

    def rewrite(self, match: Match) -> int | None:
        ty = match.graph[match.root].type
        zero = match.graph.constant(0, str(ty.dtype))
        shape = list(ty.shape.values)
        return match.graph.call(lambda x: relax.op.broadcast_to(x, shape), zero, law=self.name)


class ZeroTimes(TimesZero):
    """0 @ a = 0."""

    name = "zero_times"
    before = function("relax.matmul", "@")(0, a)


class _TimesVector(Law):
    """A product with a vector of equal numbers is a reduction."""

    reduction = "relax.sum"
    axis = -1  # that is reduced, of both operands' matrices

    def check(self, match: Match) -> Refusal | None:
        ty = match.type("k")
        is_vector = ty.ndim == 1 or (ty.ndim == 2 and is_one(extents(ty)[self.axis]))
        number = match.uniform("k")
        if is_vector and match.type("a").ndim >= -self.axis and number == self._number(match):
            return None
        return Refusal("not_ones", "The constant is not known to be such a vector.")

    def rewrite(self, match: Match) -> int | None:
        keepdims = match.type("k").ndim == 2
        return reduce(match, self.reduction, match.number("a"), [self.axis], keepdims, self.name)

    def _number(self, match: Match) -> float:
        """Return the number that the vector is filled with."""
        return 1.0


class _TimesEqualParts(_TimesVector):
    reduction = "relax.mean"

    def _number(self, match: Match) -> float:
        value = match.value("k")  # there is one, where it is known to be uniform
        return math.nan if value is None else float(np.asarray(1 / value.size).astype(value.dtype))


class TimesOnes(_TimesVector):
    """a @ k = sum(a, axes)."""

    name = "times_ones"
    before = a @ k
    after = total(a)


class OnesTimes(_TimesVector):
    """k @ a = sum(a, axes)."""

    name = "ones_times"
    before = k @ a
    axis = -2


class TimesEqualParts(_TimesEqualParts):
    """a @ k = mean(a, axes)."""

    name = "times_equal_parts"
    before = a @ k
    after = mean(a)


class EqualPartsTimes(_TimesEqualParts):
    """k @ a = mean(a, axes)."""

    name = "equal_parts_times"
    before = k @ a
    axis = -2


LAWS: tuple[Law, ...] = (
    TimesIdentity(),
    IdentityTimes(),
    TimesZero(),
    ZeroTimes(),
    TimesOnes(),
    OnesTimes(),
    TimesEqualParts(),
    EqualPartsTimes(),
)
