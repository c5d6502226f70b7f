"""The search for cheaper equivalent graphs, region by region, with the planner's own cost."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import tvm
from tvm import relax
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from ...core.current_target import current_target
from ...core.decisions import Decision, record
from ...core.flags import REASSOCIATE
from ...core.names.source import joined, names_of, sources_of
from ...core.progress import steps
from ...core.untouched import is_rewritable
from ...fusion.estimate import Estimator, RegionCost
from ..egraph.changes import Gain, is_noting, note, note_uses
from ..egraph.emit import Emitter, function_of
from ..egraph.extract import extract
from ..egraph.facts.weights import outline, total
from ..egraph.graph import EGraph
from ..egraph.head import Heads
from ..egraph.law import Law
from ..egraph.pattern import operators_in
from ..egraph.regions import Region, regions
from ..egraph.saturate import Limits, Use, saturate
from ..egraph.terms import Numbering, Term, structure, subterms
from ..nonfinite import NONE, NonFinite
from ..readers import Readers
from .attribution import Account, Accountant, change_of, variable_of

PLANNED = 72  # operators, in all forms of a region together: planning takes its time
HEAVIER = 1  # how many forms with more work than the region has the planner is asked about


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    # Outputs of the region; the same object if nothing is cheaper.
    before: tuple[Term, ...]
    after: tuple[Term, ...]
    # By the planner, who is not asked where there is one form only.
    cost_before: RegionCost | None = None
    cost_after: RegionCost | None = None
    laws: tuple[str, ...] = ()  # that wrote the new form
    limit: str | None = None  # which limit ended the search

    @property
    def gain_us(self) -> float:
        """Microseconds that the new form saves."""
        if self.cost_before is None or self.cost_after is None:
            return 0.0
        return self.cost_before.us - self.cost_after.us


@lru_cache(maxsize=1024)
def _operators(law: Law) -> frozenset[str]:
    """Name the operators of a law's left side."""
    return frozenset(operators_in(law.before))


