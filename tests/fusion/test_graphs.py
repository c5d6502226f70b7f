"""Small graphs that stock TVM leaves in several kernels become one, at several sizes."""

import pytest

from benchmarks.fusion.case import compile_case, errors, runnable
from benchmarks.fusion.graphs import GRAPHS, SIZES
from tvm_fusion.deploy.count import count_stock
from tvm_fusion.device import parse

pytestmark = pytest.mark.slow_beyond(4)

# Which kernels pay is the machine's: a named CPU makes counts the same everywhere.
COUNTED = ("cpu:x86-64-v4", "cuda:sm_90a")
RUN = runnable(COUNTED[0])
CASES = {(name, size): graph.case(size) for name, graph in GRAPHS.items() for size in SIZES}
each_case = pytest.mark.parametrize(
    ("name", "size"), list(CASES), ids=["-".join(key) for key in CASES]
)


@pytest.mark.parametrize("target", COUNTED)
@each_case
def test_kernels_and_results(name, size, target):
    graph, case = GRAPHS[name], CASES[name, size]
    found = compile_case(case, target)
    kernels, intermediate_bytes = found.count.kernels, found.count.intermediate_bytes
    fewest, most = graph.fewest, graph.most
    assert fewest <= kernels <= most, found
    assert intermediate_bytes == 0, found
    assert not found.count.caveats
    if target == COUNTED[0]:
        one = found if target == RUN else compile_case(case, RUN)
        for error in errors(case, one):
            assert error <= case.tolerance, one


@each_case
def test_stock_tvm_launches_what_the_comparison_says(name, size):
    case = CASES[name, size]
    counted = count_stock(case.build(), parse("cuda:sm_90a").tvm_target(), dims=case.dims)
    calls, expected = counted.calls, GRAPHS[name].stock
    # On symbolic shapes it fuses less.
    assert calls == expected or (case.dims and calls > expected)
    assert counted.kernels >= calls
