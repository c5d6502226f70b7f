"""Saturation: laws are applied to an e-graph until nothing is new, or a limit is reached."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .graph import EGraph
from .law import Law, Match

_BOTH = "The model has both sides, and the right one may be finite where the left one is not."


@dataclass(frozen=True)
class Limits:
    """Where a search stops, with the best form so far."""

    nodes: int = 2000  # of an e-graph
    rounds: int = 8  # in each of which every law sees every class
    matches: int = 400  # of one law in one round; what is left over waits for the next
    # Of one region, of processor time: for emergencies, since results then depend on the machine's
    # speed.
    seconds: float = 20.0
    forms: int = 6  # that the planner is asked about


@dataclass
class Use:
    """How often a law was tried, and what came of it."""

    # Matches; those that told the e-graph something.
    tried: int = 0
    fired: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # sentences of refusals, counted
    chosen: int = 0  # forms that were chosen with it
    gain_us: float = 0.0  # microseconds that these save by the planner's cost


def saturate(
    graph: EGraph, laws: Sequence[Law], limits: Limits, uses: dict[str, Use]
) -> str | None:
    """Grow an e-graph.

    Parameters
    ----------
    laws
        Applied in this order, those of both directions forwards and backwards.
    uses
        Counts, by the law's name.

    Returns
    -------
    str or None
        Which limit was reached; None if there is nothing new to find.
    """
    directed = [d for law in laws for d in (law, law.backwards()) if d is not None]
    until = time.process_time() + limits.seconds
    seen: set[tuple] = set()
    for _ in range(limits.rounds):
        graph.rebuild()
        found = _matches(graph, directed, limits.matches, seen)
        changed = False
        for number, match in found:
            if graph.size >= limits.nodes:
                graph.rebuild()
                return "nodes"
            if time.process_time() > until:
                graph.rebuild()
                return "seconds"
            changed |= _apply(directed[number], match, graph, uses)
        if not changed:
            graph.rebuild()
            return None
    graph.rebuild()
    return "rounds"


def _matches(
    graph: EGraph, laws: Sequence[Law], most: int, seen: set[tuple]
) -> list[tuple[int, Match]]:
    by_name: dict[str, dict[int, None]] = defaultdict(dict)
    for number, known in graph.classes.items():
        if not known.is_constant:
            for node in known.nodes:
                by_name[node.head.name][number] = None
    found = []
    for index, law in enumerate(laws):
        new = 0
        numbers = dict.fromkeys(n for name in law.roots for n in by_name.get(name, ()))
        # A class of a thousand forms matches some laws in a million ways.
        for match in (m for number in numbers for m in law.find(graph, number)):
            key = (index, match.root, *match.bound.values())
            if key not in seen:
                seen.add(key)
                found.append((index, match))
                new += 1
                if new >= most:
                    break
    return found


def _apply(law: Law, match: Match, graph: EGraph, uses: dict[str, Use]) -> bool:
    use = uses.setdefault(law.name, Use())
    use.tried += 1
    refusal = law.refusal(match)
    if refusal is not None:
        use.refused[refusal.sentence] += 1
        return False
    before = graph.size
    written = law.rewrite(match)
    if written is None:
        use.refused["Its operators do not take these operands."] += 1
        return False
    if graph[written].type is not graph[match.root].type:
        use.refused["The result has another shape or type."] += 1
        return graph.size != before
    if law.may_change(match) and not _is_safe(match, written):
        use.refused[_BOTH] += 1
        return graph.size != before
    changed = graph.equate(match.root, written) or graph.size != before
    use.fired += changed
    return changed


def _is_safe(match: Match, written: int) -> bool:
    """Whether the left side cannot stand for the right one, where the model has that itself.

    The right side may be finite where the left one is not. So they are made one class where the
    right side is new, or what the left one is computed from, or a constant.
    """
    graph = match.graph
    if not graph.is_given(written) or graph[written].is_constant:
        return True
    bound = [number for number in match.bound.values() if isinstance(number, int)]
    return graph.find(written) in {graph.find(number) for number in (match.root, *bound)}
