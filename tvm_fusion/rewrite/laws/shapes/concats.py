"""Concatenations: of slices of one tensor, of concatenations, of one function's results.

They have any number of pieces, so matches bind these as ``piece0``, ``piece1`` and so on.
"""

import itertools
from collections.abc import Iterator, Sequence

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.extents import extents, reshaped
from ...egraph.graph import EGraph
from ...egraph.head import Head
from ...egraph.law import Law, Match
from ...egraph.pattern import function, one_of, tensors
from .slices import UNARY, Range, extent_of, ranges, sliced

a, b, c = tensors("a b c")
concat = function("relax.concat", "axis")
cut, cut_again = function("relax.strided_slice", "at"), function("relax.strided_slice", "again")
unary = one_of("f", *UNARY)
_UNARY = frozenset(f"relax.{name}" for name in UNARY)


class _Pieces(Law):
    """A law whose left side is a concatenation."""

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield the concatenations of a class."""
        for node in tuple(graph[number].nodes):
            if node.head.name == "relax.concat":
                bound = {f"piece{i}": o for i, o in enumerate(node.operands)}
                yield Match(graph, number, {"axis": node.head, **bound})


class StackAsConcat(Law):
    """stack(a, b, axis) = reshape(concat(a, b, axis)): neighbours stay neighbours in memory."""

    name = "stack_as_concat"
    before = function("relax.stack", "axis")(a, b)

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield the stacks of a class."""
        for node in tuple(graph[number].nodes):
            if node.head.name == "relax.stack":
                bound = {f"piece{i}": o for i, o in enumerate(node.operands)}
                yield Match(graph, number, {"axis": node.head, **bound})

    def check(self, match: Match) -> Refusal | None:
        """Refuse a new last axis, along which the elements of the pieces take turns."""
        rank = match.type("piece0").ndim
        if axis_of(match.head("axis")) % (rank + 1) < rank:
            return None
        return Refusal("last_axis", "The stack puts elements of its inputs in turns.")

    def rewrite(self, match: Match) -> int | None:
        """Join along the axis in front of which the new one is."""
        graph, ty = match.graph, match.graph[match.root].type
        axis = axis_of(match.head("axis")) % ty.ndim
        joined = _joined(graph, _pieces(match), axis, self.name)
        return None if joined is None else reshaped(graph, joined, extents(ty), self.name)


class ConcatOne(_Pieces):
    """concat(a, axis) = a."""

    name = "concat_one"
    before = concat(a)
    after = a

    def check(self, match: Match) -> Refusal | None:
        """Refuse several inputs."""
        if len(_pieces(match)) == 1:
            return None
        return Refusal("several_inputs", "The concat has several inputs.")

    def rewrite(self, match: Match) -> int | None:
        """Take the piece."""
        return match.number("piece0")


class ConcatOfConcat(_Pieces):
    """concat(concat(a, b, axis), c, axis) = concat(a, b, c, axis)."""

    name = "concat_of_concat"
    before = concat(concat(a, b), c)

    def check(self, match: Match) -> Refusal | None:
        """Refuse pieces of which none is joined along the same axis."""
        if _flat(match) == _pieces(match):
            return Refusal("no_nested_concat", "No input is a concat along the same axis.")
        return None

    def rewrite(self, match: Match) -> int | None:
        """Join all pieces at once."""
        return _joined(match.graph, _flat(match), axis_of(match.head("axis")), self.name)


