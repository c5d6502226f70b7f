"""Rows of the laws of arithmetic."""

from __future__ import annotations

from law_cases import Case, holds

CASES: tuple[Case, ...] = (
    holds("neutral_multiply", a="n 5", dtypes="float32 float16 int32"),
    holds("associate_add", a="n 5", b="5", c="n 1"),
    holds("associate_multiply", a="n 5", b="n 5", c="5"),
    holds("factor_multiply", a="n 5", b="n 5", c="5"),
    holds("factor_multiply", a="n 5", b="n 5", c="n 5", backwards=True),
    holds("factor_one", a="n 5", b="n 5", dtypes="float32 float16 int32"),
)
