"""Convolutions that are one: in parallel with windows of two sizes, added to their image, in a row.

    RepVGG:  conv3x3(a, b) + conv1x1(a, c) + a = conv3x3(a, b + c + identity)
    a point behind or before a window:  conv1x1(conv3x3(a, b), c) = conv3x3(a, c b)

Weights are constants, so that they are joined at compile time. RepVGG: Ding et al., CVPR 2021.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.extents import aligned, all_same, extents, is_one, reshaped
from ...egraph.graph import EGraph
from ...egraph.head import Head
from ...egraph.law import Law, Match
from ...egraph.pattern import tensors
from .convolution import conv, groups_of, layouts

a, b, c, s = tensors("a b c s")
MOST = 1 << 22  # elements of an identity

_NOT_CONSTANT = Refusal("not_constant", "A weight is computed at run time: it would be joined.")
_LAYOUT = Refusal("layout", "Only filters of plain channels-first convolutions are joined.")
_GROUPS = Refusal("groups", "The convolutions have groups, or differ in them.")
_STEPS = Refusal("different_steps", "Strides differ, or pixels of a window are not adjacent.")
_WINDOWS = Refusal("different_windows", "One window does not lie within the other.")
_VARIES = Refusal("varies", "The factor varies within a channel.")
_MIXED = Refusal("mixed_types", "The result is wider than the operands.")
_NO_POINT = Refusal("no_point", "Neither window is one pixel, at a stride of one, without padding.")
_OTHER_IMAGE = Refusal("different_shapes", "The result is no image like the operand.")


class _Windows(Law):
    """What plain convolutions of constant weights have in common."""

    needs = "reassociate"  # terms are added in another order
    is_modular = True

    def plain(self, match: Match, heads: tuple[str, ...], names: str) -> Refusal | None:
        """Refuse layouts, gaps in windows, weights of run time and mixed types."""
        graph = match.graph
        for name in heads:
            head = match.head(name)
            if head.name.endswith("_transpose"):
                return _LAYOUT
            data, kernel, output = layouts(head)
            if not (data == output and data.startswith("NC") and kernel.startswith("OI")):
                return _LAYOUT
            if any(d != 1 for d in _attribute(head, "dilation")):
                return _STEPS
        if not all(graph[match.number(name)].is_constant for name in names):
            return _NOT_CONSTANT
        dtype = graph[match.root].type.dtype
        same = all(match.type(name).dtype == dtype for name in ("a", *names))
        return None if same else _MIXED


class AddFiltersOfWindows(_Windows):
    """conv(a, b) + conv(a, c) = conv(a, b + c in its middle), of windows around the same pixels."""

    name = "add_filters_of_windows"
    before = conv(a, b) + conv(a, c)

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield sums of convolutions of one image that differ in their windows."""
        for node in tuple(graph[number].nodes):
            if node.head.name != "relax.add" or len(node.operands) != 2:  # one may be an extent
                continue
            for first, second in (node.operands, node.operands[::-1]):
                for one in _convolutions(graph, first):
                    for other in _convolutions(graph, second):
                        is_one = graph.find(one.operands[0]) == graph.find(other.operands[0])
                        if is_one and one.head is not other.head:
                            bound: dict[str, int | Head] = {"large": one.head, "small": other.head}
                            operands = dict(zip("ab", one.operands, strict=True))
                            yield Match(graph, number, bound | operands | {"c": other.operands[1]})

    def check(self, match: Match) -> Refusal | None:
        """Refuse windows that do not lie within each other, besides what is not plain."""
        refusal = self.plain(match, ("large", "small"), "bc")
        if refusal is not None:
            return refusal
        large, small = match.head("large"), match.head("small")
        if large.name != small.name or layouts(large) != layouts(small):
            return _LAYOUT
        if groups_of(large) != groups_of(small):
            return _GROUPS
        if _attribute(large, "strides") != _attribute(small, "strides"):
            return _STEPS
        return _WINDOWS if self._around(match) is None else None

    def rewrite(self, match: Match) -> int | None:
        """Add the filters."""
        graph = match.graph
        filters = self._added(match, match.number("b"), 2)
        if filters is None:
            return None
        return graph.add(match.head("large"), [match.number("a"), filters], self.name)

    def _added(self, match: Match, part: int, axis: int) -> int | None:
        """Add the smaller filters to the middle of a part of the larger ones, from an axis on.

        Constants of zeros around them would be larger than what they are made of, which is not
        stored.
        """
        graph, sizes = match.graph, (_window(match, "b"), _window(match, "c"))
        if axis == len(sizes[0]) + 2:
            return graph.call(relax.op.add, part, match.number("c"), law=self.name)
        around = self._around(match)
        assert around is not None
        first, size, whole = around[0][axis - 2], sizes[1][axis - 2], sizes[0][axis - 2]
        parts: list[int | None] = []
        for begin, end in ((0, first), (first, first + size), (first + size, whole)):

            def cut(x: relax.Expr, begin: int = begin, end: int = end) -> relax.Call:
                return relax.op.strided_slice(x, [axis], [begin], [end])

            if begin == end:
                continue
            own = part if (begin, end) == (0, whole) else graph.call(cut, part, law=self.name)
            if begin == first and own is not None:
                own = self._added(match, own, axis + 1)
            parts.append(own)
        known = [p for p in parts if p is not None]
        if len(known) < len(parts) or len(known) == 1:
            return known[0] if len(known) == len(parts) else None
        return graph.call(lambda *xs: relax.op.concat(list(xs), axis), *known, law=self.name)

    def _around(self, match: Match) -> tuple[list[int], list[int]] | None:
        """Count the zeros before and behind the smaller window along each axis."""
        ends = [_padding(match.head(name)) for name in ("large", "small")]
        windows = [_window(match, name) for name in "bc"]
        found = [[p - q for p, q in zip(*side, strict=True)] for side in zip(*ends, strict=True)]
        sizes = zip(*windows, *found, strict=True)
        is_inside = all(
            min(begin, end) >= 0 and large == small + begin + end
            for large, small, begin, end in sizes
        )
        return (found[0], found[1]) if is_inside else None


