"""Forms of kernels that a template weighed for a group, for a reader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .template import Refusal

Made = TypeVar("Made")
OTHER_FORM = "other_form"  # code of a refusal: the group's kernels have another form


@dataclass(frozen=True)
class Form:
    """One way of making the kernels of a group."""

    name: str  # such as ``implicit GEMM``
    kernel: str  # which kernel, and its tile; empty where the form is refused
    # Estimated clocks of a multiprocessor, from the launch on, copies of operands included;
    # ``None`` where there is no model.
    clocks: float | None
    is_chosen: bool  # whether the group's kernels have this form
    sentence: str  # why it was not chosen; empty where it was


def other_form(sentence: str) -> Refusal:
    """Say why a group's kernels do not have a form, which another one may have."""
    return Refusal(OTHER_FORM, sentence)


@dataclass(frozen=True)
class Row(Generic[Made]):
    """A form that is taken where a group has it, before those behind it in its table."""

    name: str  # for a reader
    make: Callable[..., Made | Refusal]  # makes it of what the table is about, or refuses


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
