"""Tables between markers are what their command writes; results include losses."""

import pytest

from benchmarks import summary
from benchmarks.gpu import fused_gemms


@pytest.mark.parametrize("page", summary.PAGES, ids=lambda page: page.parent.name)
def test_the_page_is_what_the_command_writes(page):
    assert page.read_text() == summary.written(page), "run python -m benchmarks.summary"


def test_the_page_of_fused_gemms_is_what_its_command_writes():
    found = fused_gemms.PAGE.read_text()
    assert found == fused_gemms.written(found), "run python -m benchmarks.gpu.fused_gemms"


def test_slower_works_are_counted_and_named():
    row = summary.Row("GEMMs", "a peer", "a GPU", "gpu/README", {"x": 0.5, "y": 2.0, "z": 1.004})
    link = "[benchmarks.gpu](gpu/README.md)"
    assert row.cells() == ("GEMMs", "a peer", "1.00", "1 of 3", "y **2.00**", "a GPU", link)
    assert row._replace(ratios={"x": 0.5, "y": 0.75}).cells()[3:5] == ("0 of 2", "y 0.75")
