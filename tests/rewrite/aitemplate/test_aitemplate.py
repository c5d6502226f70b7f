"""Every row of AITemplate's pass list: kernels, bytes, results, and the page that tells them."""

import pytest

from benchmarks.fusion.case import errors

from .page import PAGE, compiled, lines
from .row import CPU, TARGETS
from .rows import EXAMPLES, ROWS

# Of the module: the tests of an example come one after the other, and share what is compiled.
each = pytest.mark.parametrize("name", list(EXAMPLES), scope="module")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@each
def test_kernels_and_bytes(name, target):
    """As few as the row promises; what is said to be missing is missing still."""
    example, found = EXAMPLES[name], compiled(name, target)
    enough = found.count.kernels <= example.kernels
    enough = enough and found.count.intermediate_bytes <= example.bytes
    assert enough is (target not in example.missing), found
    assert not found.count.caveats
    if example.functions is not None:
        assert len(found.count.launches) == example.functions


@pytest.mark.slow
@each
def test_results(name):
    example = EXAMPLES[name]
    for error in errors(example.case, compiled(name, CPU)):
        assert error <= example.case.tolerance


@pytest.mark.slow
@each
def test_the_page_is_of_today(name):
    start = f"| {' | '.join(lines(EXAMPLES[name]))} | "
    assert any(line.startswith(start) for line in PAGE.read_text().splitlines())


def test_the_page_tells_every_row():
    page = PAGE.read_text()
    for row in ROWS:
        assert f"| {row.title} | " in page
        assert f" | {row.mechanism} |\n" in page
        for example in row.examples:
            assert f"| `{example.name}` |" in page
            assert all(reason in page for reason in example.missing.values())


def test_names_are_unique():
    assert len(EXAMPLES) == sum(len(row.examples) for row in ROWS)