class AddIdentityToFilters(_Windows):
    """conv(a, b) + a = conv(a, b + identity)."""

    name = "add_identity_to_filters"
    before = conv(a, b) + a

    def check(self, match: Match) -> Refusal | None:
        """Refuse images of another shape, and windows without the pixel itself."""
        refusal = self.plain(match, ("conv",), "b")
        if refusal is not None:
            return refusal
        head, graph = match.head("conv"), match.graph
        if not all_same(extents(match.type("a")), extents(graph[match.root].type)):
            return _OTHER_IMAGE
        if any(s != 1 for s in _attribute(head, "strides")):
            return _STEPS
        begin, window = _padding(head)[0], _window(match, "b")
        if any(p >= size for p, size in zip(begin, window, strict=True)):
            return _WINDOWS
        shape = [int(e) for e in extents(match.type("b"))]
        is_other = shape[0] != shape[1] * groups_of(head)
        return _OTHER_IMAGE if is_other or np.prod(shape) > MOST else None

    def rewrite(self, match: Match) -> int | None:
        """Add one to each channel's own filter, at the pixel itself."""
        graph, ty = match.graph, match.type("b")
        shape = [int(e) for e in extents(ty)]
        identity = np.zeros(shape, "float32")
        pixel = tuple(_padding(match.head("conv"))[0])
        for channel in range(shape[0]):
            identity[(channel, channel % shape[1], *pixel)] = 1  # its own of its group
        own = self._scaled(match, graph.constant(identity, str(ty.dtype)))
        if own is None:
            return None
        filters = graph.call(relax.op.add, match.number("b"), own, law=self.name)
        if filters is None:
            return None
        return graph.add(match.head("conv"), [match.number("a"), filters], self.name)

    def _scaled(self, match: Match, identity: int) -> int | None:
        """Scale the identity's filters."""
        return identity


