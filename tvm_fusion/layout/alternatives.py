"""Two choices of layouts as alternatives of the profile database: groups that differ, and borders.

  groups whose images have other layouts in the two
  layout kernels of the tensors that these groups read or write, and of those with other states

Both read and write the same tensors elsewhere, in the layouts that both choices have them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax

from ..core.template import Claim
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook
from ..fusion.profile import ProfiledGroup
from ..program.group import Group
from ..program.layouts import Layout, is_layout_map
from ..program.variant import laid_out, unique, variant
from .calls import GroupCall, Tensor
from .choice import Choice, layout_of
from .costs import layout_kernel
from .identity import is_identity


@dataclass
class Way:
    """One of the alternatives.

    Attributes
    ----------
    parts : list of ProfiledGroup
        Its groups, in order.
    us : float
        What they are claimed to take.
    """

    parts: list[ProfiledGroup] = field(default_factory=list)
    us: float = 0.0


def alternatives(
    calls: Sequence[GroupCall], now: Choice, then: Choice, book: ClaimBook
) -> tuple[Way, Way] | None:
    """Write down where two choices differ; ``None`` where one has nothing to measure.

    Parameters
    ----------
    calls : sequence of GroupCall
        Of the block, in order.
    book : ClaimBook
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
    known : dict
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
