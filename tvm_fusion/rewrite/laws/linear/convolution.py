"""Convolutions are linear: scaling by channels moves into constant weights."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.extents import Extent, aligned, all_same, extents, is_one, reshaped, spreads
from ...egraph.head import Head
from ...egraph.law import Law, Match
from ...egraph.pattern import function, one_of, tensors

a, b, c, s = tensors("a b c s")
_FORWARD = tuple(f"nn.conv{n}d" for n in (1, 2, 3))
_TRANSPOSED = tuple(f"{name}_transpose" for name in _FORWARD)
conv = one_of("conv", *_FORWARD, *_TRANSPOSED)
channels = function("relax.reshape", "channels")

_MIXED = Refusal("mixed_types", "The result is wider than the operands.")
_LARGER = Refusal("larger_factor", "The factor has axes that the tensor lacks.")
_DIFFERENT = Refusal("different_shapes", "The operands have different shapes.")


class _Linear(Law):
    """What holds because a convolution is linear in both operands."""

    needs = "reassociate"  # scaled weights may be denormal, scaled partial sums may overflow
    is_modular = True

    def mixed(self, match: Match, *names: str) -> Refusal | None:
        """Refuse operands of another type than the result."""
        dtype = match.graph[match.root].type.dtype
        return None if all(match.type(name).dtype == dtype for name in names) else _MIXED


class _ScaledChannels(_Linear):
    """A factor per channel moves into the weights."""

    def check(self, match: Match) -> Refusal | None:
        shape = self._shape(match)
        return shape if isinstance(shape, Refusal) else self.mixed(match, "a", "b")

    def rewrite(self, match: Match) -> int | None:
        graph, shape = match.graph, self._shape(match)
        if isinstance(shape, Refusal):
            return None
        factor = reshaped(graph, match.number("s"), shape, self.name)
        if factor is None:
            return None
        weights = graph.call(relax.op.multiply, match.number("b"), factor, law=self.name)
        if weights is None:
            return None
        return graph.add(match.head("conv"), [match.number("a"), weights], self.name)

    def _shape(self, match: Match) -> list[Extent] | Refusal:
        """Return the shape in which the factor meets the weights."""
        raise NotImplementedError


class ScaleOutputChannels(_ScaledChannels):
    """conv(a, b) * s = conv(a, b * reshape(s, channels))."""

    name = "scale_output_channels"
    before = conv(a, b) * s
    after = conv(a, b * channels(s))

    def _shape(self, match: Match) -> list[Extent] | Refusal:
        head = match.head("conv")
        _, kernel, output = layouts(head)
        return _along(match, output, kernel.find("O"), _is_grouped_transpose(head))


class ScaleInputChannels(_ScaledChannels):
    """conv(a * s, b) = conv(a, b * reshape(s, channels))."""

    name = "scale_input_channels"
    before = conv(a * s, b)
    after = conv(a, b * channels(s))

    def _shape(self, match: Match) -> list[Extent] | Refusal:
        head = match.head("conv")
        if not spreads(match.type("s"), match.type("a")):
            return _LARGER
        data, kernel, _ = layouts(head)
        groups = groups_of(head)
        axis, is_split = kernel.find("I"), False
        if groups > 1 and not head.name.endswith("_transpose"):
            # Each channel has filters of its own, or several channels share an axis of the weights.
            sizes = extents(match.type("b"))
            one_each = axis >= 0 and is_one(sizes[axis]) and sizes[kernel.find("O")] == groups
            axis, is_split = kernel.find("O"), not one_each
        return _along(match, data, axis, is_split)


class AddConvolutions(_Linear):
    """conv(a, b) + conv(c, b) = conv(a + c, b)."""

    name = "add_convolutions"
    before = conv(a, b) + conv(c, b)
    after = conv(a + c, b)
    both = True

    def check(self, match: Match) -> Refusal | None:
        if not all_same(extents(match.type("a")), extents(match.type("c"))):
            return _DIFFERENT
        return self.mixed(match, "a", "b", "c")


class AddFilters(_Linear):
    """conv(a, b) + conv(a, c) = conv(a, b + c)."""

    name = "add_filters"
    before = conv(a, b) + conv(a, c)
    after = conv(a, b + c)
    both = True

    def check(self, match: Match) -> Refusal | None:
        if not all_same(extents(match.type("b")), extents(match.type("c"))):
            return _DIFFERENT
        return self.mixed(match, "a", "b", "c")


class SubtractConvolutions(AddConvolutions):
    """conv(a, b) - conv(c, b) = conv(a - c, b)."""

    name = "subtract_convolutions"
    before = conv(a, b) - conv(c, b)
    after = conv(a - c, b)
    both = False  # the convolutions' difference may cancel


class SubtractFilters(AddFilters):
    """conv(a, b) - conv(a, c) = conv(a, b - c)."""

    name = "subtract_filters"
    before = conv(a, b) - conv(a, c)
    after = conv(a, b - c)
    both = False


def layouts(head: Head) -> tuple[str, str, str]:
    """Return the layouts of a convolution's input, weights and result."""
    if head.call is None:
        return "", "", ""
    attrs = head.call.attrs
    return (
        str(attrs.data_layout),
        str(attrs.kernel_layout),
        str(attrs.out_layout or attrs.data_layout),
    )


def groups_of(head: Head) -> int:
    """Return the number of groups of a convolution."""
    return 1 if head.call is None else int(head.call.attrs.groups)


def _is_grouped_transpose(head: Head) -> bool:
    return head.name.endswith("_transpose") and groups_of(head) > 1


def _along(match: Match, layout: str, axis: int, is_split: bool) -> list[Extent] | Refusal:
    """Return the shape that puts a per-channel factor along an axis of the weights."""
    names = layout, layouts(match.head("conv"))[1]
    # Blocked layouts such as OIHW4o have the channels along two axes.
    if axis < 0 or not all(name.isalpha() and name.isupper() for name in names):
        return Refusal("layout", "The layout has channels along several axes.")
    if match.type("s").ndim > len(layout):
        return _LARGER
    sizes, channel = aligned(match.type("s"), len(layout)), layout.index("C")
    if not all(is_one(e) for i, e in enumerate(sizes) if i != channel):
        return Refusal("varies", "The factor varies within a channel.")
    if is_split and not is_one(sizes[channel]):
        return Refusal("groups", "Channels of several groups share the weights' axis.")
    rank = match.type("b").ndim
    return [sizes[channel] if i == axis else 1 for i in range(rank)]


LAWS: tuple[Law, ...] = (
    ScaleOutputChannels(),
    ScaleInputChannels(),
    AddConvolutions(),
    AddFilters(),
    SubtractConvolutions(),
    SubtractFilters(),
)
