"""E-graphs over Relax operators: classes of expressions that are equal under the laws.

Willsey et al., "egg: Fast and Extensible Equality Saturation" (POPL 2021): nodes are shared,
merging two classes is deferred until :meth:`EGraph.rebuild` finds the nodes that became equal.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from ...core.constants.numpy_types import numpy_dtype
from ...ecg.properties import properties_of
from ..nonfinite import NONE, NonFinite, asked
from .analysis import (
    ANY,
    CHOOSES,
    FILLS,
    Analysis,
    Bounds,
    EClass,
    Node,
    bounds_of,
    bounds_of_value,
    is_in_range,
    is_static,
)
from .head import Head, Heads
from .terms import Term, subterms


class EGraph:
    """Classes of equal expressions, grown by laws.

    Attributes
    ----------
    classes : dict of int to EClass
        By canonical number.
    heads
        Of all nodes.
    """

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.classes: dict[int, EClass] = {}
        self._parent: list[int] = []
        self._known: dict[Node, int] = {}
        self._stale: list[int] = []
        self._analysis = Analysis()
        self._results: dict[int, NonFinite] = {}
        self._told: dict[int, NonFinite] | None = None
        self._given: set[int] = set()

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self._known)

    # Classes -------------------------------------------------------------------------------------

    def find(self, number: int) -> int:
        """Return the canonical number of a class."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def __getitem__(self, number: int) -> EClass:
        return self.classes[self.find(number)]

    def uniform(self, number: int) -> float | None:
        """Return the value that all elements have; None where they differ, or are not known."""
        known = self[number]
        low, high = known.bounds
        # ``x * 0`` has the bounds of 0, and is NaN for an infinite x.
        is_sure = "float" not in str(known.type.dtype) or self._is_filled(number)
        return low if low == high and is_sure else None

    # Readers -------------------------------------------------------------------------------------

    def read_from(self, roots: Sequence[int], told: Sequence[NonFinite]) -> None:
        """Say which non-finite values of the results are told from numbers, outside."""
        self._results, self._told = {}, None
        for root, kinds in zip(roots, told, strict=True):
            self._results[root] = self._results.get(root, NONE) | kinds
        self._given = set(self.classes)

    def told(self, number: int) -> NonFinite:
        """Return which non-finite values of a class some operator tells from numbers."""
        if not self._results:
            return NONE
        if self._told is None:
            self._told = told_apart(self, self._results)
        return self._told.get(number, NONE) | self._told.get(self.find(number), NONE)

    def is_given(self, number: int) -> bool:
        """Whether a class is of an expression that was there before any law."""
        return any(self.find(given) == self.find(number) for given in self._given)

    # Growing -------------------------------------------------------------------------------------

    def add_terms(self, terms: Sequence[Term]) -> list[int]:
        """Add expressions; returns their classes."""
        numbers: dict[int, int] = {}
        for term in subterms(terms):
            if term.head.call is None:
                number = self._leaf(term)
            else:
                found = self.add(term.head, [numbers[id(o)] for o in term.operands])
                if found is None:
                    raise RuntimeError(f"{term.head.name} has no type")
                number = found
            numbers[id(term)] = number
        return [self.find(numbers[id(term)]) for term in terms]

    def lookup(self, terms: Sequence[Term]) -> list[int | None]:
        """Find the classes of expressions, adding nothing; None for one that is not there."""
        numbers: dict[int, int | None] = {}
        for term in subterms(terms):
            operands = [numbers[id(o)] for o in term.operands]
            known = [o for o in operands if o is not None]
            if len(known) < len(operands):
                numbers[id(term)] = None
                continue
            number = self._known.get(self._canonical(Node(term.head, tuple(known))))
            numbers[id(term)] = None if number is None else self.find(number)
        return [numbers[id(term)] for term in terms]

    def add(self, head: Head, operands: Sequence[int], law: str = "") -> int | None:
        """Add a node; None where the operator does not take operands of these types."""
        node = self._canonical(Node(head, tuple(operands)))
        if node in self._known:
            return self.find(self._known[node])
        children = [self[o] for o in node.operands]
        ty = self._analysis.infer(head, [c.type for c in children])
        if ty is None:
            return None
        is_constant = is_static(ty) and all(c.is_constant for c in children)
        value = self._analysis.evaluate(head, ty, children) if is_constant else None
        if law and value is not None and not is_in_range(head, value, children):
            return None  # not what the model says: by a law, all of it could be proved zero
        bounds = self._bounds(node, ty) if value is None else bounds_of_value(value)
        number = self._new(node, EClass(ty, is_constant, value, bounds), law)
        if value is not None:
            self.union(number, self.constant(value, str(ty.dtype)))
        return self.find(number)

    def call(self, make: Callable[..., relax.Call], *operands: int, law: str = "") -> int | None:
        """Add what a function of ``relax.op`` makes of classes; None if types do not fit.

        Parameters
        ----------
        make
            Takes as many tensors as there are classes; returns a call.
        """
        try:
            call = make(*(self.variable(o) for o in operands))
        except (tvm.error.InternalError, ValueError, TypeError):
            return None
        return self.add(self.heads.of(call), operands, law)

    def constant(self, value: object, dtype: str) -> int:
        """Add a small constant."""
        array = np.asarray(value).astype(numpy_dtype(dtype))
        head = self.heads.value(array, dtype)
        node = Node(head, ())
        if node not in self._known:
            ty = self._analysis.intern(self.heads.values[head].ty)
            self._new(node, EClass(ty, True, array, bounds_of_value(array)), "")
        return self.find(self._known[node])

    def full(self, value: object, ty: relax.TensorType) -> int | None:
        """Add a tensor of a type, all elements of which are one number."""
        fill = self.constant(value, str(ty.dtype))
        return self.call(lambda x: relax.op.full(ty.shape, x), fill) if ty.ndim else fill

    def union(self, first: int, second: int) -> bool:
        """Make two classes one; whether they were two."""
        first, second = self.find(first), self.find(second)
        if first == second:
            return False
        kept, gone = min(first, second), max(first, second)
        a, b = self.classes[kept], self.classes.pop(gone)
        self._parent[gone] = kept
        if self._told is not None:
            self._told[kept] = self._told.get(kept, NONE) | self._told.get(gone, NONE)
        a.is_constant = a.is_constant or b.is_constant
        if a.value is None:
            a.bounds = b.bounds if b.value is not None else a.bounds.hull(b.bounds)
            a.value = b.value
        for node, law in b.nodes.items():
            a.nodes.setdefault(node, law)
        a.parents.update(b.parents)
        self._stale.append(kept)
        return True

    def equate(self, left: int, right: int) -> bool:
        """Make two classes one by a law; whether they were two.

        The left side may be defined for fewer inputs than the right one: ``exp(log(x))`` is
        positive, but ``x`` need not be. So what is known of the right side is what holds of both.
        """
        bounds = self[right].bounds
        changed = self.union(left, right)
        if changed:
            self[right].bounds = bounds
        return changed

    def rebuild(self) -> None:
        """Merge what became equal because operands did."""
        self._told = None
        while self._stale:
            stale = dict.fromkeys(self.find(number) for number in self._stale)
            self._stale.clear()
            for number in stale:
                self._repair(self.find(number))

    def variable(self, number: int) -> relax.Var:
        """Return a variable of a class's type."""
        return self._analysis.variable(self[number].type)

    # Inside --------------------------------------------------------------------------------------

    def _leaf(self, term: Term) -> int:
        node = Node(term.head, ())
        if node in self._known:
            return self.find(self._known[node])
        known = self.heads.values.get(term.head)
        value = None if known is None else known.value.numpy()
        is_constant = term.head.key[0] != "input"
        bounds = ANY if value is None else bounds_of_value(value)
        ty = self._analysis.intern(term.type)
        return self._new(node, EClass(ty, is_constant, value, bounds), "")

    def _new(self, node: Node, fresh: EClass, law: str) -> int:
        number = len(self._parent)
        self._parent.append(number)
        self.classes[number] = fresh
        fresh.nodes[node] = law
        self._known[node] = number
        for operand in dict.fromkeys(node.operands):
            self.classes[operand].parents[node] = number
        return number

    def _canonical(self, node: Node) -> Node:
        operands = tuple(map(self.find, node.operands))
        if len(operands) == 2 and properties_of(node.head.name).commutative:
            operands = (min(operands), max(operands))
        return Node(node.head, operands)

    def _repair(self, number: int) -> None:
        parents = self.classes[number].parents
        self.classes[number].parents = {}
        for node, owner in parents.items():
            self._known.pop(node, None)
            law = self[owner].nodes.pop(node, "")
            canonical, owner = self._canonical(node), self.find(owner)
            known = self._known.get(canonical)
            if known is not None:
                self.union(owner, known)
            owner = self.find(owner)
            self._known[canonical] = owner
            self.classes[owner].nodes.setdefault(canonical, law)
            for operand in dict.fromkeys(canonical.operands):
                self[operand].parents[canonical] = owner
            self._learn(canonical, owner)

    def _is_filled(self, number: int, depth: int = 4) -> bool:
        """Whether a class is filled with a number, or moves what is, in one of its forms."""
        known = self[number]
        if known.value is not None:
            return True
        return depth > 0 and any(
            node.head.name in FILLS
            or (
                node.head.name in CHOOSES
                and all(self._is_filled(o, depth - 1) for o in node.operands)
            )
            for node in known.nodes
        )

    def _learn(self, node: Node, owner: int) -> None:
        """Pass on what has become known of operands."""
        known = self.classes[owner]
        children = [self[o] for o in node.operands]
        if not known.is_constant and all(c.is_constant for c in children):
            value = None
            if is_static(known.type):
                value = self._analysis.evaluate(node.head, known.type, children)
            if value is not None and not is_in_range(node.head, value, children):
                return
            known.is_constant = is_static(known.type)
            if value is not None:
                self.equate(owner, self.constant(value, str(known.type.dtype)))
            else:
                self._stale.append(owner)
        elif len(known.nodes) == 1:  # others may be defined for more inputs
            bounds = self._bounds(node, known.type)
            if bounds != known.bounds:
                known.bounds = bounds
                self._stale.append(owner)

    def _bounds(self, node: Node, ty: relax.TensorType) -> Bounds:
        return bounds_of(node.head, ty, [(o, self[o].bounds) for o in node.operands])


# Which non-finite values of the classes of an e-graph are told from numbers.
def told_apart(graph: EGraph, results: Mapping[int, NonFinite]) -> dict[int, NonFinite]:
    """Follow the results down to all that they are computed from, in any of their forms.

    Parameters
    ----------
    graph
        Its classes may be computed from themselves, by way of an equal form.
    results
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
            is_pair = len(node.operands) == 2
            for index, operand in enumerate(node.operands):
                other = graph[node.operands[1 - index]].value if is_pair else None
                tell(operand, asked(call, index, found[number], other))
    return found