class ConcatOfSlices(_Pieces):
    """concat(strided_slice(a, at), strided_slice(a, again), axis) = one slice of a."""

    name = "concat_of_slices"
    before = concat(cut(a), cut_again(a))

    def check(self, match: Match) -> Refusal | None:
        """Refuse pieces of which no two are neighbours."""
        if self._merged(match) is None:
            return Refusal(
                "no_adjacent_slices",
                "No two neighbouring inputs are adjacent slices of one tensor.",
            )
        return None

    def rewrite(self, match: Match) -> int | None:
        """Take neighbours at once."""
        merged = self._merged(match)
        if merged is None or len(merged) == 1:
            return None if merged is None else merged[0]
        return _joined(match.graph, merged, axis_of(match.head("axis")), self.name)

    def _merged(self, match: Match) -> list[int] | None:
        graph, pieces = match.graph, _pieces(match)
        axis = axis_of(match.head("axis")) % graph[pieces[0]].type.ndim
        for i, (first, second) in enumerate(itertools.pairwise(pieces)):
            for source, before in _slices(graph, first):
                for other, after in _slices(graph, second):
                    joined = _neighbours(before, after, axis) if source == other else None
                    if joined is not None:
                        whole = sliced(graph, source, joined, self.name)
                        return None if whole is None else [*pieces[:i], whole, *pieces[i + 2 :]]
        return None


class ConcatOfUnary(_Pieces):
    """concat(f(a), f(b), axis) = f(concat(a, b, axis))."""

    name = "concat_of_unary"
    before = concat(unary(a), unary(b))

    def check(self, match: Match) -> Refusal | None:
        """Refuse pieces that one function does not compute."""
        if self._function(match) is None:
            return Refusal(
                "different_operators", "The inputs are not all computed by the same operator."
            )
        return None

    def rewrite(self, match: Match) -> int | None:
        """Join first."""
        found = self._function(match)
        if found is None:
            return None
        head, sources = found
        joined = _joined(match.graph, sources, axis_of(match.head("axis")), self.name)
        return joined if joined is None else match.graph.add(head, [joined], self.name)

    @staticmethod
    def _function(match: Match) -> tuple[Head, list[int]] | None:
        graph, pieces = match.graph, _pieces(match)
        for node in graph[pieces[0]].nodes:
            if node.head.name not in _UNARY or len(pieces) < 2:
                continue
            found = [_operand(graph, piece, node.head) for piece in pieces]
            sources = [f for f in found if f is not None]
            if len(sources) == len(pieces):
                return node.head, sources
        return None


class UnaryOfConcat(Law):
    """f(concat(a, b, axis)) = concat(f(a), f(b), axis): kernels store what they compute of it."""

    name = "unary_of_concat"
    before = unary(concat(a, b))

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield functions of concatenations of a class."""
        for node in tuple(graph[number].nodes):
            if node.head.name not in _UNARY:
                continue
            for source in tuple(graph[node.operands[0]].nodes):
                if source.head.name == "relax.concat":
                    bound = {f"piece{i}": o for i, o in enumerate(source.operands)}
                    yield Match(graph, number, {"f": node.head, "axis": source.head, **bound})

    def check(self, match: Match) -> Refusal | None:
        """Refuse a single input."""
        if len(_pieces(match)) > 1:
            return None
        return Refusal("one_input", "The concat has one input.")

    def rewrite(self, match: Match) -> int | None:
        """Join last."""
        head = match.head("f")
        found = [match.graph.add(head, [piece], self.name) for piece in _pieces(match)]
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) < len(found):
            return None
        return _joined(match.graph, pieces, axis_of(match.head("axis")), self.name)


class SliceOfConcat(Law):
    """strided_slice(concat(a, b, axis), at) = a slice of the pieces that it touches."""

    name = "slice_of_concat"
    before = cut(concat(a, b))

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield slices of concatenations of a class."""
        for node in tuple(graph[number].nodes):
            if node.head.name == "relax.strided_slice":
                for source in tuple(graph[node.operands[0]].nodes):
                    if source.head.name == "relax.concat":
                        bound = {f"piece{i}": o for i, o in enumerate(source.operands)}
                        yield Match(graph, number, {"at": node.head, "axis": source.head, **bound})

    def check(self, match: Match) -> Refusal | None:
        """Refuse a slice that touches all pieces."""
        if _touched(match) is None:
            return Refusal(
                "slices_all_inputs",
                "The slice reads all inputs of the concat, or their extents are symbolic.",
            )
        return None

    def rewrite(self, match: Match) -> int | None:
        """Slice what remains."""
        found = _touched(match)
        if found is None:
            return None
        pieces, wanted = found
        joined = _joined(match.graph, pieces, axis_of(match.head("axis")), self.name)
        return joined if joined is None else sliced(match.graph, joined, wanted, self.name)


