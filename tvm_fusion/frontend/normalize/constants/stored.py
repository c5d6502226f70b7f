"""Which expressions of constants are stored, so that together they take the fewest bytes.

constants of the module -> operators on them -> what reads these
cut of least bytes:  what is stored;  before it: evaluated now;  behind it: by the model's kernels
then what is worth more than its bytes:
  small results:  reading one takes less time than calling a kernel
  results of gathers, sums, products of constants, of index arithmetic, of constants of one value
  (which later passes may remove), weights of convolutions,
  on CPUs transposed weights of products, and numbers whose bits lie in several planes:
    computing them in every run takes longer than reading them
"""

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tvm.target import Target

from ....core.decisions import Decision, Verdict, record
from ....words import counted
from .graph import Node

# Vertices of least weight that part the sources of a graph from its sinks.
#
# each vertex is an edge of its weight, each edge of the graph one without a limit
# push flow along shortest paths until none is left  (Edmonds and Karp, 1972)
# the cut: vertices of which the end still reaches the sinks, and the beginning does not

V = TypeVar("V", bound=Hashable)
_END = 1


def min_vertex_cut(
    weights: Mapping[V, int],
    readers: Mapping[V, Sequence[V]],
    sources: Iterable[V],
    sinks: Iterable[V],
) -> set[V]:
    """Choose a cut of least weight; of several, the one closest to the sinks.

    Parameters
    ----------
    weights : mapping of vertex to int
        Of each vertex, sources and sinks too: positive.
    sources, sinks : iterable of vertex
        What is to be parted; a vertex that is both is part of every cut.

    Returns
    -------
    set of vertex
        Every path from a source to a sink has one of these.
    """
    capacity: dict[tuple, dict[tuple, float]] = {}

    def connect(a: tuple, b: tuple, much: float) -> None:
        capacity.setdefault(a, {})[b] = much
        capacity.setdefault(b, {}).setdefault(a, 0)

    start, stop = ("start",), ("stop",)
    capacity[start], capacity[stop] = {}, {}
    for vertex, weight in weights.items():
        connect((vertex, 0), (vertex, _END), weight)
        for reader in readers.get(vertex, ()):
            connect((vertex, _END), (reader, 0), float("inf"))
    for vertex in sources:
        connect(start, (vertex, 0), float("inf"))
    for vertex in sinks:
        connect((vertex, _END), stop, float("inf"))
    while path := _path(capacity, start, stop):
        much = min(capacity[a][b] for a, b in path)
        for a, b in path:
            capacity[a][b] -= much
            capacity[b][a] += much
    beyond = _reaching(capacity, stop)
    return {v for v in weights if (v, _END) in beyond and (v, 0) not in beyond}


def _path(
    capacity: Mapping[tuple, Mapping[tuple, float]], start: tuple, stop: tuple
) -> list[tuple[tuple, tuple]]:
    """Find the edges of a shortest path with capacity left; none where there is none."""
    came: dict[tuple, tuple] = {start: start}
    queue = deque([start])
    while queue and stop not in came:
        here = queue.popleft()
        for there, left in capacity[here].items():
            if left > 0 and there not in came:
                came[there] = here
                queue.append(there)
    path = []
    while stop in came and stop != start:
        path.append((came[stop], stop))
        stop = came[stop]
    return path


def _reaching(capacity: Mapping[tuple, Mapping[tuple, float]], stop: tuple) -> set[tuple]:
    """Find what reaches the end through edges with capacity left."""
    found, queue = {stop}, deque([stop])
    while queue:
        here = queue.popleft()
        for before in capacity[here]:
            if before not in found and capacity[before].get(here, 0) > 0:
                found.add(before)
                queue.append(before)
    return found


