"""What a pass would do at one place, priced by the planner in the surroundings of the place."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir import GenericConst
from tvm.ir.transform import Pass
from tvm.target import Target

from ...core.decisions import Decision, record, recording
from ...core.names.source import names_of, sources_of
from ...errors import UserError
from ...frontend.normalize.engine import op_name
from ...fusion.estimate import Estimator, RegionCost
from ..egraph.changes import Gain, noting
from ..egraph.facts.weights import REDUCTIONS

MOST = (12, 32)  # operators in front of a place and behind it: planning takes its time
_SMALL = 16  # elements of a constant that tell places apart

_ANCHORS = frozenset(
    f"relax.{name}"
    for name in (
        *("matmul", "einsum", "nn.attention", "nn.layer_norm", "nn.rms_norm", "nn.group_norm"),
        *("nn.softmax", "nn.log_softmax", *REDUCTIONS),
    )
)


@dataclass(frozen=True)
class Surroundings:
    """Operators around some bindings, up to the next products and reductions, with these."""

    mod: tvm.IRModule  # them as the function ``main``
    site: tuple[relax.Var, ...]  # what stands for the variables of the place there
    key: Hashable  # equal for places that differ in the elements of large constants at most


class Dataflow:
    """The bindings of a dataflow block, by the hashes of their variables.

    Attributes
    ----------
    bindings : dict of int to Binding
        In order.
    readers : dict of int to list of int
        Which bindings read a variable.
    members : set of int
        Those that can be cut out.
    of_constants : set of int
        Those that are computed of constants alone, such as weights of few bits.
    """

    def __init__(self, block: relax.DataflowBlock) -> None:
        self.bindings = {hash(b.var): b for b in block.bindings}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for reader, binding in self.bindings.items():
            for var in _before(binding):
                self.readers[var].append(reader)
        # A tuple of results joins what has nothing to do with each other: all layers' caches.
        self.members = {
            var
            for var, b in self.bindings.items()
            if _is_plain(b) and (self.readers[var] or not isinstance(b.value, relax.Tuple))
        }
        self.of_constants: set[int] = set()
        for var, binding in self.bindings.items():
            if var in self.members and self.of_constants.issuperset(_before(binding)):
                self.of_constants.add(var)


class Blocks:
    """Dataflow blocks of functions in which places are looked at: each is read once."""

    def __init__(self) -> None:
        self._known: dict[relax.DataflowBlock, Dataflow] = {}

    def of(self, func: relax.Function) -> Iterator[Dataflow]:
        """Yield those of a function."""
        for block in func.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                if block not in self._known:
                    self._known[block] = Dataflow(block)
                yield self._known[block]


def surroundings(
    func: relax.Function, site: Sequence[relax.Var], blocks: Blocks | None = None
) -> Surroundings | None:
    """Cut out what is around a place; None where it is not in one dataflow block.

    Parameters
    ----------
    site
        What is computed there.
    blocks
        Those that were read before.
    """
    wanted = {hash(var) for var in site}
    for flow in (blocks or Blocks()).of(func):
        if wanted <= flow.members:
            return _cut(flow, site)
    return None


def is_anchor(value: Any) -> bool:
    """Whether a value is a product, a convolution or a reduction, whose kernel others join."""
    name = op_name(value)
    return name in _ANCHORS or name.startswith("relax.nn.conv") or "_pool" in name


def _is_plain(binding: relax.Binding) -> bool:
    value = binding.value
    if isinstance(value, relax.Call):
        return isinstance(binding, relax.VarBinding) and isinstance(value.op, ir.Op)
    return isinstance(value, relax.Tuple | relax.TupleGetItem)


def _cut(flow: Dataflow, site: Sequence[relax.Var]) -> Surroundings:
    bindings, readers, members = flow.bindings, flow.readers, flow.members
    followed = members - flow.of_constants
    kept = dict.fromkeys(map(hash, site))
    # A copy reads what products compute: what these read may be its pieces.
    back = 1 if all(is_anchor(bindings[v].value) for v in kept) else 2
    ways = ((back, _before), (1, lambda b: readers[hash(b.var)]))
    for most, (passed, follow) in zip(MOST, ways, strict=True):
        most += len(kept)
        frontier = deque((var, passed) for var in map(hash, site))
        while frontier and len(kept) < most:
            var, left = frontier.popleft()
            for other in follow(bindings[var]):
                rest = left - (other in members and is_anchor(bindings[other].value))
                if other in followed and other not in kept:
                    kept[other] = None
                    if rest > 0:
                        frontier.append((other, rest))
    computed = _constants_before(flow, kept)
    inside = [b for var, b in bindings.items() if var in kept or var in computed]
    leaving = {v for v in kept if any(r not in kept for r in readers[v])}
    leaving |= {hash(b.var) for b in inside if not isinstance(b.var, relax.DataflowVar)}
    leaving |= {v for v in kept if not readers[v]}
    return _function(inside, leaving, site)


def _constants_before(flow: Dataflow, kept: Iterable[int]) -> set[int]:
    """Find what is computed of constants alone for some bindings, however much that is."""
    found: set[int] = set()
    rest = list(kept)
    while rest:
        new = flow.of_constants.intersection(_before(flow.bindings[rest.pop()])) - found
        found |= new
        rest += new
    return found


def _before(binding: relax.VarBinding) -> list[int]:
    return [hash(v) for v in relax.analysis.free_vars(binding.value)]


def _function(
    inside: list[relax.VarBinding], leaving: set[int], site: Sequence[relax.Var]
) -> Surroundings:
    """Write bindings as a function; what is read and not bound among them are its parameters."""
    new: dict[int, relax.Var] = {}
    for binding in inside:
        var = binding.var
        make = relax.Var if hash(var) in leaving else relax.DataflowVar
        new[hash(var)] = make(var.name, var.ty)
    params: list[relax.Var] = []
    for binding in inside:
        for var in relax.analysis.free_vars(binding.value):
            if hash(var) not in new:
                new[hash(var)] = relax.Var(var.name, var.ty)
                params.append(new[hash(var)])
    symbols = {s for p in params for s in relax.analysis.free_symbolic_vars(p)}
    if symbols:  # which no parameter need have as an extent
        params.append(relax.Var("extents", relax.ShapeType(sorted(symbols, key=str))))
    values = [_mapped(b.value, relax.Var, lambda v: new.get(hash(v), v)) for b in inside]
    bound = [new[hash(b.var)] for b in inside]

    def module(params: list[relax.Var], values: Sequence[relax.Expr]) -> tvm.IRModule:
        made = list(map(relax.VarBinding, bound, values))
        results = [new[hash(b.var)] for b in inside if hash(b.var) in leaving]
        body = relax.SeqExpr([relax.DataflowBlock(made)], relax.Tuple(results))
        func = relax.Function(params, body, relax.TupleType([v.ty for v in results]))
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        return relax.transform.Normalize()(mod)

    large: dict[int, relax.Var] = {}
    alike = [_mapped(v, GenericConst, lambda c: _aside(c, large)) for v in values]
    key = tvm_ffi.structural_hash(module([*params, *large.values()], alike)["main"], True)
    places = [i for i, b in enumerate(inside) if b.var in site]
    site = [new[hash(v)] for v in site]
    return Surroundings(module(params, values), tuple(site), (key, *places))


def _mapped(expr: relax.Expr, kind: type, change: Callable[[Any], Any]) -> relax.Expr:
    return tvm_ffi.structural_map(expr, (kind, change), order="post")


def _aside(const: GenericConst, large: dict[int, relax.Var]) -> relax.Expr:
    """Put a variable in the place of a constant of many elements, the same one for the same."""
    if not hasattr(const.value, "shape") or prod(const.value.shape) <= _SMALL:
        return const
    return large.setdefault(hash(const), relax.Var("constant", const.ty))


@dataclass(frozen=True)
class Choice:
    """Whether a pass shall rewrite a place, and what that saves if a planner was asked."""

    is_taken: bool
    gain: Gain | None = None

    @property
    def us(self) -> float:
        """Microseconds that it saves; 0 where no planner was asked."""
        return 0.0 if self.gain is None else self.gain.us


#: Takes a function and the variables of a place in it that a pass can rewrite.
Choose: TypeAlias = Callable[[relax.Function, Sequence[relax.Var]], Choice]


def always(_func: relax.Function, _site: Sequence[relax.Var]) -> Choice:
    """Rewrite every place: what a pass does in a pipeline of the user's."""
    return Choice(True)