def axis_of(head: Head) -> int:
    """Read the axis of a concatenation."""
    axis = None if head.call is None else head.call.attrs.axis
    return 0 if axis is None else int(axis)


def _pieces(match: Match) -> list[int]:
    return [match.graph.find(match.number(name)) for name in match.bound if "piece" in name]


def _joined(graph: EGraph, pieces: Sequence[int], axis: int, law: str) -> int | None:
    if len(pieces) == 1:
        return graph.find(pieces[0])
    return graph.call(lambda *xs: relax.op.concat(list(xs), axis), *pieces, law=law)


def _flat(match: Match) -> list[int]:
    graph, pieces = match.graph, _pieces(match)
    found: list[int] = []
    ndim = graph[match.root].type.ndim
    axis = axis_of(match.head("axis")) % ndim
    for piece in pieces:
        inner = (
            node.operands
            for node in graph[piece].nodes
            if node.head.name == "relax.concat" and axis_of(node.head) % ndim == axis
        )
        found += next(inner, (piece,))
    return [graph.find(piece) for piece in found]


def _slices(graph: EGraph, number: int) -> list[tuple[int, dict[int, Range]]]:
    found = []
    for node in graph[number].nodes:
        if node.head.name == "relax.strided_slice":
            wanted = ranges(node.head, graph[node.operands[0]].type.shape)
            if wanted is not None:
                found.append((graph.find(node.operands[0]), wanted))
    return found


def _neighbours(
    before: dict[int, Range], after: dict[int, Range], axis: int
) -> dict[int, Range] | None:
    first, second = before.get(axis), after.get(axis)
    others = [{i: r for i, r in part.items() if i != axis} for part in (before, after)]
    if first is None or second is None or others[0] != others[1]:
        return None
    if first.stride != second.stride or first.begin + first.length * first.stride != second.begin:
        return None
    return {**before, axis: Range(first.begin, first.length + second.length, first.stride)}


def _operand(graph: EGraph, number: int, head: Head) -> int | None:
    found = (node.operands[0] for node in graph[number].nodes if node.head is head)
    return next(found, None)


def _touched(match: Match) -> tuple[list[int], dict[int, Range]] | None:
    graph, pieces = match.graph, _pieces(match)
    axis = axis_of(match.head("axis")) % graph[match.root].type.ndim
    shapes = [graph[piece].type.shape for piece in pieces]
    found = [extent_of(shape, axis) for shape in shapes]
    extents = [extent for extent in found if extent is not None]
    if len(extents) < len(found):
        return None
    whole = [sum(extents) if i == axis else extent for i, extent in enumerate(shapes[0])]
    wanted = ranges(match.head("at"), relax.ShapeExpr(whole))
    if wanted is None or axis not in wanted or not wanted[axis].length:
        return None
    part = wanted[axis]
    last, start = part.begin + (part.length - 1) * part.stride, 0
    kept: list[int] = []
    offset: int | None = None
    for piece, extent in zip(pieces, extents, strict=True):
        if part.begin < start + extent and last >= start:
            kept.append(piece)
            offset = start if offset is None else offset
        start += extent
    if len(kept) == len(pieces) or offset is None:
        return None
    return kept, {**wanted, axis: part._replace(begin=part.begin - offset)}


LAWS: tuple[Law, ...] = (
    StackAsConcat(),
    ConcatOne(),
    ConcatOfConcat(),
    ConcatOfSlices(),
    SliceOfConcat(),
    ConcatOfUnary(),
    UnaryOfConcat(),
)
