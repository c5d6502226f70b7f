"""DNNFusion's ten published rules follow from the laws.

Niu et al., PLDI 2021, Table 4, with the operations printed there: an operator counts one for each
element of its result, a reduction one for each element that it reads. The left sides are counted as
they are printed, every occurrence for itself; the right sides with what they share once. Our own
count of the result, from TensorIR and with costly divisions and exponentials, must not be above the
printed form's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import tvm
from relax_modules import main_module
from tvm import ir, relax
from tvm.target import Target

from tvm_fusion.ecg.legalization.legalize import Legalize
from tvm_fusion.ecg.work import flops
from tvm_fusion.rewrite.egraph.facts.weights import elements
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Heads, operands
from tvm_fusion.rewrite.egraph.law import FLAGS
from tvm_fusion.rewrite.egraph.saturate import Limits, saturate
from tvm_fusion.rewrite.egraph.terms import Term, subterms
from tvm_fusion.rewrite.laws import allowed
from tvm_fusion.rewrite.search.search import SearchEquivalents

op = relax.op
M, N = 96, 80
MN = M * N
TARGET = Target({"kind": "llvm", "num-cores": 1})


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    # Sides, of as many tensors as they have parameters.
    before: Callable[..., relax.Expr]
    after: Callable[..., relax.Expr]
    counts: tuple[int, int]  # operations printed for them
    flag: str = "reassociate"  # that the laws need; empty if none
    dtype: str = "float32"


def invert(x):
    return op.divide(relax.const(1, "float32"), x)


def total(x):
    return op.sum(x, axis=1, keepdims=True)


TWO = relax.const(2, "int32")
RULES = {
    # 1 / (a * b) is finite where both reciprocals are, but not the other way round.
    "reciprocals": Rule(
        lambda a, b: op.multiply(invert(a), invert(op.multiply(a, b))),
        lambda a, b: op.multiply(op.square(invert(a)), invert(b)),
        (4 * MN, 4 * MN),
    ),
    # Holds where b is not negative; elsewhere the left side is no number.
    "square_roots": Rule(
        lambda a, b, c: op.multiply(op.multiply(a, op.sqrt(b)), op.multiply(op.sqrt(b), c)),
        lambda a, b, c: op.multiply(op.multiply(a, b), c),
        (5 * MN, 2 * MN),
    ),
    "absolute_values": Rule(
        lambda a, b, c: op.multiply(op.multiply(op.abs(a), b), op.abs(c)),
        lambda a, b, c: op.multiply(op.abs(op.multiply(a, c)), b),
        (4 * MN, 3 * MN),
    ),
    "sums_as_factors": Rule(
        lambda a, b, c: op.multiply(op.multiply(a, total(b)), op.multiply(total(b), c)),
        lambda a, b, c: op.multiply(op.multiply(a, op.square(total(b))), c),
        (5 * MN, 3 * MN + M),
    ),
    # Printed as A . C + A . B, which is the same up to names.
    "common_factor": Rule(
        lambda a, b, c: op.add(op.multiply(a, c), op.multiply(b, c)),
        lambda a, b, c: op.multiply(op.add(a, b), c),
        (3 * MN, 2 * MN),
    ),
    "factor_one": Rule(
        lambda a, b: op.add(a, op.multiply(a, b)),
        lambda a, b: op.multiply(a, op.add(b, relax.const(1, "float32"))),
        (2 * MN, 2 * MN),
        flag="",
    ),
    "square_and_product": Rule(
        lambda a, b, c: op.subtract(op.square(op.add(a, b)), op.multiply(op.add(a, b), c)),
        lambda a, b, c: op.multiply(op.add(a, b), op.subtract(op.add(a, b), c)),
        (5 * MN, 3 * MN),
    ),
    "commuted": Rule(
        lambda a, b: op.multiply(a, b), lambda a, b: op.multiply(b, a), (MN, MN), flag=""
    ),
    # To the left, of integers: exact modulo a power of two.
    "sum_of_shifted": Rule(
        lambda a: total(op.left_shift(a, TWO)),
        lambda a: op.left_shift(total(a), TWO),
        (2 * MN, MN + M),
        flag="",
        dtype="int32",
    ),
    # The product overflows no earlier than the exponential of the sum.
    "product_of_exponentials": Rule(
        lambda a: op.prod(op.exp(a), axis=1, keepdims=True),
        lambda a: op.exp(total(a)),
        (2 * MN, MN + M),
    ),
}


def module(side: Callable[..., relax.Expr], dtype: str) -> tvm.IRModule:
    names = side.__code__.co_varnames[: side.__code__.co_argcount]
    params = [relax.Var(name, relax.TensorType((M, N), dtype)) for name in names]
    return main_module(params, side(*params))


def term(mod: tvm.IRModule, heads: Heads) -> Term:
    """Write a module's result as a term, equal subexpressions once."""
    func = mod["main"]
    known = {v: Term(heads.leaf("input", i), (), v.ty) for i, v in enumerate(func.params)}
    shared: dict[tuple, Term] = {}
    for binding in func.body.blocks[0].bindings:
        call = binding.value
        if isinstance(call, relax.Var):
            known[binding.var] = known[call]
            continue
        args = []
        for operand in operands(call):
            if isinstance(operand, ir.GenericConst):
                value = heads.value(operand.value.numpy(), str(operand.ty.dtype))
                args.append(shared.setdefault((value,), Term(value, (), operand.ty)))
            else:
                args.append(known[operand])
        head = heads.of(call)
        made = Term(head, tuple(args), call.ty)
        known[binding.var] = shared.setdefault((head, *map(id, args)), made)
    return known[func.body.body]


