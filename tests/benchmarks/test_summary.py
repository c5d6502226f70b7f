"""Tables between markers are what their command writes; the README's results include losses."""

import pytest

from benchmarks import summary
from benchmarks.gpu import fused_gemms


@pytest.mark.parametrize(
    ("page", "module"), [(summary.README, summary), (fused_gemms.PAGE, fused_gemms)]
)
def test_the_page_is_what_the_command_writes(page, module):
    found = page.read_text()
    assert found == module.written(found), f"run python -m {module.__name__}"


def test_slower_works_are_counted_and_named():
    row = summary.Row("GEMMs", "a peer", "a GPU", "gpu/README", {"x": 0.5, "y": 2.0, "z": 1.004})
    link = "[benchmarks.gpu](benchmarks/gpu/README.md)"
    assert row.cells() == ("GEMMs", "a peer", "1.00", "1 of 3", "y **2.00**", "a GPU", link)
    assert row._replace(ratios={"x": 0.5, "y": 0.75}).cells()[3:5] == ("0 of 2", "y 0.75")