class Judge:
    """Lets passes rewrite the places where the planner finds the result cheaper.

    Places with equal surroundings are priced once. A place that does not pay alone is priced with
    all others in its surroundings, too.

    Parameters
    ----------
    target
        What kernels are for.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._estimator = Estimator(target)
        self._blocks = Blocks()
        self._known: dict[Hashable, tuple[RegionCost, RegionCost]] = {}

    def ways(self, make: Callable[[Choose], Pass]) -> Iterator[Pass]:
        """Yield passes that rewrite where it pays, and everywhere if that is not the same.

        Parameters
        ----------
        make
            Makes the pass that asks what it is given about every place.
        """
        is_refused = False

        def choose(func: relax.Function, site: Sequence[relax.Var]) -> Choice:
            found = self._price(make, func, site)
            if found is None:
                return Choice(True)
            before, after = found
            if after.saves(before):
                return Choice(True, Gain.between(before, after))
            nonlocal is_refused
            is_refused = True
            self._refuse(make, site, before, after)
            return Choice(False, Gain.between(before, after))

        yield make(choose)
        if is_refused:  # what does not pay alone may in the module
            yield make(always)

    def _price(
        self, make: Callable[[Choose], Pass], func: relax.Function, site: Sequence[relax.Var]
    ) -> tuple[RegionCost, RegionCost] | None:
        """Price surroundings before and after; None where they cannot be cut out or planned."""
        around = surroundings(func, site, self._blocks)
        if around is None:
            return None
        key = make, around.key
        if key not in self._known:
            places, has_others = set(map(hash, around.site)), False

            def only(_func: relax.Function, other: Sequence[relax.Var]) -> Choice:
                nonlocal has_others
                is_own = set(map(hash, other)) <= places
                has_others |= not is_own
                return Choice(is_own)

            try:
                before, after = self._cost(around.mod), self._cost(around.mod, make(only))
                if has_others:
                    after = min(after, self._cost(around.mod, make(always)))
            except UserError:
                return None
            self._known[key] = before, after
        return self._known[key]

    def _cost(self, mod: tvm.IRModule, change: Pass | None = None) -> RegionCost:
        """Plan a module, after a change of it."""
        if change is not None:
            with self._target, recording(), noting():
                mod = change(mod)
        return self._estimator.module(mod)

    @staticmethod
    def _refuse(
        make: Callable[[Choose], Pass],
        site: Sequence[relax.Var],
        before: RegionCost,
        after: RegionCost,
    ) -> None:
        sentence = (
            f"{make.__name__} would take {after.us:.1f} us and {after.kernels} kernels here, "
            f"instead of {before.us:.1f} us and {before.kernels}."
        )
        title = ", ".join(var.name for var in site)
        names = names_of(source for var in site for source in sources_of(var))
        record(Decision(title, "", "refused", "not_cheaper", sentence, producer_names=names))
