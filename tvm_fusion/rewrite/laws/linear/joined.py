"""Products and convolutions with their weights joined: side by side, or one behind the other.

Columns that are read in turns are put side by side.

Channels that are put side by side are the same sums as before. Sums of several products are sums in
another order where their terms are put behind each other.
"""

from collections.abc import Iterator

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.extents import all_same, extents, reshaped
from ...egraph.graph import EGraph
from ...egraph.head import Head
from ...egraph.law import Law, Match
from ...egraph.pattern import function, tensors
from ..shapes.concats import axis_of
from ..shapes.slices import Range, extent_of, ranges, sliced
from .convolution import conv, groups_of, layouts
from .matmuls import Linear

a, b, c, d = tensors("a b c d")
concat = function("relax.concat", "axis")

_NOT_CONSTANT = Refusal("not_constant", "A weight is computed at run time: joining copies it.")
_GROUPS = Refusal("groups", "The convolution has groups, whose channels are not those of others.")
_NO_TURN = Refusal("no_turn", "The slice does not take every n-th column of all of them.")
_DIFFERENT = Refusal("different_shapes", "The operands differ in more than their channels.")


class ConcatOfConvolutions(Law):
    """concat(conv(a, b), conv(a, c), axis) = conv(a, concat(b, c, filters))."""

    name = "concat_of_convolutions"
    before = concat(conv(a, b), conv(a, c))

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield concatenations of convolutions of one image with windows of one kind."""
        for node in tuple(graph[number].nodes):
            if node.head.name != "relax.concat" or len(node.operands) < 2:
                continue
            for first in graph[node.operands[0]].nodes:
                if not first.head.name.startswith("relax.nn.conv"):
                    continue
                filters = [_filters(graph, o, first.head, first.operands[0]) for o in node.operands]
                found = {f"filters{i}": f for i, f in enumerate(filters) if f is not None}
                if len(found) == len(filters):
                    bound: dict[str, int | Head] = {"axis": node.head, "conv": first.head}
                    yield Match(graph, number, {**bound, "a": first.operands[0], **found})

    def check(self, match: Match) -> Refusal | None:
        """Refuse another axis than channels, groups, and weights that would be copied."""
        head, graph = match.head("conv"), match.graph
        _, kernel, output = layouts(head)
        if "C" not in output or axis_of(match.head("axis")) % len(output) != output.index("C"):
            return Refusal("other_axis", "They are not joined along their channels.")
        if groups_of(head) > 1 or "O" not in kernel or not kernel.isupper():
            return _GROUPS
        weights = [match.number(name) for name in match.bound if name.startswith("filters")]
        if not all(graph[w].is_constant for w in weights):
            return _NOT_CONSTANT
        return _differ(graph, weights, kernel.index("O"))

    def rewrite(self, match: Match) -> int | None:
        """Join the filters."""
        graph, head = match.graph, match.head("conv")
        weights = [match.number(name) for name in match.bound if name.startswith("filters")]
        axis = layouts(head)[1].index("O")
        joined = graph.call(lambda *xs: relax.op.concat(list(xs), axis), *weights, law=self.name)
        return None if joined is None else graph.add(head, [match.number("a"), joined], self.name)


class AddConvolutionsOfImages(Law):
    """conv(a, b) + conv(c, d) = conv(concat(a, c, channels), concat(b, d, channels))."""

    name = "add_convolutions_of_images"
    before = conv(a, b) + conv(c, d)
    needs = "reassociate"  # terms are added in another order

    def check(self, match: Match) -> Refusal | None:
        """Refuse one image, groups, weights that would be copied, and other extents."""
        graph, head = match.graph, match.head("conv")
        data, kernel, _ = layouts(head)
        if match.number("a") == match.number("c"):
            return Refusal("one_image", "Both read one image: their filters are added.")
        if groups_of(head) > 1 or "I" not in kernel or not kernel.isupper():
            return _GROUPS
        if head.name.endswith("_transpose") or "C" not in data:
            return Refusal("layout", "The layout has channels along several axes.")
        weights = [match.number("b"), match.number("d")]
        if not all(graph[w].is_constant for w in weights):
            return _NOT_CONSTANT
        images = [match.number("a"), match.number("c")]
        return _differ(graph, images, data.index("C")) or _differ(graph, weights, kernel.index("I"))

    def rewrite(self, match: Match) -> int | None:
        """Join both images and both weights."""
        head = match.head("conv")
        data, kernel, _ = layouts(head)
        axes = data.index("C"), kernel.index("I")
        return _joined(match, head, axes, self.name)


class JoinTerms(Linear):
    """a @ b + c @ d = concat(a, c, -1) @ concat(b, d, -2)."""

    name = "join_terms"
    before = a @ b + c @ d

    def check(self, match: Match) -> Refusal | None:
        """Refuse one left operand, weights that would be copied, and other extents."""
        graph = match.graph
        if match.number("a") == match.number("c"):
            return Refusal("one_operand", "Both read one tensor: their weights are added.")
        weights, rows = [match.number("b"), match.number("d")], [match.number(n) for n in "ac"]
        if not all(graph[w].is_constant for w in weights):
            return _NOT_CONSTANT
        if any(graph[w].type.ndim != 2 for w in weights):
            return Refusal("not_a_matrix", "A weight is no matrix.")
        found = _differ(graph, rows, -1) or _differ(graph, weights, 0)
        return found or self.mixed(match, "a", "b", "c", "d")

    def rewrite(self, match: Match) -> int | None:
        """Join the rows of both weights."""
        rank = match.type("a").ndim
        return _joined(match, match.head("@"), (rank - 1, 0), self.name)


class ColumnsInTurns(Law):
    """strided_slice(a @ b, at) = a neighbouring slice of a @ b, its columns by turns in order.

    So are halves of gates written; a kernel has columns a fixed distance apart at hand.
    """

    name = "columns_in_turns"
    before = function("relax.strided_slice", "at")(a @ b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse slices that are no turn of the columns, and weights of run time."""
        if not match.graph[match.number("b")].is_constant:
            return _NOT_CONSTANT
        if match.type("b").ndim != 2:
            return Refusal("not_a_matrix", "A weight is no matrix.")
        return None if self._turn(match) else _NO_TURN

    def rewrite(self, match: Match) -> int | None:
        """Order the weight's columns by turns, and take those of one turn."""
        turn = self._turn(match)
        if turn is None:
            return None
        graph, axis, (first, size, count) = match.graph, match.type("a").ndim - 1, turn

        rows = extents(match.type("b"))[0]
        turns = reshaped(graph, match.number("b"), [rows, size, count], self.name)
        if turns is None:
            return None
        ordered = graph.call(lambda x: relax.op.permute_dims(x, [0, 2, 1]), turns, law=self.name)
        if ordered is None:
            return None
        weight = reshaped(graph, ordered, extents(match.type("b")), self.name)
        if weight is None:
            return None
        product = graph.add(match.head("@"), [match.number("a"), weight], self.name)
        if product is None:
            return None
        return sliced(graph, product, {axis: Range(first * size, size, 1)}, self.name)

    @staticmethod
    def _turn(match: Match) -> Range | None:
        """Read which of how many turns a slice takes, and its columns."""
        graph = match.graph
        product = graph.add(match.head("@"), [match.number("a"), match.number("b")])
        if product is None:
            return None
        shape = graph[product].type.shape
        found = ranges(match.head("at"), shape) or {}
        whole = [i for i, r in found.items() if r.length == extent_of(shape, i)]
        axes = [i for i in found if i not in whole]
        if axes != [len(shape) - 1]:
            return None
        own = found[axes[0]]
        is_turn = own.stride > 1 and own.length * own.stride == extent_of(shape, axes[0])
        return own if is_turn and own.begin < own.stride else None


