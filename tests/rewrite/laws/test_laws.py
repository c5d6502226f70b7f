"""Every law: holds, is refused, holds for symbolic shapes, and in numbers; from one table."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

import tvm_fusion
from tests.rewrite.laws import (
    law_rows_arithmetic,
    law_rows_choices,
    law_rows_functions,
    law_rows_joined,
    law_rows_products,
    law_rows_reductions,
    law_rows_reparameterized,
)
from tests.rewrite.laws.law_cases import Case, N, Sides, holds, near_misses, refuses
from tests.rewrite.laws.law_numerics import Program, compare, compare_nan, inputs
from tests.rewrite.laws.law_specials import changes, special_inputs
from tvm_fusion.rewrite.egraph.extract import extract
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.law import Equation, Law, Match
from tvm_fusion.rewrite.egraph.pattern import tensors
from tvm_fusion.rewrite.egraph.saturate import Limits, Use, saturate
from tvm_fusion.rewrite.egraph.terms import Term
from tvm_fusion.rewrite.laws import LAWS
from tvm_fusion.rewrite.nonfinite import ALL, NAN, NONE, NonFinite

CASES: tuple[Case, ...] = (
    *law_rows_arithmetic.CASES,
    *law_rows_functions.CASES,
    *law_rows_choices.CASES,
    *law_rows_reductions.CASES,
    *law_rows_products.CASES,
    *law_rows_joined.CASES,
    *law_rows_reparameterized.CASES,
)
BY_NAME = {law.name: law for law in LAWS}
HOLDS = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]
SEEDS = 2
# Algebra that drops an operand, and with it the NaN that it may hold: where one is, the original is
# not finite.
DROPS = frozenset(
    f"cancel_{what}"
    for what in (
        *("sum", "difference", "added", "subtracted", "factor", "divisor", "dividend"),
        *("dividend_twice", "into_reciprocal", "common_factor", "common_divisor"),
    )
) | {"zero_times", "times_zero", "subtract_itself", "divide_itself", "absorb_multiply"}
# Whose products with zeros are left out.
DROPS |= {"identity_times", "times_identity"}


def directed(case: Case, laws: dict[str, Law] = BY_NAME) -> Law:
    law = laws[case.law]
    if not case.backwards:
        return law
    found = law.backwards()
    assert found is not None, f"{law.name} is not read from right to left"
    return found


def codes(law: Law, graph: EGraph, root: int) -> set[str]:
    """Return what goes wrong with a law's matches; empty where it holds."""
    is_seen = set(law.roots) & {node.head.name for node in graph[root].nodes}
    found = list(law.find(graph, root)) if is_seen else []
    outcome = set() if found else {"no_match"}
    for match in found:
        refusal = law.check(match)
        written = law.rewrite(match) if refusal is None else None
        if refusal is not None:
            outcome.add(refusal.code)
        elif written is None:
            outcome.add("operands")
        elif graph[written].type is not graph[root].type:
            outcome.add("type")
        else:
            outcome.add("holds")
    return outcome


def check_holds(law: Law, case: Case, dtype: str, is_symbolic: bool) -> None:
    sides = Sides(case, dtype, is_symbolic)
    left, right = sides.left(law), sides.right(law)
    untouched = EGraph(sides.heads)
    before, after = untouched.add_terms([left, right])
    assert before != after, f"both sides of {law.name} are the same without it"
    graph = EGraph(sides.heads)
    (root,) = graph.add_terms([left])
    uses: dict[str, Use] = {}
    saturate(graph, [_Forwards(law)], Limits(rounds=2), uses)
    (wanted,) = graph.add_terms([right])
    graph.rebuild()
    refusals = uses[law.name].refused if law.name in uses else "no match"
    assert graph.find(root) == graph.find(wanted), f"{left} is not {right}: {refusals}"


class _Forwards(Law):
    """A law without its other direction."""

    def __init__(self, law: Law) -> None:
        self.name, self.before, self.after = law.name, law.before, law.after
        self.check, self.rewrite, self.find = law.check, law.rewrite, law.find


def check_refused(law: Law, case: Case, dtype: str, is_symbolic: bool = False) -> None:
    sides = Sides(case, dtype, is_symbolic)
    graph = EGraph(sides.heads)
    (root,) = graph.add_terms([sides.left(law)])
    found = codes(law, graph, root)
    assert case.refused in found, found
    assert "holds" not in found