class AddScaledIdentityToFilters(AddIdentityToFilters):
    """conv(a, b) + a * s = conv(a, b + identity * s): batch norms of the identity, of RepVGG."""

    name = "add_scaled_identity_to_filters"
    before = conv(a, b) + a * s

    def check(self, match: Match) -> Refusal | None:
        """Refuse scales of run time, and those that vary within a channel."""
        refusal = super().check(match)
        if refusal is not None:
            return refusal
        if not match.graph[match.number("s")].is_constant:
            return _NOT_CONSTANT
        ty, rank = match.type("s"), match.type("a").ndim
        if ty.ndim > rank:
            return _OTHER_IMAGE
        sizes = aligned(ty, rank)
        return None if all(is_one(e) for i, e in enumerate(sizes) if i != 1) else _VARIES

    def _scaled(self, match: Match, identity: int) -> int | None:
        graph, rank = match.graph, match.type("a").ndim
        channels = [aligned(match.type("s"), rank)[1], *[1] * (rank - 1)]
        scale = reshaped(graph, match.number("s"), channels, self.name)
        if scale is None:
            return None
        return graph.call(relax.op.multiply, identity, scale, law=self.name)


class ComposeConvolutions(_Windows):
    """conv(conv(a, b), c) = conv(a, c b), where one of the windows is a pixel."""

    name = "compose_convolutions"
    before = conv(conv(a, b), c)

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield convolutions of convolutions."""
        for outer in _convolutions(graph, number):
            for inner in _convolutions(graph, outer.operands[0]):
                bound: dict[str, int | Head] = {"outer": outer.head, "inner": inner.head}
                operands = dict(zip("ab", inner.operands, strict=True))
                yield Match(graph, number, bound | operands | {"c": outer.operands[1]})

    def check(self, match: Match) -> Refusal | None:
        """Refuse two windows of several pixels, besides what is not plain."""
        refusal = self.plain(match, ("outer", "inner"), "bc")
        if any(groups_of(match.head(name)) > 1 for name in ("outer", "inner")):
            return refusal or _GROUPS
        return refusal or (None if self._point(match) else _NO_POINT)

    def rewrite(self, match: Match) -> int | None:
        """Multiply the weights, as matrices of channels."""
        graph, is_inner = match.graph, self._point(match) == "inner"
        b, c = ([int(e) for e in extents(match.type(n))] for n in "bc")
        window = range(2, len(b))

        def call(make: Callable[..., relax.Call], *operands: int | None) -> int | None:
            known = [o for o in operands if o is not None]
            return graph.call(make, *known, law=self.name) if len(known) == len(operands) else None

        first, second = match.number("b"), match.number("c")
        if is_inner:
            turned = call(lambda x: relax.op.permute_dims(x, [0, *window, 1]), second)
            matrix = call(lambda x: relax.op.reshape(x, b[:2]), first)
            made = call(relax.op.matmul, turned, matrix)
            order = [0, len(b) - 1, *range(1, len(b) - 1)]
            weight = call(lambda x: relax.op.permute_dims(x, order), made)
        else:
            matrix = call(lambda x: relax.op.reshape(x, c[:2]), second)
            rows = call(lambda x: relax.op.reshape(x, [b[0], math.prod(b[1:])]), first)
            made = call(relax.op.matmul, matrix, rows)
            weight = call(lambda x: relax.op.reshape(x, [c[0], *b[1:]]), made)
        if weight is None:
            return None
        head = match.head("outer" if is_inner else "inner")
        return graph.add(head, [match.number("a"), weight], self.name)

    def _point(self, match: Match) -> str:
        """Tell which of the two is of single pixels."""
        for name, weight in (("inner", "b"), ("outer", "c")):
            head = match.head(name)
            numbers = (*_attribute(head, "strides"), *_window(match, weight))
            if set(numbers) == {1} and not any(n for side in _padding(head) for n in side):
                return name
        return ""


def _convolutions(graph: EGraph, number: int) -> Iterator:
    for node in tuple(graph[number].nodes):
        if node.head.name.startswith("relax.nn.conv"):
            yield node


def _attribute(head: Head, name: str) -> list[int]:
    return [] if head.call is None else [int(n) for n in getattr(head.call.attrs, name)]


def _padding(head: Head) -> tuple[list[int], list[int]]:
    """Return the zeros before and behind an image along each axis."""
    found = _attribute(head, "padding")
    half = len(found) // 2
    return found[:half], found[half:]


def _window(match: Match, name: str) -> list[int]:
    return [int(e) for e in extents(match.type(name))[2:]]


LAWS: tuple[Law, ...] = (
    AddFiltersOfWindows(),
    AddIdentityToFilters(),
    AddScaledIdentityToFilters(),
    ComposeConvolutions(),
)
