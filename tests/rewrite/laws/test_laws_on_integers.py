"""Laws on integers that wrap around: exact wherever they are applied, and only there."""

import numpy as np
import pytest
import tvm
from test_laws import CASES, directed, written

from tests.rewrite.laws.law_cases import Case, holds
from tests.rewrite.laws.law_integers import INTEGERS, near_limits, takes
from tests.rewrite.laws.law_numerics import Program
from tvm_fusion.rewrite.egraph.law import Equation, Law
from tvm_fusion.rewrite.egraph.pattern import tensors
from tvm_fusion.rewrite.egraph.terms import subterms
from tvm_fusion.rewrite.laws import LAWS

SEEDS = 3
# TVM makes no such kernels of integers, or constants are not folded of them.
UNKNOWN = tuple(
    f"relax.{name}"
    for name in ("logical_and", "logical_or", "logical_not", "power", "floor", "ceil", "trunc")
)


def computes(term) -> bool:
    """Whether all operators of a form have a value of integers here."""
    for part in subterms([term]):
        types = {str(p.type.dtype) for p in (part, *part.operands)}
        if part.head.call is None or not types & {*INTEGERS, "float32"}:
            continue
        if part.head.name in UNKNOWN or "float" in " ".join(types):
            return False
    return True


def compare(law: Law, case: Case, dtype: str) -> int:
    """Compare the sides of each match that needs no flag; returns how many are computed."""
    count = 0
    for sides, match, left, right in written(law, case, dtype):
        if (law.needs and not law.exempt(match)) or not (computes(left) and computes(right)):
            continue
        programs = [Program(side, sides.heads) for side in (left, right)]
        for seed in range(SEEDS):
            leaves = near_limits(sides.specs, sides.heads, dtype, seed)
            with np.errstate(all="ignore"):
                old, new = (program.run(leaves)[-1] for program in programs)
            np.testing.assert_array_equal(new, old, f"{left} is not {right} in {dtype}")
        count += 1
    return count


def compared(law: Law) -> int:
    """Compare what all rows of a law are of integers, whatever types they are for."""
    count = 0
    for case in CASES:
        if case.law != law.name:
            continue
        for dtype in INTEGERS:
            if takes(case, dtype):
                try:
                    count += compare(directed(case), case, dtype)
                except (tvm.error.InternalError, ValueError, TypeError):
                    continue  # does not exist
    return count


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_is_exact_where_it_is_applied(law):
    count = compared(law)
    assert count or not law.is_modular, f"{law.name} is applied to no integers"


a, b, c = tensors("a b c")


@pytest.mark.parametrize(
    ("law", "row"),
    [
        (Equation("unsound", (a + b) / b, a / b + 1), {}),
        (Equation("unsound", (a / b) * b, a), {}),
        (
            Equation("unsound", a / b + c / b, (a + c) / b, needs="reassociate", is_modular=True),
            {"c": "n 5"},
        ),
    ],
)
def test_a_law_that_is_not_exact_fails(law, row):
    with pytest.raises(AssertionError, match="is not"):
        compare(law, holds("unsound", a="n 5", b="n 5", **row), "int8")


def test_a_flag_is_still_asked_for():
    law = Equation("unsound", a / b + c / b, (a + c) / b, needs="reassociate")
    assert compare(law, holds("unsound", a="n 5", b="n 5", c="n 5"), "int8") == 0