def check_near_misses(law: Law, case: Case) -> int:
    """Write left sides with one thing wrong, which the law must not take; returns how many."""
    count = 0
    for pattern, others in near_misses(law):
        names = dict(case.names)
        for new, old in others.items():
            names[new] = names[old] if old else "n 5"
        wrong = Case(law.name, names)
        try:
            sides = Sides(wrong, case.dtypes[0], is_symbolic=False)
            left = sides.write(pattern)
        except (tvm.error.InternalError, ValueError, TypeError):
            continue  # does not exist
        graph = EGraph(sides.heads)
        (root,) = graph.add_terms([left])
        assert "holds" not in codes(law, graph, root), f"{law} takes {pattern}"
        count += 1
    return count


def written(law: Law, case: Case, dtype: str) -> Iterator[tuple[Sides, Match, Term, Term]]:
    """Write both sides of each match that a law takes without a flag, or with it."""
    sides = Sides(case, dtype, is_symbolic=False)
    left = sides.left(law)
    graph = EGraph(sides.heads)
    (root,) = graph.add_terms([left])
    for match in list(law.find(graph, root)):
        found = law.rewrite(match) if law.check(match) is None else None
        if found is not None and graph[found].type is graph[root].type:
            graph.rebuild()
            yield sides, match, left, extract(graph, [graph.find(found)], 1)[0].terms[0]


def check_special(law: Law, case: Case, dtype: str, seeds: int = SEEDS) -> NonFinite:
    """Check that NaN, infinities and overflow change nothing but what is declared.

    Returns
    -------
    NonFinite
        What was seen to change.
    """
    seen = NONE
    for sides, match, left, right in written(law, case, dtype):
        if law.needs and not law.exempt(match):
            continue  # its flag allows more
        programs = Program(left, sides.heads), Program(right, sides.heads)
        for seed in range(seeds):
            leaves = special_inputs(sides.specs, sides.heads, dtype, N, seed)
            found = changes(*programs, leaves, seed)
            assert not found & ~law.changed(match), f"{found} is not declared"
            seen |= found
    return seen


def check_numbers(law: Law, case: Case, dtype: str) -> None:
    compared = 0
    for sides, match, left, right in written(law, case, dtype):
        programs = Program(left, sides.heads), Program(right, sides.heads)
        is_always = not law.needs or law.exempt(match)
        for is_large in (False, True) if is_always else (False,):
            for seed in range(SEEDS):
                leaves = inputs(sides.specs, sides.heads, dtype, N, is_large, seed)
                compared += compare(*programs, leaves, seed)
        if is_always and law.name not in DROPS:
            leaves = inputs(sides.specs, sides.heads, dtype, N, False, 0)
            compare_nan(*programs, leaves, sides.heads.values)
    assert compared, f"nothing of {case.label} could be compared"


def dtyped(cases: Iterable[Case]) -> list:
    return [pytest.param(c, d, id=f"{c.label}-{d}") for c in cases for d in c.dtypes]


# The table ---------------------------------------------------------------------------------------


def test_names_are_unique_and_stable():
    counts = Counter(law.name for law in LAWS)
    assert not {name for name, count in counts.items() if count > 1}
    assert all(name.replace("_", "").isalnum() and name == name.lower() for name in counts)


@pytest.mark.parametrize(
    "law", [law for law in LAWS if not isinstance(law, Equation)], ids=lambda law: law.name
)
def test_the_docstring_is_the_equation(law):
    check_docstring(law)


def check_docstring(law: Law) -> None:
    text = " ".join((type(law).__doc__ or "").split())
    if law.after is None:
        assert text.startswith(f"{law.before} = ")
        assert text.endswith(".")
    else:
        assert text == f"{law.before} = {law.after}."


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_has_rows(law):
    rows = [case for case in CASES if case.law == law.name]
    positive = [case for case in rows if not case.refused]
    assert positive
    assert any(case.has_symbol for case in positive)
    assert not law.both or any(case.backwards for case in positive)
    refused = [case for case in rows if case.refused]
    # The first row in which the left side is the law's own.
    own = next((case for case in positive if case.left is None and not case.backwards), None)
    missed = check_near_misses(law, own) if own is not None else 0
    assert refused or missed


def test_rows_have_laws():
    assert {case.law for case in CASES} <= set(BY_NAME)


@pytest.mark.parametrize(("case", "dtype"), dtyped(HOLDS))
def test_holds(case, dtype):
    check_holds(directed(case), case, dtype, is_symbolic=False)


@pytest.mark.parametrize("case", [c for c in HOLDS if c.has_symbol], ids=lambda c: c.label)
def test_holds_for_a_symbolic_dimension(case):
    check_holds(directed(case), case, case.dtypes[0], is_symbolic=True)


@pytest.mark.parametrize(("case", "dtype"), dtyped(REFUSED))
def test_is_refused(case, dtype):
    check_refused(directed(case), case, dtype)


