"""The comparison with TVM's own suites: verdicts, modules, the page."""

import numpy as np
from relax_modules import main_module
from tvm import relax, tirx

from benchmarks.records import read
from benchmarks.upstream import differential, table


def test_only_what_stock_passes_has_failed():
    ours = {
        "test_a.py::one": {"verdict": "passed", "reason": ""},
        "test_a.py::two": {"verdict": "failed", "reason": "values differ"},
        "test_b.py::three": {"verdict": "failed", "reason": "no attribute"},
        "test_vm_instrument.py::test_conv2d_cpu": {"verdict": "failed", "reason": "KeyError"},
    }
    record = table.merged(ours, {"test_b.py::three": {"verdict": "failed", "reason": ""}})
    assert record["counts"]["test_a"] == {"passed": 1, "failed": 1}
    assert record["counts"]["test_b"] == {"stock fails": 1}
    assert record["failed"] == {
        "test_a.py::two": "values differ",
        "test_vm_instrument.py::test_conv2d_cpu": "names a kernel of stock's",
    }
    page = table.render(record)
    assert "| test_a | 2 | 1 |  |  | 1 |" in page
    assert "* `test_a.py::two`: values differ" in page


def test_the_page_is_of_the_record():

    record = read(table.RECORD)
    assert (table.RECORD.parents[1] / "README.md").read_text() == table.render(record)


def test_inputs_follow_symbolic_extents():
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, n * 2), "float32"))
    (value,) = differential.inputs(main_module([x], relax.op.exp(x))["main"])
    assert value.shape[1] == 2 * value.shape[0]


def test_differences_are_told():
    x = np.ones((2, 3), "float32")
    assert differential.differs([x], [x]) == ""
    assert differential.differs([x], [x + 1]) == "6 of 6 values differ"
    assert differential.differs(x[:1], x) == "float32(1, 3), not float32(2, 3)"
