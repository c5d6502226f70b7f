"""The tables of what recomposition finds."""

from benchmarks import zoo
from benchmarks.recompose import __main__ as command_line
from benchmarks.recompose.expected import DECIDED, EXPECTED, OPERATORS
from benchmarks.records import read


def row(found: dict[str, int]) -> dict:
    return {
        "seconds": 1.5,
        "operators": [90, 60],
        "kernels": [9, 8],
        "bytes": [3_000_000, 2_000_000],
        "found": [{"softmax": 12}, found],
    }


def test_everything_expected_has_an_operator_and_a_model():
    assert set(EXPECTED) <= set(zoo.names())
    kinds = {kind for counts in EXPECTED.values() for kind in counts}
    assert kinds <= {*OPERATORS, *DECIDED}


def test_what_is_missing_shows_and_is_not_complete():
    found = {"layer_norm": 25, "softmax": 12, "gelu": 11}
    record = {"models": {"bert_base": {"onnx": row(found)}}}
    assert not command_line.is_complete(record)
    page = command_line.render(record)
    assert "| bert_base | onnx | 12/12 (0) | 25/25 (25) |" in page
    assert "11/12 (12)" in page
    assert "| bert_base | onnx | 90 to 60 | 9 to 8 | 3.0 to 2.0 | 1.5 |" in page


def test_all_of_it_is_complete():
    record = {"models": {"bert_base": {"export": row(dict(EXPECTED["bert_base"]))}}}
    assert command_line.is_complete(record)


def test_the_page_is_that_of_the_record():
    record = read(command_line.RECORD)
    assert (command_line.HERE / "README.md").read_text() == command_line.render(record)
    assert command_line.is_complete(record)
