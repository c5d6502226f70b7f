"""Costs of an operator and of its decomposed form, as the planner estimates them."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...frontend.tensor_types import dtype_of
from ...fusion.estimate import Estimator, RegionCost
from ..egraph.emit import Emitter, build_function, function_of, parameters
from ..egraph.head import Head, Heads, is_tensor, operands
from ..egraph.regions import Region
from ..egraph.terms import Numbering, Term, structure
from .matching.extents import known_shape
from .matching.view import View
from .pattern import Match, Pattern, Writer

_MORE_BYTES = 0.01  # for a scale of ones that the operator asks for
# Of the time, where kernels and bytes are the same: for arithmetic that legalization chooses, such
# as a division, or that is counted for every element though it is done once a row.
_SLACK = 0.25


@dataclass(frozen=True)
class Price:
    """Costs of both forms."""

    # Written out; as one operator.
    before: RegionCost
    after: RegionCost
    # Whether templates take the operator, not only the fallback; the pattern's own one if it has
    # one.
    is_claimed: bool
    is_same: bool = False  # whether both forms are one
    refusal: str = ""  # why the nearest templates do not take the operator, where it is not claimed

    @property
    def is_more_expensive(self) -> bool:
        """Whether the operator costs more than its written-out form: kernels and bytes first."""
        before, after = self.before, self.after
        us, us_before = after.comparable(before)
        is_less = after.kernels < before.kernels or after.bytes < before.bytes
        if after.kernels > before.kernels or after.bytes > before.bytes * (1 + _MORE_BYTES):
            return not is_less or us > us_before
        return not is_less and us > us_before * (1 + _SLACK)


class _Written(Region):
    """A region whose constants are told apart by shape: of equal ones, one is priced."""

    def heads(self, heads: Heads) -> list[Head]:
        return [
            heads.value(leaf.value.numpy(), dtype_of(leaf))
            if isinstance(leaf, GenericConst) and not known_shape(leaf)
            else heads.leaf("constant" if isinstance(leaf, GenericConst) else "input", i)
            for i, leaf in enumerate(self.leaves)
        ]


class Pricer:
    """Asks the planner, once for equal forms.

    Parameters
    ----------
    target
        What kernels would be for.
    """

    def __init__(self, target: Target) -> None:
        self._estimator = Estimator(target)
        self._heads = Heads()
        self._structures = Numbering(structure)
        self._known: dict[Hashable, Price] = {}

    def price(
        self,
        pattern: Pattern,
        view: View,
        root: relax.Var,
        found: Match,
        template: str | None = None,
    ) -> Price | None:
        """Compare an operator with its written-out form; None where that is no tensor function.

        Parameters
        ----------
        root
            Where the operator is bound.
        template
            What has to claim it, by default what the pattern says; empty: any one.
        """
        name = pattern.template if template is None else template
        region = _region(view, root, found)
        if region is None:
            return None
        terms = region.terms(self._heads)
        composed, fixed = self._composed(region, terms, root, found)
        own = self._structures.of(terms)
        other = self._key(composed, region)
        key = pattern.name, name, own, other
        if key not in self._known:
            written, constants = function_of(terms, region, self._heads)
            before = self._estimator.estimate(written, constants)
            claims, operators = self._estimator.claims(composed, fixed)
            after = self._estimator.cost(claims, operators)
            used = [claim.template for claim in claims]
            is_claimed = not any(template.is_fallback for template in used)
            if name:
                is_claimed &= name in (template.name for template in used)
            refusal = "" if is_claimed else self._estimator.refusal(claims, name)
            self._known[key] = Price(before, after, is_claimed, own == other, refusal)
        return self._known[key]

    def _key(self, func: relax.Function, region: Region) -> Hashable:
        """Return the key that a region which computes what a function does would have."""
        heads = iter([h for h in region.heads(self._heads) if h not in self._heads.values])
        known = {hash(p): Term(head, (), p.ty) for p, head in zip(func.params, heads, strict=True)}

        def term(expr: Any) -> Term:
            if hash(expr) not in known:
                array = expr.value.numpy()
                known[hash(expr)] = Term(self._heads.value(array, dtype_of(expr)), (), expr.ty)
            return known[hash(expr)]

        for binding in func.body.blocks[0].bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                args = tuple(term(o) for o in operands(value))
                known[hash(binding.var)] = Term(self._heads.of(value), args, value.ty)
            else:
                known[hash(binding.var)] = term(value)
        result = func.body.body
        results = result.fields if isinstance(result, relax.Tuple) else [result]
        return self._structures.of(term(r) for r in results)

    def _composed(
        self, region: Region, terms: tuple[Any, ...], root: relax.Var, found: Match
    ) -> tuple[relax.Function, list[int]]:
        """Write the region with the operator in the root's place."""
        params, fixed = parameters(region, self._heads)
        leaves = zip(region.heads(self._heads), region.leaves, strict=True)
        current = {hash(leaf): params.get(head, leaf) for head, leaf in leaves}

        def write(builder: relax.BlockBuilder, emitter: Emitter) -> list[ir.Expr]:
            writer = Writer(builder)
            return [
                found.build(writer, *(current[hash(o)] for o in found.leaves))
                if hash(var) == hash(root)
                else emitter.emit(term)
                for var, term in zip(region.outputs, terms, strict=True)
            ]

        return build_function(params, self._heads, write), fixed


def _is_given(operand: relax.Var) -> bool:
    """Whether a region can read a variable: a tensor, or a dimension of one."""
    return is_tensor(operand) or isinstance(operand.ty, ir.PrimType)


def _region(view: View, root: relax.Var, found: Match) -> _Written | None:
    bindings = view.between(root, found.leaves)
    inside = {hash(b.var) for b in bindings}
    outputs: list[relax.Var] = []
    leaves: dict[int, Any] = {hash(leaf): leaf for leaf in found.leaves}
    for binding in bindings:
        call = binding.value
        if not isinstance(call, relax.Call) or not is_tensor(binding.var):
            return None
        read = operands(call)
        if any(isinstance(a, relax.Var) and not _is_given(a) for a in call.args):
            return None
        for operand in read:
            if hash(operand) not in inside:
                leaves.setdefault(hash(operand), operand)
        readers = view.readers(binding.var)
        if hash(binding.var) == hash(root) or any(r not in inside for r in readers):
            outputs.append(binding.var)
    return _Written(tuple(bindings), tuple(outputs), tuple(leaves.values()))
