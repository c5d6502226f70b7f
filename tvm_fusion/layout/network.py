"""The states of all tensors between groups, and the sum of what kernels cost that it minimizes.

A tensor's state says in which layouts it is in memory: one, as its producer writes it, or a second
one besides, which a layout kernel makes. A group costs what its claim says for the layouts that it
reads and writes; of a tensor that is there in two it reads the better one. The sum over all groups
and layout kernels is minimized (:mod:`.minimize`), all edges at once, so that both ends of a
residual connection and all operands of a concatenation count.

Groups of many tensors have too many assignments to ask for each: there the cost is taken to be the
sum of what each operand costs that has not the layout of the result, by its share in the bytes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.contract.template import Claim
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook
from ..program.layouts import Layout
from ..program.variant import variant
from .calls import Calls, GroupCall, Tensor
from .choice import Choice, layout_of
from .costs import Assignment, GroupCosts, copy_cost
from .minimize import Table, minimize, total
from .states import MOST_IMAGES, State, best, best_costs, states_of

Values = list[int]  # the number of each tensor's state

# Of a tensor's layout kernel, by which its other layout is preferred on GPUs where claims say that
# both cost the same, as kernels that are bound by memory do by the roofline. Not next to norms: on
# an H200, ResNet-50 of batch 8 took 385 us so and 565 with 1x1 convolutions over the layout of the
# graph (and another first layer); but group norms of the UNet's channels last took 427 us, not 313,
# and those of few pixels still take a tenth to a third longer so (rows/split/template).
PREFERENCE = 0.02
ROWS = ("rows", "split_rows")  # templates
ROUNDS = 40


class Network:
    """The calls of groups around convolutions, and the tensors that may have other layouts.

    Parameters
    ----------
    images
        Which layout each may have besides that of the graph.

    Attributes
    ----------
    calls : list of (GroupCall, GroupCosts, list of Tensor)
        Those that read or write images, in order, with these.
    is_exact : bool
        Whether the last minimum is proved, which takes little time.
    """

    def __init__(self, calls: Calls, images: Mapping[Tensor, Layout], book: ClaimBook) -> None:
        self._book = book
        self._images = images
        self._number = {t: k for k, t in enumerate(images)}
        self._states = [states_of(t, layout) for t, layout in images.items()]
        self.calls: list[tuple[GroupCall, GroupCosts, list[Tensor]]] = []
        self.is_exact = True
        self._made: dict[int, tuple[int, list[Table]]] = {}
        known: dict[tuple, GroupCosts] = {}
        for call in calls.calls:
            mine = {v: t for v, t in call.tensors.items() if t in images}
            if mine:
                layouts = {v: images[t] for v, t in mine.items()}
                key = call.gvar, tuple(layouts.items())
                if key not in known:
                    known[key] = GroupCosts(call.group, layouts, book)
                self.calls.append((call, known[key], list(mine.values())))
        self._ties = self._preferred() if book.device.kind == "cuda" else frozenset()
        self._copies = [self._copy_table(t, layout) for t, layout in images.items()]

    def _preferred(self) -> frozenset[Tensor]:
        """List the tensors that no norms read or write: rows with results as large as images."""
        updated: set[Tensor] = set()
        for call, costs, tensors in self.calls:
            claim = costs.claim(costs.plain)
            if claim is not None and claim.template.name in ROWS:
                read, written = (
                    {tuple(map(str, t.shape)) for t in some.values() if t in self._images}
                    for some in (call.reads, call.writes)
                )
                updated |= set(tensors) if read & written else set()
        return frozenset(self._images.keys() - updated)

    def profits(self) -> bool:
        """Whether a group is faster where all its images have layouts."""
        return any(c.ask(c.all) < c.ask(c.plain) for _, c, _ in self.calls)

    @property
    def plain(self) -> Values:
        """All in the layout of the graph."""
        return [0] * len(self._states)

    def minimum(self) -> Values | None:
        """Choose a state for each tensor so that all kernels take least, by claims.

        ``None`` if what it rests on is not all known after some rounds.
        """
        first = [self._uniform(s) for s in self._states]
        for _ in range(ROUNDS):
            values, self.is_exact = minimize(
                [len(s) for s in self._states], self._all(), [self.plain, first]
            )
            if not self._settle(values):
                return values
        return None

    def total(self, values: Values) -> float:
        """Microseconds of all kernels, by claims."""
        return total(self._all(), values)

    def hold(self, k: int, costs: GroupCosts) -> None:
        """Let a call have other costs, such as those that allow one assignment."""
        call, _, tensors = self.calls[k]
        self.calls[k] = call, costs, tensors
        self._made.pop(k, None)

    def used(self, k: int, values: Values) -> Assignment:
        """Tell in which layouts a call reads and writes its images."""
        call, costs, tensors = self.calls[k]
        states = [self._states[self._number[t]][values[self._number[t]]] for t in tensors]
        return best(call, costs, states)[0]

    def _all(self) -> list[Table]:
        calls = [t for k in range(len(self.calls)) for t in self._tables(k)]
        return calls + self._copies

    def _uniform(self, states: Sequence[State]) -> int:
        return next((k for k, s in enumerate(states) if s[-1] is not None and len(s) == 1), 0)

    def _settle(self, values: Values) -> bool:
        """Ask for the claims that a choice rests on; whether one was a guess or a mistake."""
        changed = False
        for k, (_, costs, _) in enumerate(self.calls):
            used = self.used(k, values)
            if not costs.is_known(used):
                costs.ask(used)
                changed = True
            if math.isinf(costs.ask(used)) and len(used) > MOST_IMAGES:  # asked for by few
                result = used[-1]
                costs.forbid((*(costs.plain if result is None else costs.all)[:-1], result))
                costs.forbid((*(costs.all if result is None else costs.plain)[:-1], result))
                changed = True
        return changed

    def choice(self, values: Values) -> Choice:
        """Write a choice down by its tensors and calls."""
        states = {
            t: state
            for t, k in self._number.items()
            if (state := self._states[k][values[k]]) != (None,)
        }
        reads: dict[tuple[GroupCall, Value], Layout | None] = {}
        for k, (call, costs, tensors) in enumerate(self.calls):
            used = self.used(k, values)
            for value, tensor, layout in zip(costs.images, tensors, used, strict=True):
                if value in call.reads and tensor in states:
                    reads[call, value] = layout
        choice = Choice(states, reads, frozenset())
        return writing_twice(choice, (call for call, _, _ in self.calls), self._book)

    def _copy_table(self, tensor: Tensor, layout: Layout) -> Table:
        value = Value(tensor.var.name, tensor.var.ty)
        states = states_of(tensor, layout)
        tie = 0.0
        if tensor in self._ties:
            copied = copy_cost(value, layout, False, self._book)
            tie = PREFERENCE * copied if math.isfinite(copied) else 0.0
        costs = [
            (tie if s[0] is None else 0.0)
            if len(s) == 1
            else copy_cost(value, layout, s[1] is None, self._book)
            for s in states
        ]
        return Table((self._number[tensor],), np.array(costs))

    def _tables(self, k: int) -> list[Table]:
        """Tabulate the costs of a call; again only where some have become known meanwhile."""
        costs = self.calls[k][1]
        version, tables = self._made.get(k, (-1, []))
        if version != costs.version:
            tables = self._tabulated(k)
            self._made[k] = costs.version, tables
        return tables

    def _tabulated(self, k: int) -> list[Table]:
        call, costs, tensors = self.calls[k]
        if len(costs.images) > MOST_IMAGES:
            return self._shares(costs, tensors)
        distinct = list(dict.fromkeys(tensors))
        numbers = tuple(self._number[t] for t in distinct)
        domains = [self._states[n] for n in numbers]
        table = best_costs(call, costs, [self._states[self._number[t]] for t in tensors])
        # A tensor that is passed twice is in one state.
        at = dict(zip(distinct, np.ix_(*(range(len(d)) for d in domains)), strict=True))
        return [Table(numbers, table[tuple(at[t] for t in tensors)])]

    def _shares(self, costs: GroupCosts, tensors: Sequence[Tensor]) -> list[Table]:
        """Split the cost of a group of many images into one table for each operand."""
        result = costs.images[-1]
        after = self._number[tensors[-1]]
        layout = costs.all[-1]
        mixed = (*costs.plain[:-1], layout), (*costs.all[:-1], None)
        base = {layout: costs.ask(costs.all), None: costs.ask(costs.plain)}
        other = {layout: costs.ask(mixed[0]), None: costs.ask(mixed[1])}
        whole = sum(costs.sizes[:-1]) or 1
        last = [base[s[0]] for s in self._states[after]]
        tables = [Table((after,), np.array(last))]
        for value, tensor, size in zip(costs.images[:-1], tensors[:-1], costs.sizes, strict=False):
            if value is result or tensor is tensors[-1]:
                continue
            mine = self._number[tensor]
            extra = [
                [
                    0.0 if b[0] in a else _times(other[b[0]] - base[b[0]], size / whole)
                    for b in self._states[after]
                ]
                for a in self._states[mine]
            ]
            tables.append(Table((mine, after), np.array(extra)))
        return tables


def _times(difference: float, share: float) -> float:
    return math.inf if math.isnan(difference) or math.isinf(difference) else difference * share


# Producers that write both layouts of a tensor, where a copy costs more.
# Times that a copy takes what its claim says, against the same of a kernel that stores both: 40 us
# against 17 where the stride of lines is a power of two, 14 as claimed elsewhere, on two Zen 5
# cores, and threads wait for each other once more. The UNet of the zoo has none left.
COPY = 2.0


def writing_twice(choice: Choice, calls: Iterable[GroupCall], book: ClaimBook) -> Choice:
    """Let producers write both layouts of a tensor, where a copy costs more.

    On a CPU, whose threads wait for each other after every kernel; on GPUs it is unmeasured.
    """
    found: set[Tensor] = set()
    if book.device.kind != "llvm":
        return choice
    for call in calls:
        both = [v for v, t in call.writes.items() if len(choice.states.get(t, ())) == 2]
        layouts = choice.layouts(call) if both else {}
        before = _us(call, layouts, (), book) if both else 0.0
        chosen: list[Value] = []
        for value in both:
            tensor = call.writes[value]
            state = choice.states[tensor]
            layout = layout_of(state)
            assert layout is not None
            copy = copy_cost(value, layout, state[1] is None, book)
            more = {**layouts, value: layout}
            after = _us(call, more, (*chosen, value), book)
            if after <= before + COPY * copy:
                layouts, before = more, after
                chosen.append(value)
                found.add(tensor)
    return replace(choice, twice=frozenset(found))


def _us(
    call: GroupCall, layouts: Mapping[Value, Layout], twice: Sequence[Value], book: ClaimBook
) -> float:
    claim = book.claim(variant(call.group, layouts, twice=twice).group)
    return book.us(claim) if isinstance(claim, Claim) else math.inf
