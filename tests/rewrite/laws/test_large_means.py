"""Errors of what ``--allow`` permits, on inputs whose mean is far larger than their deviation."""

import numpy as np
import pytest

from tests.rewrite.laws.law_cases import N
from tests.rewrite.laws.law_numerics import Program, inputs
from tests.rewrite.laws.test_laws import HOLDS, directed, written
from tvm_fusion.rewrite.laws import LAWS

MEAN = 1000.0
EPSILON = float(np.finfo("float32").eps)
FLAGGED = [law for law in LAWS if law.needs]


def errors(law):
    """Errors of both sides in float32, of the largest number that the left side computes."""
    worst = [0.0, 0.0]
    for case in (c for c in HOLDS if c.law == law.name and "float32" in c.dtypes):
        for sides, _, left, right in written(directed(case), case, "float32"):
            programs = Program(left, sides.heads), Program(right, sides.heads)
            leaves = inputs(sides.specs, sides.heads, "float32", N, False, 0)
            for head, spec in sides.specs.items():
                if leaves[head].dtype.kind == "f" and ".." not in spec:
                    leaves[head] = leaves[head] + leaves[head].dtype.type(MEAN)
            exact = programs[0].run(leaves, is_wide=True)
            size = max(float(np.abs(x).max()) for x in exact if x.size and np.isfinite(x).all())
            for n, program in enumerate(programs):
                with np.errstate(all="ignore"):
                    found = program.run(leaves)[-1].astype("float64")
                known = np.isfinite(exact[-1]) & np.isfinite(found)
                off = np.abs(found[known] - exact[-1][known])
                worst[n] = max(worst[n], float(off.max(initial=0.0)) / size)
    return worst


@pytest.mark.parametrize("law", FLAGGED, ids=lambda law: law.name)
def test_no_form_cancels(law):
    before, after = errors(law)
    assert after <= 8 * max(before, EPSILON)