class Searcher:
    """Searches regions; equal ones once.

    Parameters
    ----------
    target
        What the planner makes kernels for.
    """

    def __init__(self, laws: Sequence[Law], target: Target, limits: Limits | None = None) -> None:
        self.heads = Heads()
        self.uses: dict[str, Use] = {}
        self.operators = frozenset[str]().union(*map(_operators, laws))
        self._laws = laws
        self._is_careful = not any(law.needs == REASSOCIATE for law in laws)
        self._limits = limits or Limits()
        self._estimator = Estimator(target)
        self._known: dict[Hashable, Found] = {}
        self._costs: dict[Hashable, RegionCost] = {}
        self._structures = Numbering(structure)
        self._outlines = Numbering(outline)
        self._accounts: dict[int, Account] = {}

    def search(self, region: Region, told: Mapping[int, NonFinite] | None = None) -> Found:
        """Find the cheapest form of a region.

        Parameters
        ----------
        told
            Which non-finite values of the function's variables are told from numbers.
        """
        before = region.terms(self.heads)
        seen = told if told is not None and self._is_careful else {}
        kinds = tuple(seen.get(hash(var), NONE) for var in region.outputs) if seen else ()
        key = self._form_key(before), kinds
        if key not in self._known:
            self._known[key] = self._search(region, before, kinds)
        found = self._known[key]
        for name in found.laws:
            use = self.uses[name]
            use.chosen += 1
            use.gain_us += found.gain_us / len(found.laws)
        return found

    def account(self, found: Found) -> Account:
        """Say what a search changed, and by which laws."""
        if id(found) not in self._accounts:
            accountant = Accountant(self.heads, self._laws, self._limits)
            self._accounts[id(found)] = accountant.account(found.before, found.after, found.laws)
        return self._accounts[id(found)]

    def _search(
        self, region: Region, before: tuple[Term, ...], told: tuple[NonFinite, ...]
    ) -> Found:
        graph = EGraph(self.heads)
        roots = graph.add_terms(before)
        if told:
            graph.read_from(roots, told)
        limit = saturate(graph, self._laws, self._limits, self.uses)
        found = Found(before, before, limit=limit)
        outlines = {self._outline(before)}
        most, heavier = total(before) * (1 + 1e-9), 0
        forms = []
        wanted = max(1, min(self._limits.forms, PLANNED // len(region.bindings)))
        for form in extract(graph, roots, wanted):
            work = self._outline(form.terms)
            if work in outlines:
                continue
            outlines.add(work)
            heavier += form.cost > most
            if heavier <= HEAVIER:
                forms.append(form.terms)
        if not forms:
            return found
        cost = best = self._estimate(before, region)
        for terms in forms:
            estimated = self._estimate(terms, region)
            if estimated < best and estimated.saves(cost):
                best = estimated
                laws = {t.law for t in subterms(terms) if t.law}
                found = replace(found, after=terms, laws=tuple(sorted(laws)))
        return replace(found, cost_before=cost, cost_after=best)

    def _form_key(self, terms: tuple[Term, ...]) -> Hashable:
        """Tell forms apart; one that computes ``a + b`` and ``b + a`` computes more."""
        return self._structures.of(terms), sum(1 for _ in subterms(terms))

    def _outline(self, terms: tuple[Term, ...]) -> Hashable:
        """Tell forms apart that the planner may find a difference in."""
        operators = sum(term.head.call is not None for term in subterms(terms))
        return self._outlines.of(terms), operators

    def _estimate(self, terms: tuple[Term, ...], region: Region) -> RegionCost:
        key = self._form_key(terms)
        if key not in self._costs:
            func, constants = function_of(terms, region, self.heads)
            self._costs[key] = self._estimator.estimate(func, constants)
        return self._costs[key]


@tvm.transform.module_pass(opt_level=0, name="SearchEquivalents")
class SearchEquivalents:
    """Replace regions by equal ones that the planner finds cheaper.

    Parameters
    ----------
    laws : sequence of Law, optional
        All that hold without a flag, by default.

    Raises
    ------
    UserError
        If there is no current target.

    Examples
    --------
    >>> from tvm_fusion.rewrite.laws import allowed
    >>> mod = module(lambda x, y, z: x * z + y * z, (8,), (8,), (8,))
    >>> with cpu:
    ...     calls(SearchEquivalents(allowed(["reassociate"]))(mod))
    ['relax.add', 'relax.multiply']
    """

    def __init__(self, laws: Sequence[Law] | None = None, limits: Limits | None = None) -> None:
        self._laws = laws
        self._limits = limits

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Search in every rewritable function; each changed region is recorded."""
        from ..rules import laws

        chosen = laws() if self._laws is None else self._laws
        searcher = Searcher(chosen, current_target("SearchEquivalents"), self._limits)
        return rewrite_regions(mod, searcher)


def rewrite_regions(mod: tvm.IRModule, searcher: Searcher) -> tvm.IRModule:
    """Replace regions of every rewritable function by what a searcher finds for them."""
    result, readers = mod, Readers(mod)
    for gvar, func in mod.functions.items():
        if not is_rewritable(func):
            continue
        told = readers.of(gvar.name_hint, func)
        found = {}
        for block in func.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                for region in steps(
                    "rewriting, searching regions", regions(block, searcher.operators)
                ):
                    best = searcher.search(region, told)
                    if best.after is not best.before:
                        found[region] = best
                        _record(gvar.name_hint, region, best, searcher)
        if found:
            result = mod.clone() if result is mod else result
            new = _Rewriter(mod, found, searcher).visit_expr(func)
            result[gvar] = relax.analysis.remove_all_unused(new)
    note_uses(searcher.uses)
    return result


def _record(function: str, region: Region, found: Found, searcher: Searcher) -> None:
    before, after = found.cost_before, found.cost_after
    if before is None or after is None:
        return
    record(
        Decision(
            region.outputs[-1].name,
            "",
            "accepted",
            "rewritten",
            f"Rewritten by {', '.join(found.laws) or 'equal expressions'}:"
            f" {before.us:.1f} to {after.us:.1f} us.",
            bytes_saved=before.bytes - after.bytes,
            producer_names=names_of(joined(sources_of(b.var) for b in region.bindings)),
        )
    )
    if is_noting():
        account = searcher.account(found)
        gain = Gain.between(before, after)
        note(change_of(function, variable_of(region, account.place, searcher.heads), account, gain))


@mutator
class _Rewriter(PyExprMutator):
    """Writes new forms where the old outputs are bound."""

    def __init__(self, mod: tvm.IRModule, found: dict[Region, Found], searcher: Searcher) -> None:
        super().__init__(mod)
        self._emitters: dict[int, tuple[Emitter, Term]] = {}
        for region, best in found.items():
            heads = region.heads(searcher.heads)
            leaves = dict(zip(heads, region.leaves, strict=True))
            emitter = Emitter(self.builder_, leaves, searcher.heads.values, self.visit_expr)
            for var, term in zip(region.outputs, best.after, strict=True):
                self._emitters[hash(var)] = emitter, term

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        known = self._emitters.get(hash(binding.var))
        if known is None:
            super().visit_var_binding_(binding)
            return
        emitter, term = known
        value = emitter.emit(term)
        if isinstance(value, relax.DataflowVar) and isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, value)
            return
        self.builder_.emit_normalized(relax.VarBinding(binding.var, value))
