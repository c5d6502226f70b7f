"""Data movement: two transposes, reshapes or flips in a row are one, or none."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import permutation
from ...egraph.facts.extents import all_same, extents, reshaped
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import function, one_of, tensors

(a,) = tensors("a")
_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")
first_view, view = one_of("first", *_VIEWS), one_of("second", *_VIEWS)
reshape = function("relax.reshape", "result")
permute = function("relax.permute_dims", "second")
first_permute = function("relax.permute_dims", "first")
broadcast = function("relax.broadcast_to", "second")
first_broadcast = function("relax.broadcast_to", "first")


class ReshapeTwice(Law):
    """second(first(a)) = reshape(a, result)."""

    name = "reshape_twice"
    before = view(first_view(a))
    after = reshape(a)

    def rewrite(self, match: Match) -> int | None:
        shape = extents(match.graph[match.root].type)
        return reshaped(match.graph, match.number("a"), shape, self.name)


def _reshape_to_itself(match: Match) -> Refusal | None:
    before, after = match.type("a"), match.graph[match.root].type
    if before.dtype == after.dtype and all_same(extents(before), extents(after)):
        return None
    return Refusal("another_type", "The result has another shape or type.")


class PermuteTwice(Law):
    """permute_dims(permute_dims(a, first), second) = permute_dims(a, result)."""

    name = "permute_twice"
    before = permute(first_permute(a))
    after = function("relax.permute_dims", "result")(a)

    def rewrite(self, match: Match) -> int | None:
        rank = match.type("a").ndim
        first, second = (
            permutation(match.head("first"), rank),
            permutation(match.head("second"), rank),
        )
        axes = [first[i] for i in second]
        if axes == list(range(rank)):
            return match.number("a")
        make = relax.op.permute_dims
        return match.graph.call(lambda x: make(x, axes), match.number("a"), law=self.name)


def _permute_to_itself(match: Match) -> Refusal | None:
    rank = match.type("a").ndim
    if permutation(match.head("second"), rank) == list(range(rank)):
        return None
    return Refusal("moves_axes", "Axes change places.")


LAWS: tuple[Law, ...] = (
    ReshapeTwice(),
    Equation(
        "reshape_to_itself",
        one_of("second", *_VIEWS, "broadcast_to", "astype")(a),
        a,
        _reshape_to_itself,
    ),
    PermuteTwice(),
    Equation("permute_to_itself", permute(a), a, _permute_to_itself),
    Equation("broadcast_twice", broadcast(first_broadcast(a)), broadcast(a)),
)
