"""Which non-finite values of the classes of an e-graph are told from numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..nonfinite import NONE, NonFinite, asked

if TYPE_CHECKING:
    from .egraph import EGraph


def told_apart(graph: EGraph, results: Mapping[int, NonFinite]) -> dict[int, NonFinite]:
    """Follow the results down to all that they are computed from, in any of their forms.

    Parameters
    ----------
    graph : EGraph
        Its classes may be computed from themselves, by way of an equal form.
    results : Mapping of int to NonFinite
        What is told of the classes that are needed.

    Returns
    -------
    dict of int to NonFinite
        By canonical number; classes that no result needs are not there.
    """
    found: dict[int, NonFinite] = {}
    work: list[int] = []

    def tell(number: int, kinds: NonFinite) -> None:
        number = graph.find(number)
        before = found.get(number)
        after = kinds if before is None else before | kinds
        if after != before:
            found[number] = after
            work.append(number)

    for root, kinds in results.items():
        tell(root, kinds)
    while work:
        number = work.pop()
        for node in graph.classes[number].nodes:
            call = node.head.call
            if call is None:
                continue
            is_power = node.head.name == "relax.power"
            exponent = graph[node.operands[1]].value if is_power else None
            for index, operand in enumerate(node.operands):
                tell(operand, asked(call, index, found[number], exponent) or NONE)
    return found
