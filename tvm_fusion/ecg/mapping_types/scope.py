"""What surrounds a statement: its iterators, the values bound to names, and its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tvm import ir, s_tir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from ...core.tir.loops import substitute
from .inverse import is_int
from .loads import Unreadable, variables_of


@dataclass(frozen=True)
class Iterator:
    """A loop or a block iterator."""

    range: ir.Range  # the values that it takes
    is_reduction: bool = False  # whether it is declared as the iterator of a commutative reduction
    of_block: bool = False  # whether it belongs to a block


@dataclass
class Scope:
    """Surroundings of a statement."""

    # Innermost last. Inside a block with iterators of its own those stand for the loops.
    iterators: dict[ir.Var, Iterator] = field(default_factory=dict)
    # The loops that block iterators stand for.
    outside: dict[ir.Var, Iterator] = field(default_factory=dict)
    # Values of the names bound so far, fully expanded.
    bound: dict[ir.Var, ir.Expr] = field(default_factory=dict)
    conditions: tuple[ir.Expr, ...] = ()  # conditions of the enclosing branches

    def resolve(self, expr: ir.Expr) -> ir.Expr:
        """Expand bound names."""
        return substitute(expr, self.bound)

    def inner(self, iterators: Mapping[ir.Var, Iterator] | None = None) -> Scope:
        """Open a scope with more iterators; what is bound there does not reach out of it."""
        return replace(
            self, iterators={**self.iterators, **(iterators or {})}, bound=dict(self.bound)
        )

    def under(self, condition: ir.Expr) -> Scope:
        """Open the scope of a branch."""
        return replace(self.inner(), conditions=(*self.conditions, condition))

    def of_block(self, realize: s_tir.SBlockRealize) -> Scope:
        """Open a block's scope.

        Raises
        ------
        Unreadable
            If the loops are not known to run over the whole domain of the block.
        """
        block = realize.block
        if block.match_buffers:
            region = block.match_buffers[0].source.source.name
            raise Unreadable(f"uses a region of {region} as a buffer of its own")
        if not block.iter_vars:
            return self.inner()
        self._check_domain(realize)
        own = {
            iter_var.var: Iterator(
                iter_var.dom, iter_var.iter_type == tirx.IterVar.CommReduce, of_block=True
            )
            for iter_var in block.iter_vars
        }
        outer = {var: it for var, it in self.iterators.items() if it.of_block}
        loops = {var: it for var, it in self.iterators.items() if not it.of_block}
        return replace(self.inner(), iterators={**outer, **own}, outside={**self.outside, **loops})

    def spatial(self) -> Scope:
        """Open the scope of a block's initialisation, which no reduction iterator repeats."""
        kept = {var: it for var, it in self.iterators.items() if not it.is_reduction}
        return replace(self.inner(), iterators=kept)

    def visible_in(self, exprs: Iterable[ir.Expr]) -> dict[ir.Var, Iterator]:
        """Return the iterators, and of the loops outside a block those that `exprs` name."""
        named = variables_of(*exprs)
        loops = {var: it for var, it in self.outside.items() if var in named}
        return {**loops, **self.iterators}

    def _check_domain(self, realize: s_tir.SBlockRealize) -> None:
        # Only the values that are not simply a loop of the same range need an analysis.
        loops = {var: it.range for var, it in self.iterators.items()}
        direct: set[ir.Var] = set()
        rest: list[tuple[ir.Expr, ir.Range]] = []
        for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if is_int(iter_var.dom.extent, 1):
                continue
            if value in loops and value not in direct and _same_range(loops[value], iter_var.dom):
                direct.add(value)
            else:
                rest.append((self.resolve(value), iter_var.dom))
        if rest and not self._run_over(rest, loops, direct, realize.predicate):
            raise Unreadable(
                f"binds the iterators of block {realize.block.name_hint} to loops in a way that is "
                "not known to reach their whole domain"
            )

    def _run_over(
        self,
        values: list[tuple[ir.Expr, ir.Range]],
        loops: Mapping[ir.Var, ir.Range],
        taken: set[ir.Var],
        predicate: ir.Expr,
    ) -> bool:
        exprs = [value for value, _ in values]
        used = {var: loops[var] for var in variables_of(*exprs) if var in loops}
        if set(used) & taken:
            return False
        result = sym.detect_iter_map(exprs, used, predicate, IterMapLevel.Surjective)
        analyzer = sym.Analyzer()
        for total, (_, domain) in zip(result.indices, values, strict=False):
            if not all(is_int(split.scale) for split in total.args):
                return False
            last = total.base
            for split in total.args:
                last = last + (split.extent - 1) * split.scale
            smallest = min((split.scale.value for split in total.args), default=1)
            if smallest != 1 or not (
                analyzer.can_prove_equal(total.base, domain.min)
                and analyzer.can_prove_equal(last, domain.min + domain.extent - 1)
            ):
                return False
        return bool(result.indices)


def _same_range(first: ir.Range, second: ir.Range) -> bool:
    analyzer = sym.Analyzer()
    return analyzer.can_prove_equal(first.min, second.min) and analyzer.can_prove_equal(
        first.extent, second.extent
    )
