"""Rules by name: laws, those that users register, recompositions, passes that are one rule."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from ..config import unknown_name
from ..errors import UserError
from .law import Law
from .laws import LAWS, allowed
from .recompose.patterns import PATTERNS

#: Rules that are passes, and what they write.
PASSES = {
    "byte_products": "products of quantised tensors multiply bytes",
    "batch_matmuls": "[x A | y B] = [x, y] [A, B], a product of batches",
    "join_matmuls": "x A, x B = x [A | B]",
}
_registered: list[Law] = []


def laws(allow: Collection[str] = (), without: Collection[str] = ()) -> tuple[Law, ...]:
    """List the laws that may be used, registered ones last.

    Parameters
    ----------
    allow : collection of str
        Flags: laws that need none of the others.
    without : collection of str
        Names of rules that are switched off.
    """
    return allowed(allow, without, (*LAWS, *_registered))


def unused(allow: Collection[str] = (), without: Collection[str] = ()) -> dict[str, str]:
    """Say which rules may not be used, by name, and why."""
    found = {name: "switched off" for name in without}
    used = {law.name for law in laws(allow, without)}
    for law in (*LAWS, *_registered):
        if law.name not in used:
            found.setdefault(law.name, f"takes --allow {law.needs}")
    return found


def names() -> tuple[str, ...]:
    """List the names of all rules."""
    found = [
        *(law.name for law in (*LAWS, *_registered)),
        *(pattern.name for pattern in PATTERNS),
        *PASSES,
    ]
    return tuple(dict.fromkeys(found))


def check_names(given: Collection[str]) -> None:
    """Raise a UserError for a name that no rule has."""
    known = names()
    for name in given:
        if name not in known:
            raise unknown_name("rule", name, known)


def register(law: Law) -> None:
    """Let the search use a law of one's own from now on, in this process.

    Parameters
    ----------
    law : Law
        An instance; its name is not that of another rule.

    Raises
    ------
    UserError
        If it is no law, has no name, or the name is taken.
    """
    name = getattr(law, "name", None)
    if not isinstance(law, Law) or not isinstance(name, str) or not name:
        raise UserError(
            f"{type(law).__name__} cannot be registered",
            "an instance of a subclass of Law with a name",
            "set the attribute 'name' of the class, and register an instance of it",
        )
    if name in names():
        raise UserError(f"there is a rule {name!r} already", "another name", "rename it")
    _registered.append(law)


@contextlib.contextmanager
def registered(law: Law) -> Iterator[Law]:
    """Register a law as :func:`register` does, for the body of a ``with`` statement."""
    register(law)
    try:
        yield law
    finally:
        _registered.remove(law)
