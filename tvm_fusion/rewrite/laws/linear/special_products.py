"""Matrix products with identities, zeros and ones."""

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


class TimesOnes(Law):
    """a @ k = sum(a, axes)."""

    name = "times_ones"
    before = a @ k
    after = total(a)

    def check(self, match: Match) -> Refusal | None:
        ty = match.type("k")
        is_column = ty.ndim == 1 or (ty.ndim == 2 and is_one(extents(ty)[-1]))
        if is_column and match.uniform("k") == 1:
            return None
        return Refusal("not_ones", "The constant is not known to be a column of ones.")

    def rewrite(self, match: Match) -> int | None:
        keepdims = match.type("k").ndim == 2
        return reduce(match, "relax.sum", match.number("a"), [-1], keepdims, self.name)


class OnesTimes(TimesOnes):
    """k @ a = sum(a, axes)."""

    name = "ones_times"
    before = k @ a

    def check(self, match: Match) -> Refusal | None:
        ty = match.type("k")
        is_row = ty.ndim == 1 or (ty.ndim == 2 and is_one(extents(ty)[0]))
        if is_row and match.uniform("k") == 1 and match.type("a").ndim >= 2:
            return None
        return Refusal("not_ones", "The constant is not known to be a row of ones.")

    def rewrite(self, match: Match) -> int | None:
        keepdims = match.type("k").ndim == 2
        return reduce(match, "relax.sum", match.number("a"), [-2], keepdims, self.name)


LAWS: tuple[Law, ...] = (
    TimesIdentity(),
    IdentityTimes(),
    TimesZero(),
    ZeroTimes(),
    TimesOnes(),
    OnesTimes(),
)
