"""A claim is a promise: a template that cannot emit what it claimed fails the test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def assert_claims_kept(decisions: Iterable[Any]) -> None:
    """Fail where a decision is ``claim_broken``.

    Parameters
    ----------
    decisions : iterable of Decision or dict
        As recorded (:func:`tvm_fusion.fusion.decisions.recording`), or an artifact's
        ``manifest["decisions"]``.
    """
    fields = [d if isinstance(d, dict) else vars(d) for d in decisions]
    broken = [d["sentence"] for d in fields if d["code"] == "claim_broken"]
    assert not broken, broken
