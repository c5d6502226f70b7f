"""Why a converter gave up: in words, never in those of Python or of TVM's code."""

import pytest

from tvm_fusion.frontend.reasons import NOT_FORESEEN, SYMBOLIC, reason_in_words


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("int() argument must be a string or a real number, not 'Var'"), SYMBOLIC),
        (
            ValueError("Cannot use and / or / not to Expr, hint: use tvm.tirx.all"),
            SYMBOLIC,
        ),
        (AttributeError("'FloorDiv' object has no attribute 'value'"), SYMBOLIC),
        (AttributeError("'NoneType' object has no attribute 'shape'"), NOT_FORESEEN),
        (KeyError("lv12"), NOT_FORESEEN),
        (IndexError("list index out of range"), NOT_FORESEEN),
        (ValueError("not enough values to unpack (expected 2, got 0)"), NOT_FORESEEN),
        (RuntimeError("Check failed: (n == 2) is false: \n/src/relax/op.cc"), NOT_FORESEEN),
        (RuntimeError(""), NOT_FORESEEN),
    ],
    ids=str,
)
def test_what_code_says_is_not_repeated(error, reason):
    found, advice = reason_in_words(error)
    assert found == reason
    assert (advice is not None) == (reason is SYMBOLIC)


def test_what_was_written_for_readers_stays():
    error = NotImplementedError("Resize of mode 'area' is not supported.\nmore")
    assert reason_in_words(error) == ("Resize of mode 'area' is not supported", None)