def _joined(match: Match, head: Head, axes: tuple[int, int], law: str) -> int | None:
    """Write an operator of two pairs of operands, each joined along its axis."""
    graph, operands = match.graph, []
    for names, axis in zip(("ac", "bd"), axes, strict=True):
        numbers = [match.number(name) for name in names]

        def write(*xs: relax.Expr, axis: int = axis) -> relax.Call:
            return relax.op.concat(list(xs), axis)

        joined = graph.call(write, *numbers, law=law)
        if joined is None:
            return None
        operands.append(joined)
    return graph.add(head, operands, law)


def _filters(graph: EGraph, number: int, head: Head, image: int) -> int | None:
    """Find the filters of which a class is the convolution of an image."""
    found = (
        node.operands[1]
        for node in graph[number].nodes
        if node.head is head and graph.find(node.operands[0]) == graph.find(image)
    )
    return next(found, None)


def _differ(graph: EGraph, numbers: list[int], axis: int) -> Refusal | None:
    """Refuse tensors that differ in more than the extent of an axis."""
    shapes, kinds = [], set()
    for number in numbers:
        ty = graph[number].type
        sizes = extents(ty)
        shapes.append([e for i, e in enumerate(sizes) if i != axis % len(sizes)])
        kinds.add(str(ty.dtype))
    if len(kinds) == 1 and all(all_same(shapes[0], other) for other in shapes[1:]):
        return None
    return _DIFFERENT


LAWS: tuple[Law, ...] = (
    ConcatOfConvolutions(),
    AddConvolutionsOfImages(),
    JoinTerms(),
    ColumnsInTurns(),
)
