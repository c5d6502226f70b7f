"""The normal form of groups: right, of the expected shape, and as aligned as it says."""

import numpy as np
import pytest
from programs import CASES, Case, by_elements, check_rows, compiled, group_of, run

from tvm_fusion.program.stages.compose import compose

pytestmark = pytest.mark.filterwarnings("ignore")


def _expected(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    wide = [a.astype("float64") if a.dtype == np.float32 else a for a in arrays]
    results = case.reference(*wide)
    return results if isinstance(results, list) else [results]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_computes_the_group(case):
    group, order = group_of(case.module())
    program = compose(group.members, group.inputs, group.outputs)
    check_rows(program)
    assert (len(program.stages), program.row_rank) == (case.stages, case.rows)
    spellings = {"stages": program, "elements": by_elements(program)}
    functions = compiled(spellings)
    for seed, sizes in enumerate(case.sizes):
        arrays = case.arrays(sizes, seed)
        given = [arrays[k] if isinstance(k, int) else k for k in order]
        for name, spelling in spellings.items():
            results = run(spelling, given, sizes, functions[name])
            for got, want in zip(results, _expected(case, arrays), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
