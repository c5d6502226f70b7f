"""Forms of kernels that a template weighed for a group, for a reader."""

from __future__ import annotations

from dataclasses import dataclass

from .template import Refusal

OTHER_FORM = "other_form"  # code of a refusal: the group's kernels have another form


@dataclass(frozen=True)
class Form:
    """One way of making the kernels of a group.

    Attributes
    ----------
    name : str
        Such as ``implicit GEMM``.
    kernel : str
        Which kernel, and its tile; empty where the form is refused.
    clocks : float or None
        Estimated clocks of a multiprocessor, from the launch on, copies of operands included;
        ``None`` where there is no model.
    is_chosen : bool
        Whether the group's kernels have this form.
    sentence : str
        Why it was not chosen; empty where it was.
    """

    name: str
    kernel: str
    clocks: float | None
    is_chosen: bool
    sentence: str


def other_form(sentence: str) -> Refusal:
    """Say why a group's kernels do not have a form, which another one may have."""
    return Refusal(OTHER_FORM, sentence)
