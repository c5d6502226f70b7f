"""The choice of a layout for every tensor between groups, by the smallest cost of all kernels.

Of claims (:mod:`.network`); where a profile database is there, it is asked convolution by
convolution whether the other layout takes less. Not in densely connected networks, where a choice
takes seconds (:mod:`.minimize`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax

from ..core.contract.template import Claim
from ..core.decisions import record
from ..ecg.graph import Value
from ..fusion.claims import FAR, NOISE, ClaimBook
from ..fusion.cost import Estimate
from ..fusion.profile import Profile, ProfiledGroup, current_profile
from ..program.group import Group
from ..program.layouts import Layout, is_layout_map, layout_for
from ..program.variant import laid_out, unique, variant
from .calls import Calls, GroupCall, Tensor, images_around_convolutions, is_convolution
from .choice import Choice, layout_of
from .costs import layout_kernel
from .identity import is_identity
from .network import Network, Values
from .record import comparison
from .states import MOST_IMAGES

# Of the time, below which layouts stay as they are. What is claimed for the layout of the graph is
# rather too little: of VGG-19 blocks save 1 % so, and 1 to 7 % of its 3 x 3 layers on a Zen 5 core.
GAIN = 0.005


def choose(calls: Calls, book: ClaimBook) -> Choice | None:
    """Choose layouts; ``None`` where the layout of the graph does as well."""
    images = {
        t: layout
        for t in images_around_convolutions(calls)
        if (layout := layout_for(t.shape, book.device, str(t.var.ty.dtype))) is not None
    }
    if not images:
        return None
    network = Network(calls, images, book)
    if not network.profits():
        return None
    values = network.minimum()
    if values is None or network.total(values) > network.total(network.plain) * (1 - GAIN):
        values = network.plain
    profile = current_profile()
    if profile is not None and network.is_exact:  # a minimum for each convolution
        values = measured(network, values, profile, book)
    return None if values == network.plain else network.choice(values)


# Layouts of convolutions by the profile database: what is measured overturns what is claimed.
#
#   for each convolution, in order:
#     the best choice in which its images are as the graph has them, or else all in their layouts
#     ask about what differs:  groups as they are chosen, with the layout kernels of their images
#                              the same as that choice has them
#     the latter takes less:   go on from there
#
# What differs may be more than the convolution: what reads or writes its images goes with it where
# that is cheaper than a layout kernel between the two.
def measured(network: Network, values: Values, profile: Profile, book: ClaimBook) -> Values:
    """Let a profile database change a choice.

    Parameters
    ----------
    network
        Convolutions whose layouts were changed are held to them behind this.
    """
    choice = network.choice(values)
    for k, (call, costs, _) in enumerate(network.calls):
        if not is_convolution(call) or len(costs.images) > MOST_IMAGES:
            continue
        used = network.used(k, values)
        for other in (costs.plain, costs.all):
            if other == used or math.isinf(costs.ask(other)):
                continue
            network.hold(k, costs.held(other))
            found = network.minimum()
            if found is not None and math.isfinite(network.total(found)):
                changed = network.choice(found)
                estimates = _estimates(network, choice, changed, profile, book)
                if estimates is not None:
                    now, then = estimates
                    is_less = now.source == "measured" and then.us < now.us * (1 - NOISE)
                    names = [costs.name(one) for one in (used, other)]
                    record(comparison(call, names, estimates, is_less))
                    if is_less:
                        values, choice = found, changed
                        break
            network.hold(k, costs)
    return values


def _estimates(
    network: Network, now: Choice, then: Choice, profile: Profile, book: ClaimBook
) -> tuple[Estimate, Estimate] | None:
    """Tell what two choices take where they differ; ``None`` where the model is sure."""
    calls = [call for call, _, _ in network.calls]
    ways = alternatives(calls, now, then, book)
    if ways is None or ways[1].us > FAR * ways[0].us:
        return None
    answer = profile.ask([way.parts for way in ways], book.device)
    if answer is None:
        first, second = (Estimate(way.us, "roofline") for way in ways)
    else:
        source = profile.source(answer)
        first, second = (Estimate(us, "measured", source) for us in answer.us)
    return first, second


# Two choices of layouts as alternatives of the profile database: groups that differ, and borders.
#
#   groups whose images have other layouts in the two
#   layout kernels of the tensors that these groups read or write, and of those with other states
#
# Both read and write the same tensors elsewhere, in the layouts that both choices have them in.
@dataclass
class Way:
    """One of the alternatives."""

    parts: list[ProfiledGroup] = field(default_factory=list)  # its groups, in order
    us: float = 0.0  # what they are claimed to take


def alternatives(
    calls: Sequence[GroupCall], now: Choice, then: Choice, book: ClaimBook
) -> tuple[Way, Way] | None:
    """Write down where two choices differ; ``None`` where one has nothing to measure.

    Parameters
    ----------
    calls
        Of the block, in order.
    book
        Names the templates of groups.
    """
    differ = [call for call in calls if _of(now, call) != _of(then, call)]
    tensors = dict.fromkeys(t for call in differ for t in call.tensors.values())
    states = now.states.keys() | then.states.keys()
    tensors |= {t: None for t in states if now.states.get(t) != then.states.get(t)}
    known: dict[Any, Value] = {}
    first, second = (_way(differ, tensors, one, _Names(known), book) for one in (now, then))
    if first is None or second is None or not first.parts or not second.parts:
        return None
    return first, second


def _of(choice: Choice, call: GroupCall) -> tuple[dict[Value, Layout], list[Value]]:
    return choice.layouts(call), choice.written_twice(call)


class _Names:
    """What the tensors of groups stand for: one value for each of the caller's, in each layout.

    Parameters
    ----------
    known
        Values that all alternatives have.
    """

    def __init__(self, known: dict[Any, Value]) -> None:
        self._known = known
        self._aliases: dict[Any, Value] = {}

    def of(self, expr: relax.Expr, layout: Layout | None) -> Value:
        """Return the value of a variable or constant of the caller in a layout."""
        key = expr, layout
        if key in self._aliases:
            return self._aliases[key]
        if key not in self._known:
            self._known[key] = self._made(expr, layout)
        return self._known[key]

    def alias(self, var: relax.Var, layout: Layout | None, value: Value) -> None:
        """Let a variable in a layout be what another one is, in one alternative."""
        self._aliases[var, layout] = value

    @staticmethod
    def _made(expr: relax.Expr, layout: Layout | None) -> Value:
        if isinstance(expr, ir.GenericConst):
            return Value("constant", expr.ty, constant=expr, is_constant=True, is_parameter=True)
        value = Value(expr.name, expr.ty)
        return value if layout is None else laid_out(value, layout)


def _way(
    calls: Sequence[GroupCall],
    tensors: Iterable[Tensor],
    choice: Choice,
    names: _Names,
    book: ClaimBook,
) -> Way | None:
    """Make the groups of a choice; ``None`` if one is refused, or renames what others read."""
    way = Way()
    for call in calls:
        layouts, twice = _of(choice, call)
        new = variant(call.group, layouts, unique, twice)
        inputs, outputs = _tensors(call, new.group, new.original, layouts, names)
        if is_identity(new.group):
            (written,) = call.writes.values()
            if written.is_fixed or not set(written.readers) <= set(calls):
                return None
            names.alias(written.var, next(iter(layouts.values()), None), inputs[0])
        elif not _add(way, new.group, inputs, outputs, book):
            return None
    for tensor in tensors:
        state = choice.states.get(tensor, (None,))
        if len(state) == 2 and tensor not in choice.twice:
            layout = layout_of(state)
            assert layout is not None
            value = Value(tensor.var.name, tensor.var.ty)
            group = layout_kernel(value, layout, state[1] is None, unique)
            source, result = (names.of(tensor.var, one) for one in state)
            if not _add(way, group, (source,), (result,), book):
                return None
    return way


def _tensors(
    call: GroupCall, group: Group, original: Any, layouts: dict[Value, Layout], names: _Names
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Tell what the inputs and outputs of a group stand for."""
    args = [a for a in call.binding.value.args if not isinstance(a.ty, relax.ShapeType)]
    given = dict(zip(call.group.inputs, args, strict=True))
    inputs = []
    for own in group.inputs:
        inputs.append(names.of(given[original[own]], layouts.get(original[own])))
    outputs = []
    for own in group.outputs:
        tensor = call.writes.get(original[own])
        is_stored = is_layout_map(own.operator.func)
        layout = layouts.get(original[own]) if is_stored else None
        outputs.append(
            Value(own.name, own.type) if tensor is None else names.of(tensor.var, layout)
        )
    return tuple(inputs), tuple(outputs)


def _add(
    way: Way, group: Group, inputs: Sequence[Value], outputs: Sequence[Value], book: ClaimBook
) -> bool:
    claim = book.claim(group)
    if isinstance(claim, Claim):
        way.us += book.us(claim)
        name = claim.template.name
        way.parts.append(ProfiledGroup(name, group, tuple(inputs), tuple(outputs)))
    return isinstance(claim, Claim)
