"""Which operators a user means by a name: exact, as a prefix, or as a glob."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from fnmatch import translate

from .parts import Member

_NEAREST = 5  # names in the sentence about an unknown one
_SEPARATORS = ("/", ".")  # between the parts of a path, ONNX's and PyTorch's


def named(members: Iterable[Member], name: str) -> set[Member]:
    """Find the operators that a name means.

    Parameters
    ----------
    name
        A name of the model (an ONNX node, the path of a PyTorch module, a tensor), which means what
        lies inside as well: ``encoder.layer.3`` has ``encoder.layer.3.attention``, and not
        ``encoder.layer.31``; or the end of one behind a slash; or a variable, a Relax operator's
        name with or without ``relax.``, or a title. Where it is none of these, a glob over all of
        them and what lies inside: ``/backbone/*/Conv``, ``encoder.layer.*.attention``.

    Returns
    -------
    set of Member
        Empty if nothing is called so.
    """
    members = list(members) if name else []

    def found(is_meant: Callable[[str], bool]) -> set[Member]:
        return {m for m in members if any(map(is_meant, spellings(m)))}

    inside = tuple(name.rstrip("/.") + separator for separator in _SEPARATORS)
    exact = found(lambda known: known == name or known.endswith(f"/{name}"))
    exact |= {m for m in members if any(own.startswith(inside) for own in (*m.names, *m.tensors))}
    if exact or not any(sign in name for sign in "*?["):
        return exact
    inside_of = name.rstrip("/.") + f"[{''.join(_SEPARATORS)}]*"
    patterns = re.compile(translate(name)), re.compile(translate(inside_of))
    return found(lambda known: any(pattern.fullmatch(known) for pattern in patterns))


def spellings(member: Member) -> tuple[str, ...]:
    """List what a user may call an operator."""
    short = member.operator.removeprefix("relax.")
    return *member.names, *member.tensors, member.variable, member.operator, short, member.title


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """List the names that are like a given one: those that it is a part of, then similar ones."""
    known = dict.fromkeys(known)
    parts = [one for one in known if name and name.lower() in one.lower()]
    similar = difflib.get_close_matches(name, known, _NEAREST, 0.5)
    return list(dict.fromkeys([*parts[:_NEAREST], *similar]))[:_NEAREST]
