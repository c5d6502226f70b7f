"""A claim is a promise: a template that cannot emit what it claimed has a defect."""

from collections.abc import Iterable
from typing import Any


def broken_claims(decisions: Iterable[Any]) -> list[str]:
    """List the sentences of decisions that are ``claim_broken``.

    Parameters
    ----------
    decisions : iterable of Decision or dict
        As recorded (:func:`tvm_fusion.core.decisions.recording`), or an artifact's
        ``manifest["decisions"]``.
    """
    fields = [d if isinstance(d, dict) else vars(d) for d in decisions]
    return [d["sentence"] for d in fields if d["code"] == "claim_broken"]