#: Bytes that are read in less time than a kernel is called, about a microsecond, at 10 GB/s.
SMALL = 8192
#: No result that takes more bytes than its sources is larger, but for transposed weights.
LARGEST_COPY = 1 << 20
# Rows of a table, which a kernel also reads where it computes with them.
_GATHERS = frozenset(("take", "index_tensor", "gather_elements"))
_SUMS = frozenset(("matmul", "sum", "mean", "max", "min", "prod", "cumsum"))
# One value, or elements of a constant again: part of the kernel that reads them, for nothing.
_FREE = frozenset(
    ("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "broadcast_to", "astype")
) | frozenset(("reshape", "expand_dims", "squeeze", "flatten", "permute_dims", "strided_slice"))
_MOVES = frozenset(("reshape", "expand_dims", "squeeze", "flatten", "permute_dims"))
_PRODUCTS = ("relax.matmul", "relax.nn.conv")


def choose_stored(nodes: Sequence[Node]) -> set[Node]:
    """Choose what is stored of constants and the operators on them.

    Returns
    -------
    set of Node
        The operators that become constants, and constants that stay.
    """
    stored = {node for node in nodes if node.read_by and _is_small(node)}
    joined = {node for node in nodes if _joins_planes(node)} if _is_cpu() else set()
    for component in _components([node for node in nodes if not _is_small(node)]):
        stored |= _cut(component, joined)
    behind = _behind(nodes, stored)
    kept: list[Node] = []
    for node in nodes:
        if node in behind and node.read_by and _is_worth_it(node, behind):
            kept.append(node)
        elif node in behind and _is_small(node) and any(r in behind for r in node.readers):
            stored.add(node)
    _tell(
        [n for n in stored if n.call is not None and _is_small(n)], "accepted", "calling a kernel"
    )
    _tell(kept, "refused", "computing them")
    _tell([n for n in stored if n in joined], "accepted", "joining their bits")
    return stored | set(kept)


def _tell(copies: Sequence[Node], verdict: Verdict, instead: str) -> None:
    """Record what is stored although its sources may take fewer bytes."""
    size = sum(node.nbytes for node in copies)
    if copies:
        titles = ", ".join(sorted({node.operator for node in copies}))
        sentence = (
            f"{counted(len(copies), 'result')} of constants ({titles}), {size} bytes, are stored "
            f"even where their sources are smaller: {instead} in every run takes longer."
        )
        record(Decision("constants", "", verdict, "copy_saves_time", sentence, bytes_saved=-size))


def _is_small(node: Node) -> bool:
    return node.nbytes <= SMALL


def _components(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Part nodes into sets that share no operand."""
    left = dict.fromkeys(nodes)
    while left:
        found, queue = [], [next(iter(left))]
        del left[queue[0]]
        while queue:
            node = queue.pop()
            found.append(node)
            for other in (*node.operands, *node.readers):
                if other in left:
                    del left[other]
                    queue.append(other)
        yield found


def _cut(component: Sequence[Node], joined: Container[Node]) -> set[Node]:
    """Choose the fewest bytes between the constants of a component and what reads it.

    Parameters
    ----------
    joined
        What is stored whatever bytes it takes.
    """
    inside = set(component)
    sources = [node for node in component if node.const is not None]
    sinks = [node for node in component if node.read_by]
    if not sources or not sinks:
        return set()
    readers = {node: [r for r in node.readers if r in inside] for node in component}
    if not any(readers.values()):
        return set(sinks)
    weights = {node: 1 if node in joined else node.nbytes for node in component}
    return min_vertex_cut(weights, readers, sources, sinks)


def _behind(nodes: Sequence[Node], stored: set[Node]) -> set[Node]:
    """List the operators that stay: what something reads, up to what is stored."""
    found: set[Node] = set()
    for node in reversed(nodes):
        is_read = bool(node.read_by) or any(reader in found for reader in node.readers)
        if node.const is None and node not in stored and is_read:
            found.add(node)
    return found


def _is_worth_it(node: Node, behind: set[Node]) -> bool:
    """Whether computing a result in every run takes longer than reading it."""
    chain, queue = {node: None}, [node]
    for each in queue:
        for operand in each.operands:
            if operand in behind and operand not in chain:
                chain[operand] = None
                queue.append(operand)
    operators = {each.operator for each in chain}
    sources = [o for each in chain for o in each.operands if o not in behind]
    if operators <= _MOVES and "permute_dims" in operators:
        return _is_cpu() and all(name.startswith(_PRODUCTS) for name in node.read_by)
    if node.nbytes > LARGEST_COPY:
        return False
    if operators & _SUMS or (not operators <= _FREE and all(map(_has_one_value, sources))):
        return True
    if any(name.startswith(_PRODUCTS[1]) for name in node.read_by):  # packed when it is compiled
        is_float = node.call is not None and "float" in str(node.call.ty.dtype)
        return is_float and (not operators <= _FREE or "astype" in operators)
    if operators & _GATHERS:
        return not any(name.startswith(_PRODUCTS) for name in node.read_by)
    # Positions and masks: tables made of rows of numbers. Weights in another type are none.
    return not operators <= _FREE and all(8 * _elements(s) <= _elements(node) for s in sources)


def _joins_planes(node: Node) -> bool:
    """Whether an operator joins the bits of packed numbers that lie in several tensors of bytes.

    Kernels of a CPU multiply bytes of one tensor; of several they would unpack every number alone.
    """
    if node.operator != "add" or _is_small(node) or node.call is None:
        return False
    planes, queue = set(), list(node.operands)
    for each in queue:
        queue += each.operands
        if not each.operands and _elements(each) > 1:
            planes.add(each)
    return len(planes) > 1 and str(node.call.ty.dtype) == "uint8"


def _is_cpu() -> bool:
    """Whether kernels are for a CPU, where a product reads the rows of its right operand.

    GPUs' products read either order; for a CPU the operand would be transposed in every run.
    """
    target = Target.current(allow_none=True)
    return target is not None and str(target.kind.name) == "llvm"


def _has_one_value(node: Node) -> bool:
    """Whether all elements of a constant are equal: of a mask that hides nothing, for instance.

    Then results of it are as well, and what reads a zero or a one may need no operand at all.
    """
    if node.const is None or node.nbytes > LARGEST_COPY:
        return False
    array = node.const.value.numpy().reshape(-1)
    return bool(array.size) and bool((array == array[0]).all())


def _elements(node: Node) -> int:
    expr = node.call if node.const is None else node.const
    return math.prod(int(extent) for extent in expr.ty.shape) if expr is not None else 0