SYMBOLIC = (
    refuses("mean_to_sum", "symbolic_extent", a="n", axes=tvm.relax.op.mean),
    refuses("sum_of_offset", "symbolic_extent", a="n", s=2.0, axes=tvm.relax.op.sum, n=5),
    refuses(
        "reduce_of_broadcast",
        "symbolic_extent",
        a="n 5",
        reduce=lambda x: tvm.relax.op.sum(x, 0),
        shape=lambda x: tvm.relax.op.broadcast_to(x, [x.ty.shape[0], x.ty.shape[0], 5]),
    ),
)


@pytest.mark.parametrize("case", SYMBOLIC, ids=lambda case: case.law)
def test_is_refused_for_symbolic_extents(case):
    check_refused(directed(case), case, "float32", is_symbolic=True)


def test_what_is_not_exempt_needs_its_flag():
    law = BY_NAME["sum_of_offset"].without_flag()
    case = next(case for case in HOLDS if case.law == law.name)
    check_refused(law, replace(case, refused="needs_flag"), "float32")


def test_every_code_is_refused_somewhere():
    """Codes in the source, but for those of the planner and the templates (tests/fusion)."""
    found = set()
    for path in (Path(tvm_fusion.__file__).parent / "rewrite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                found.add(ast.literal_eval(node.args[0]))
    assert found - {"needs_flag", "told_apart"} <= {case.refused for case in (*REFUSED, *SYMBOLIC)}


@pytest.mark.parametrize(("case", "dtype"), dtyped(HOLDS))
def test_in_numbers(case, dtype):
    check_numbers(directed(case), case, dtype)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_declares_what_it_changes(law):
    """Evaluated on NaN, infinities, zeros, the largest and the smallest numbers."""
    for case in HOLDS:
        if case.law == law.name:
            for dtype in case.dtypes:
                if "float" in dtype:
                    check_special(directed(case), case, dtype)


# Wrong laws fail ---------------------------------------------------------------------------------

a, b, c = tensors("a b c")


class Swapped(Law):
    """a - b = b - a."""

    name = "swapped"
    before = a - b
    after = b - a


class Forgetful(Law):
    """a * b + c = a."""

    name = "forgetful"
    before = a * b + c
    after = a


def test_a_wrong_equation_fails_in_numbers():
    with pytest.raises(AssertionError, match="are wrong"):
        check_numbers(Swapped(), holds("swapped", a="n 5", b="5"), "float32")


def test_a_law_that_overflows_fails_without_its_flag():
    case = holds("factor_multiply", a="n 5", b="n 5", c="n 5")
    law = BY_NAME["factor_multiply"]
    check_numbers(law, case, "float32")
    with pytest.raises(AssertionError, match="are wrong"):
        check_numbers(Equation("unflagged", law.before, law.after), case, "float32")


def test_another_right_side_is_not_found():
    case = holds("swapped", a="n 5", b="n 5", right=lambda a, b: tvm.relax.op.add(a, b))
    with pytest.raises(AssertionError, match="is not"):
        check_holds(Swapped(), case, "float32", is_symbolic=True)


def test_a_wrong_docstring_fails():
    with pytest.raises(AssertionError):
        check_docstring(type("Other", (Swapped,), {"__doc__": "a - b = a."})())


def test_a_law_that_is_not_refused_fails():
    with pytest.raises(AssertionError):
        check_refused(Swapped(), refuses("swapped", "no_match", a="n 5", b="n 5"), "float32")


def test_a_result_of_another_shape_is_refused():
    check_refused(Forgetful(), refuses("forgetful", "type", a="5", b="5", c="n 5"), "float32")


def test_a_change_that_is_not_declared_fails():
    law, case = BY_NAME["cancel_factor"], holds("cancel_factor", a="n 5", b="n 5")
    assert check_special(law, case, "float32") & NAN
    bare = Equation("bare", law.before, law.after)
    with pytest.raises(AssertionError, match="is not declared"):
        check_special(bare, case, "float32")


def test_a_finite_result_that_changes_fails():
    """Of a divisor that overflows."""
    law, case = BY_NAME["divide_squares"], holds("divide_squares", a="n 5", b="n 5")
    bare = Equation("bare", law.before, law.after, changes=ALL)
    with pytest.raises(AssertionError, match="became"):
        check_special(bare, case, "float32", seeds=20)


class Careless(Law):
    """a + a * b = a * (b + 1)."""

    name = "careless"
    before = a + a * b
    after = a * (b + 1)

    def find(self, graph, number):
        yield Match(graph, number, dict.fromkeys("ab", number))


def test_a_near_miss_that_is_taken_fails():
    with pytest.raises(AssertionError, match="takes"):
        check_near_misses(Careless(), holds("careless", a="n 5", b="n 5"))
