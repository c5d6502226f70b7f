"""Least cuts between sources and sinks, against all subsets of the vertices."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tvm_fusion.frontend.normalize.constants.stored import min_vertex_cut


def parts(cut, readers, sources, sinks):
    """Whether no path leads from a source to a sink around a cut."""
    reached, queue = set(), [s for s in sources if s not in cut]
    while queue:
        here = queue.pop()
        if here not in reached:
            reached.add(here)
            queue += [r for r in readers[here] if r not in cut]
    return not reached & set(sinks)


@given(st.data())
def test_is_least_of_all(data):
    count = data.draw(st.integers(1, 7))
    weights = {v: data.draw(st.integers(1, 9)) for v in range(count)}
    readers = {
        v: [r for r in range(v + 1, count) if data.draw(st.booleans())] for v in range(count)
    }
    sources, sinks = (
        [v for v in range(count) if data.draw(st.booleans())] for _ in ("sources", "sinks")
    )
    cut = min_vertex_cut(weights, readers, sources, sinks)
    assert parts(cut, readers, sources, sinks)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(count), n) for n in range(count + 1)
    )
    least = min(
        sum(weights[v] for v in subset)
        for subset in subsets
        if parts(subset, readers, sources, sinks)
    )
    assert sum(weights[v] for v in cut) == least


def test_prefers_what_is_close_to_the_readers():
    readers = {"w": ["transposed"], "transposed": ["reshaped"], "reshaped": []}
    weights = dict.fromkeys(readers, 8)
    assert min_vertex_cut(weights, readers, ["w"], ["reshaped"]) == {"reshaped"}
