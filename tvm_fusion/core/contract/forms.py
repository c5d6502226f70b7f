"""Forms of kernels that a template weighed for a group, for a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .template import Refusal

Made = TypeVar("Made")
OTHER_FORM = "other_form"  # code of a refusal: the group's kernels have another form


@dataclass(frozen=True)
class Form:
    """One way of making the kernels of a group.

    Attributes
    ----------
    name
        Such as ``implicit GEMM``.
    kernel
        Which kernel, and its tile; empty where the form is refused.
    clocks
        Estimated clocks of a multiprocessor, from the launch on, copies of operands included;
        ``None`` where there is no model.
    is_chosen
        Whether the group's kernels have this form.
    sentence
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


@dataclass(frozen=True)
class Row(Generic[Made]):
    """A form that is taken where a group has it, before those behind it in its table.

    Attributes
    ----------
    name
        For a reader.
    make
        Makes it of what the table is about, or refuses.
    """

    name: str
    make: Callable[..., Made | Refusal]


def first_of(table: Sequence[Row[Made]], *about: object) -> Made | Refusal:
    """Take the first form of a table.

    Returns
    -------
    Made or Refusal
        The last refusal where there is none; one of another code than ``other_form`` ends the
        search.
    """
    found = table[0].make(*about)
    for row in table[1:]:
        if not isinstance(found, Refusal) or found.code != OTHER_FORM:
            break
        found = row.make(*about)
    return found
