"""The sentence of a mistake, whatever names it repeats."""

import pytest

from tvm_fusion.errors import UserError


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("input 'a\nb' has", "input 'a b' has."),
        (" input 'a'\r\n\n  has\u2028it ", "input 'a' has it."),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m."),
        ("nul\0", "nul\\x00."),
        ("a\tb", "a\tb."),
        ("n" * 5000 + " is long", "n" * 400 + "..." + "n" * 400 + " is long."),
        ("words " * 300, ("words " * 300).strip() + "."),
        ("\u00fc\u2192", "\u00fc\u2192."),
    ],
)
def test_names_from_files_stay_readable(found, sentence):
    assert str(UserError(found)) == sentence