def occurrences(root: Term) -> Iterator[Term]:
    yield root
    for operand in root.operands:
        yield from occurrences(operand)


def printed(terms: Iterator[Term]) -> int:
    """Count operations as the table does."""
    count = 0
    for part in terms:
        if part.head.call is not None:
            is_reduction = part.head.name in ("relax.sum", "relax.prod")
            count += elements(part.operands[0].type if is_reduction else part.type)
    return count


def counted(mod: tvm.IRModule) -> int:
    """Count operations from TensorIR."""
    with TARGET:
        lowered = Legalize()(mod)
    calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings]
    return sum(flops(lowered[c.args[0]]) for c in calls if isinstance(c, relax.Call))


@pytest.mark.parametrize("name", [name for name in RULES if name != "commuted"])
def test_a_published_rule_follows(name):
    rule = RULES[name]
    heads = Heads()
    sides = [module(side, rule.dtype) for side in (rule.before, rule.after)]
    before, after = (term(mod, heads) for mod in sides)
    assert (printed(occurrences(before)), printed(subterms([after]))) == rule.counts
    graph = EGraph(heads)
    (root,) = graph.add_terms([before])
    flags = [rule.flag] if rule.flag else []
    saturate(graph, allowed(flags), Limits(), {})
    (wanted,) = graph.add_terms([after])
    graph.rebuild()
    assert graph.find(root) == graph.find(wanted)


@pytest.mark.parametrize("name", RULES)
def test_the_search_is_no_worse_than_a_published_rule(name):
    rule = RULES[name]
    before, after = (module(side, rule.dtype) for side in (rule.before, rule.after))
    with TARGET:
        found = SearchEquivalents(allowed(FLAGS))(before)
    assert counted(found) <= counted(after) <= counted(before)


def test_a_product_commutes():
    """No law is needed: an e-graph keeps the operands of such an operator in order."""
    rule, heads = RULES["commuted"], Heads()
    terms = [term(module(side, rule.dtype), heads) for side in (rule.before, rule.after)]
    first, second = EGraph(heads).add_terms(terms)
    assert first == second
    assert tuple(printed(subterms([t])) for t in terms) == rule.counts


def test_flags_are_needed():
    """Without its flag a rule that may overflow is not applied."""
    rule = RULES["common_factor"]
    heads = Heads()
    before, after = (term(module(s, rule.dtype), heads) for s in (rule.before, rule.after))
    graph = EGraph(heads)
    (root,) = graph.add_terms([before])
    saturate(graph, allowed(), Limits(), {})
    (wanted,) = graph.add_terms([after])
    graph.rebuild()
    assert graph.find(root) != graph.find(wanted)
