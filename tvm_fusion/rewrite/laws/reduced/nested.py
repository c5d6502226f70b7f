"""Reductions of reduced, broadcast or transposed operands."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import LINEAR, ORDERS, keeps_axes, permutation, reduce, reduced_axes
from ...egraph.facts.extents import (
    aligned,
    count,
    extents,
    is_integer,
    is_one,
    normal,
    reshaped,
    without_axes,
)
from ...egraph.law import Law, Match
from ...egraph.pattern import function, one_of, tensors
from ...nonfinite import ZERO

(a,) = tensors("a")
_NAMES = (*LINEAR, *ORDERS, "prod")
outer = one_of("outer", *_NAMES)
inner = one_of("inner", *_NAMES)
once = one_of("reduce", *_NAMES)
permute = function("relax.permute_dims", "permutation")
broadcast = function("relax.broadcast_to", "shape")
reshape = function("relax.reshape", "result")


class NestedReductions(Law):
    """outer(inner(a)) = reduce(a)."""

    name = "nested_reductions"
    before = outer(inner(a))
    after = once(a)
    needs = "reassociate"  # partial sums are others

    def exempt(self, match: Match) -> bool:
        """Let orders pass, and integers."""
        return match.head("outer").name in ("relax.max", "relax.min") or is_integer(match.type("a"))

    def check(self, match: Match) -> Refusal | None:
        first, second = match.head("inner").name, match.head("outer").name
        if first != second:
            return Refusal("different_operators", "The two reductions are different.")
        if first == "relax.mean" and is_integer(match.type("a")):
            return Refusal("integers", "Integer division drops a remainder.")
        return None

    def rewrite(self, match: Match) -> int | None:
        inside, outside = match.head("inner"), match.head("outer")
        rank = match.type("a").ndim
        first = reduced_axes(inside, rank)
        left = [i for i in range(rank) if keeps_axes(inside) or i not in first]
        second = [left[i] for i in reduced_axes(outside, len(left))]
        axes = sorted({*first, *second})
        keepdims = match.graph[match.root].type.ndim != rank - len(axes)
        number = reduce(match, inside.name, match.number("a"), axes, keepdims, self.name)
        shape = extents(match.graph[match.root].type)
        return None if number is None else reshaped(match.graph, number, shape, self.name)


class UnitAxes(Law):
    """reduce(a) = reshape(a, result)."""

    name = "unit_axes"
    before = once(a)
    after = reshape(a)
    changes = ZERO  # sums begin at 0

    def check(self, match: Match) -> Refusal | None:
        ty = match.type("a")
        axes = reduced_axes(match.head("reduce"), ty.ndim)
        if all(is_one(extents(ty)[axis]) for axis in axes):
            return None
        return Refusal("several_elements", "A reduced axis may have more than one element.")

    def rewrite(self, match: Match) -> int | None:
        shape = extents(match.graph[match.root].type)
        return reshaped(match.graph, match.number("a"), shape, self.name)


class ReduceOfBroadcast(Law):
    """reduce(broadcast_to(a, shape)) = broadcast_to(reduce(a), result)."""

    name = "reduce_of_broadcast"
    before = one_of("reduce", *LINEAR, *ORDERS)(broadcast(a))
    after = function("relax.broadcast_to", "result")(one_of("reduce", *LINEAR, *ORDERS)(a))
    changes = ZERO

    def check(self, match: Match) -> Refusal | None:
        ty = match.type("a")
        _, repeated = self._axes(match)
        if not repeated:
            return Refusal("nothing_repeated", "No reduced axis was broadcast.")
        if match.head("reduce").name == "relax.sum":
            terms = count(self._wide(match), repeated)
            if terms is None or not (is_integer(ty) or normal(terms, ty)):
                return Refusal(
                    "symbolic_extent",
                    "The repeated extent is symbolic, or too large for the dtype.",
                )
        return None

    def rewrite(self, match: Match) -> int | None:
        head, graph, name = match.head("reduce"), match.graph, self.name
        own, repeated = self._axes(match)
        wide, result = self._wide(match), graph[match.root].type
        lead = wide.ndim - match.type("a").ndim
        number: int | None = match.number("a")
        if own:
            number = reduce(
                match, head.name, match.number("a"), [i - lead for i in own], True, name
            )
        if number is not None and not keeps_axes(head):
            number = without_axes(graph, number, sorted(own + repeated), wide.ndim, name)
        if number is not None and head.name == "relax.sum":
            terms = graph.constant(count(wide, repeated), str(result.dtype))
            number = graph.call(relax.op.multiply, number, terms, law=name)
        if number is None or graph[number].type is result:
            return number
        shape = list(result.shape.values)
        return graph.call(lambda x: relax.op.broadcast_to(x, shape), number, law=name)

    @staticmethod
    def _wide(match: Match) -> relax.TensorType:
        """Return the type of what is reduced."""
        head, ty = match.head("shape"), match.type("a")
        call = head.call
        shape = ty.shape if call is None else call.args[1]
        return relax.TensorType(shape, ty.dtype)

    def _axes(self, match: Match) -> tuple[list[int], list[int]]:
        """List the reduced axes along which elements differ, and those along which they repeat."""
        wide = self._wide(match)
        before = aligned(match.type("a"), wide.ndim)
        axes = reduced_axes(match.head("reduce"), wide.ndim)
        repeated = [i for i in axes if is_one(before[i])]
        return [i for i in axes if i not in repeated], repeated


class ReduceOfPermuted(Law):
    """reduce(permute_dims(a, permutation)) = reduce(a)."""

    name = "reduce_of_permuted"
    before = once(permute(a))
    after = once(a)

    def check(self, match: Match) -> Refusal | None:
        kept, _ = self._axes(match)
        if kept == sorted(kept):
            return None
        return Refusal("axes_reordered", "The axes that are kept come in another order.")

    def rewrite(self, match: Match) -> int | None:
        head, graph = match.head("reduce"), match.graph
        _, axes = self._axes(match)
        number = reduce(match, head.name, match.number("a"), axes, keeps_axes(head), self.name)
        shape = extents(graph[match.root].type)
        return None if number is None else reshaped(graph, number, shape, self.name)

    @staticmethod
    def _axes(match: Match) -> tuple[list[int], list[int]]:
        """List the axes of the tensor that are kept, in the result's order, and the others."""
        rank = match.type("a").ndim
        order = permutation(match.head("permutation"), rank)
        axes = reduced_axes(match.head("reduce"), rank)
        return [order[i] for i in range(rank) if i not in axes], sorted(order[i] for i in axes)


LAWS: tuple[Law, ...] = (
    NestedReductions(),
    UnitAxes(),
    ReduceOfBroadcast(),
    ReduceOfPermuted(),
)
