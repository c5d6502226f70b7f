"""Slices: of slices, and of what is computed element by element.

Only what changes how much is computed: slices of what is moved about are the planner's.
"""

from typing import NamedTuple

from tvm import relax, tirx

from ....core.contract.template import Refusal
from ...egraph.graph import EGraph
from ...egraph.head import Head
from ...egraph.law import Law, Match
from ...egraph.pattern import function, one_of, tensors
from ..choices.order import INCREASING

a, b = tensors("a b")
cut, cut_again = function("relax.strided_slice", "at"), function("relax.strided_slice", "again")
UNARY = (*INCREASING, "negative", "abs", "square", "rsqrt", "sin", "cos", "astype", "nn.relu")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
unary, binary = one_of("f", *UNARY), one_of("f", *BINARY)


class Range(NamedTuple):
    """Elements of one axis."""

    begin: int
    length: int
    stride: int


def ranges(head: Head, shape: relax.ShapeExpr) -> dict[int, Range] | None:
    """Read what a slice takes of each axis that it names.

    Parameters
    ----------
    head
        A ``strided_slice``.

    Returns
    -------
    dict of int to Range or None
        None if extents are symbolic, or an axis is read backwards.
    """
    call = head.call
    parts = [] if call is None else [_integers(part) for part in call.args[1:]]
    if len(parts) == 3 and parts[0] is not None:
        parts.append([1] * len(parts[0]))
    axes, begins, ends, strides = parts
    if axes is None or begins is None or ends is None or strides is None:
        return None
    found = {}
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        axis %= len(shape)
        extent = extent_of(shape, axis)
        if stride < 1 or extent is None:
            return None
        begin, end, _ = slice(begin, end).indices(extent)
        found[axis] = Range(begin, max(0, -(-(end - begin) // stride)), stride)
    return found


def extent_of(shape: relax.ShapeExpr, axis: int) -> int | None:
    """Return an extent; None if it is symbolic."""
    extent = shape[axis]
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def sliced(graph: EGraph, number: int, wanted: dict[int, Range], law: str) -> int | None:
    """Add a slice of a class; the class itself where nothing is cut off."""
    shape = graph[number].type.shape
    kept = {
        axis: r for axis, r in wanted.items() if r.stride != 1 or r.length != extent_of(shape, axis)
    }
    if not kept:
        return graph.find(number)
    begins = [r.begin for r in kept.values()]
    ends = [r.begin + (r.length - 1) * r.stride + 1 for r in kept.values()]
    strides = [r.stride for r in kept.values()]
    return graph.call(
        lambda x: relax.op.strided_slice(x, [*kept], begins, ends, strides), number, law=law
    )


class SliceAll(Law):
    """strided_slice(a, at) = a."""

    name = "slice_all"
    before = cut(a)
    after = a

    def check(self, match: Match) -> Refusal | None:
        """Refuse an axis that is turned round; the engine refuses another shape."""
        call = match.head("at").call
        strides = call.args[4] if call is not None and len(call.args) > 4 else ()
        if all(isinstance(s, tirx.IntImm) and s.value == 1 for s in strides):
            return None
        return Refusal("strides", "It does not take all elements in order.")


class SliceTwice(Law):
    """strided_slice(strided_slice(a, at), again) = one slice of a."""

    name = "slice_twice"
    before = cut_again(cut(a))

    def check(self, match: Match) -> Refusal | None:
        """Refuse symbolic extents."""
        return _known(self._ranges(match))

    def rewrite(self, match: Match) -> int | None:
        """Write one slice."""
        found = self._ranges(match)
        return None if found is None else sliced(match.graph, match.number("a"), found, self.name)

    @staticmethod
    def _ranges(match: Match) -> dict[int, Range] | None:
        shape = match.type("a").shape
        first = ranges(match.head("at"), shape)
        if first is None:
            return None
        left = [first[i].length if i in first else extent for i, extent in enumerate(shape)]
        second = ranges(match.head("again"), relax.ShapeExpr(left))
        if second is None:
            return None
        found = dict(first)
        for axis, r in second.items():
            old = first.get(axis, Range(0, 0, 1))
            found[axis] = Range(old.begin + r.begin * old.stride, r.length, r.stride * old.stride)
        return found


class SliceOfUnary(Law):
    """strided_slice(f(a), at) = f(strided_slice(a, at))."""

    name = "slice_of_unary"
    before = cut(unary(a))
    after = unary(cut(a))


class SliceOfBinary(Law):
    """strided_slice(f(a, b), at) = f of slices of a and b."""

    name = "slice_of_binary"
    before = cut(binary(a, b))

    def check(self, match: Match) -> Refusal | None:
        """Refuse symbolic extents."""
        return _known(ranges(match.head("at"), _shape(match)))

    def rewrite(self, match: Match) -> int | None:
        """Slice the operands where they are not broadcast."""
        shape, operands = _shape(match), []
        wanted = ranges(match.head("at"), shape)
        for name in "ab" if wanted is not None else "":
            own = match.type(name).shape
            missing = len(shape) - len(own)
            taken = {
                axis - missing: r
                for axis, r in (wanted or {}).items()
                if axis >= missing and extent_of(own, axis - missing) == extent_of(shape, axis)
            }
            found = sliced(match.graph, match.number(name), taken, self.name)
            if found is None:
                return None
            operands.append(found)
        return match.graph.add(match.head("f"), operands, self.name)


def _shape(match: Match) -> relax.ShapeExpr:
    """Return the shape of what ``f`` computes."""
    graph = match.graph
    number = graph.add(match.head("f"), [match.number("a"), match.number("b")])
    if number is None:
        raise TypeError("an operator of the graph has no type")
    return graph[number].type.shape


def _known(found: dict[int, Range] | None) -> Refusal | None:
    if found is None:
        return Refusal("symbolic", "Which elements it takes is not known, or they are in reverse.")
    return None


def _integers(part: relax.Expr) -> list[int] | None:
    fields = list(part.fields) if isinstance(part, relax.Tuple) else list(part.values)
    return [int(f) for f in fields] if all(isinstance(f, tirx.IntImm) for f in fields) else None


LAWS: tuple[Law, ...] = (SliceAll(), SliceTwice(), SliceOfUnary(), SliceOfBinary())
