"""Equal layers of a graph: where they are, and the same graph with fewer of them."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tvm import ir, tirx

from .graph import Graph, Operator, Value

_PERIODS = 8  # that are tried: distances between equal operators, the most frequent first


@dataclass(frozen=True)
class Layers:
    """Operators that repeat: each does the same as the one a layer before it.

    What they read comes from the layer's own weights and inputs, from as far back in every layer,
    or from in front of all layers.
    """

    first: int  # position in the graph of the first layer's first operator
    size: int  # operators of one layer
    count: int

    @property
    def end(self) -> int:
        """Position behind the last layer."""
        return self.first + self.size * self.count

    def shorten(self, graph: Graph, count: int) -> dict[int, int]:
        """Leave the first few layers in a graph; what reads the last one reads the last of these.

        Parameters
        ----------
        graph
            In which the layers were found.

        Returns
        -------
        dict of int to int
            In which layer the operators are, by their indices.
        """
        start, back = self.first + self.size * count, self.size * (self.count - count)
        operators = graph.operators
        instead = {
            old: new
            for before, behind in zip(
                operators[start - self.size : start],
                operators[self.end - self.size : self.end],
                strict=True,
            )
            for old, new in zip(behind.results, before.results, strict=True)
        }
        own = operators[self.first : start]
        graph.cut(operators[start : start + back], instead)
        return {op.index: number // self.size for number, op in enumerate(own)}


def layers_of(graph: Graph, kept: int) -> Layers | None:
    """Find the layers that most operators of a graph are in; None where there are few.

    Parameters
    ----------
    kept
        How many shall be left: there are more.
    """
    reader = _Reader(graph)
    found = [run for period in reader.periods() for run in reader.runs(period)]
    found = [one for one in found if one.count > kept and reader.is_left_by_the_last(one)]
    return max(found, key=lambda run: (run.size * run.count, run.count), default=None)


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self._operators = graph.operators
        self._outlines = [_outline(op) for op in graph.operators]
        self._places = {
            value: (position, number)
            for position, op in enumerate(graph.operators)
            for number, value in enumerate(op.results)
        }

    def periods(self) -> list[int]:
        """List the distances at which equal operators follow each other most often."""
        last: dict[Hashable, int] = {}
        distances = Counter[int]()
        for position, outline in enumerate(self._outlines):
            if outline in last:
                distances[position - last[outline]] += 1
            last[outline] = position
        return [distance for distance, _ in distances.most_common(_PERIODS)]

    def runs(self, period: int) -> Iterator[Layers]:
        """Yield where two layers or more follow each other."""
        start, end = 0, len(self._operators) - period
        leaves = _Leaves()
        for position in range(end + 1):
            if position < end and self._repeats(position, period, start, leaves):
                continue
            if position - start >= period:
                yield Layers(start, period, (position - start) // period + 1)
            start, leaves = position + 1, _Leaves()

    def _repeats(self, position: int, period: int, start: int, leaves: "_Leaves") -> bool:
        """Whether an operator and the one a layer behind do the same, of what corresponds."""
        if self._outlines[position] != self._outlines[position + period]:
            return False
        pair = self._operators[position], self._operators[position + period]
        for one, other in zip(*(op.tensors for op in pair), strict=True):
            place, then = self._places.get(one), self._places.get(other)
            if place is None or then is None:
                if place is not then or not leaves.correspond(one, other):
                    return False
            elif one is other:
                if place[0] >= start:
                    return False
            elif then != (place[0] + period, place[1]):
                return False
        return True

    def is_left_by_the_last(self, layers: Layers) -> bool:
        """Whether what follows reads nothing of the layers before the last one."""
        own = range(layers.first, layers.end - layers.size)
        return not any(
            value in self._places and self._places[value][0] in own
            for op in self._operators[layers.end :]
            for value in op.tensors
        )


class _Leaves:
    """Which inputs and constants of a layer the next one has in their place."""

    def __init__(self) -> None:
        self._next: dict[Value, Value] = {}
        self._before: dict[Value, Value] = {}

    def correspond(self, one: Value, other: Value) -> bool:
        """Whether each stands for the other wherever they are read."""
        is_known = self._next.setdefault(one, other) is other
        return is_known and self._before.setdefault(other, one) is one


def _outline(op: Operator) -> Hashable:
    """Describe an operator but for what computes its operands; an opaque one is like no other."""
    if op.func is None:
        return op
    operands = tuple(
        _value(operand) if isinstance(operand, Value) else _extent(operand)
        for operand in op.operands
    )
    return op.func, operands, tuple(map(_value, op.results))


def _value(value: Value) -> Hashable:
    extents = tuple(map(_extent, value.shape))
    kind = value.is_constant, value.is_parameter, value.leaves
    return value.dtype, extents, kind, value.closed_form_text, len(value.consumers)


def _extent(expr: ir.Expr) -> Hashable:
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    return str(expr), tuple(map(hash, tirx.analysis.undefined_vars(expr)))
