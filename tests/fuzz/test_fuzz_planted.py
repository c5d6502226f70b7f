"""Bugs planted in a copy of the passes, all of which the fuzzer must find.

A hunt compiles the package and the graphs anew; CI hunts a few bugs, of all rooms. Those that are
left out there are hunted where ``TVM_FUSION_ALL_BUGS`` is set.
"""

import os

import pytest

from .bugs import BUGS
from .planted import Bug, hunt, plant
from .session import describe, run

pytestmark = pytest.mark.slow_beyond(2)

_FIRST_STAGE = "frontend/normalize/__init__.py", "    return tvm."
FEWEST = 20
IN_CI = (
    "a convolution's bias is not scaled by its batch norm",
    "means of half types accumulate in half",
    "convexity looks one step far",
    "a result with several readers is written in place of one of them",
    "half of a symbolic tail is left out",
    "a reduction's result is read before it is complete",
    "an epilogue of a slice begins at the first element",
    "an epilogue stores where the sum stands",
)
HUNTED = [b for b in BUGS if "TVM_FUSION_ALL_BUGS" in os.environ or b.name in IN_CI]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_has_its_place(bug):
    assert bug.occurrences() == 1
    assert bug.new != bug.old


def test_there_are_enough_bugs_all_over_the_package():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= FEWEST
    assert len({bug.file for bug in BUGS}) >= FEWEST // 2
    assert all(bug.seeds for bug in BUGS)
    assert set(IN_CI) <= {bug.name for bug in BUGS}


@pytest.mark.slow
def test_the_graphs_are_right_without_bugs():
    seeds = sorted({seed for bug in HUNTED for seed in bug.seeds})
    report = run(seeds)
    assert "\n".join(map(describe, report.failures)) == ""
    assert report.graphs == len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("bug", HUNTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug, tmp_path):
    assert hunt(bug, bug.seeds, tmp_path).failures


@pytest.mark.slow
def test_the_copy_is_what_runs(tmp_path):
    bug = Bug("an exception", *_FIRST_STAGE, "    1 / 0\n    return tvm.")
    assert bug.occurrences() == 1
    (failure,) = hunt(bug, [0], tmp_path).failures
    assert "ZeroDivisionError" in failure["sentence"]


@pytest.mark.slow
def test_a_crash_is_a_failure(tmp_path):
    bug = Bug("a crash", *_FIRST_STAGE, "    import os; os.abort()\n    return tvm.")
    (failure,) = hunt(bug, [0], tmp_path).failures
    assert failure["kind"] == "crash"


@pytest.mark.slow
def test_failures_are_shrunk(tmp_path):
    (bug,) = [bug for bug in BUGS if "permutation" in bug.name]
    folder = plant(bug, tmp_path)
    report = run(range(20), stop_at=1, path=[str(folder)])
    graph = report.failures[0]["graph"]
    assert "permute_dims" in graph
    assert graph.count(" = ") <= 4
