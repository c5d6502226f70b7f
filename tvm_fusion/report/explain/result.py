"""What an explanation says, as data."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import translate
from typing import Any

from rich.console import Console

from ...core.decisions import Decision
from ...errors import UserError
from .parts import (
    Counts,
    Edge,
    Group,
    Member,
    edge_from_json,
    edge_to_json,
    group_from_json,
    member_from_json,
)
from .rewriting import Rewriting
from .text import show

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


_WIDTH = 100  # of str(), which knows no terminal
_LISTED = 40  # names in a sentence


@dataclass(frozen=True)
class Explanation:
    """Why a model's kernels are what they are.

    Attributes
    ----------
    source, target : str
        The model and what it is compiled for.
    assumed_dim : int or None
        Extent that estimates assume for symbolic dimensions; None if there are none. Counts use
        the upper ends of the ranges.
    groups : tuple of Group
        In the order of their first operators.
    refused : tuple of Edge
        Every edge between two groups, or between a group and an opaque operator; those that lead
        through views, too.
    views : tuple of Member
        Operators that only rename the elements of a buffer and need no kernel.
    opaque : tuple of Member
        Operators that no template can take.
    fallbacks : tuple of Decision
        What a stage could not do as it wanted.
    counts : Counts
        Of the whole model, whatever the explanation is restricted to.
    stock : Counts or None
        The same of what stock TVM makes of the model; None if it was not asked for.
    stock_from : str
        What stock TVM was given: the model through TVM's own importer, or the module that this
        package imported, which is cheaper already.
    about : str
        The name that the explanation is restricted to; empty as a rule.
    rewriting : Rewriting or None
        What the rewriting stage changed; None if it was not asked for.
    recomposed : mapping of str to tuple of str
        Operators that were recomposed from what the model has decomposed, such as ``attention``,
        with the Relax operators that each is known by.
    layouts : tuple of Decision
        The layout of every edge that is not in the layout of the graph, every kernel that does
        nothing but change a layout, with the reason, and what the profile database was asked about
        layouts. Groups are named by their last variables.
    tuned : tuple of Decision
        Every group whose kernels have a measured configuration: how much faster than the default,
        and from which record. Groups are named by their functions; empty where the explanation is
        restricted.
    measured : tuple of Decision
        Every edge inside of a group that a measurement of the profile database spoke for; refused
        edges have theirs in their sentences.
    workers : tuple of Decision
        Of a model for several workers, what each has a part of, and what is whole; the rest is
        about the first one's kernels.
    """

    source: str
    target: str
    assumed_dim: int | None
    groups: tuple[Group, ...]
    refused: tuple[Edge, ...]
    views: tuple[Member, ...]
    opaque: tuple[Member, ...]
    fallbacks: tuple[Decision, ...]
    counts: Counts
    stock: Counts | None
    stock_from: str = ""
    about: str = ""
    rewriting: Rewriting | None = None
    recomposed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layouts: tuple[Decision, ...] = ()
    tuned: tuple[Decision, ...] = ()
    measured: tuple[Decision, ...] = ()
    workers: tuple[Decision, ...] = ()

    def of(self, name: str) -> Explanation:
        """Keep the groups and edges of some operators.

        Parameters
        ----------
        name : str
            A name of the model, by itself, as a prefix or as a glob, a variable, a Relax operator's
            name (``relax.nn.softmax``, ``nn.softmax``) or a title: see :mod:`.result`. Or a
            template (``attention``, ``rows``), or an operator that was found in the model though it
            spells it out (:attr:`recomposed`).

        Raises
        ------
        UserError
            If nothing is called so.
        """
        members = {m for g in self.groups if name == g.template for m in g.members}
        members |= named(self._members(), name)
        if not members and name in self.recomposed:
            anchors = self.recomposed[name]
            members = {m for m in self._members() if m.operator.removeprefix("relax.") in anchors}
        if not members:
            raise self._unknown(name)
        groups = tuple(g for g in self.groups if not members.isdisjoint(g.members))
        variables = {member.variable for member in members}
        variables |= {g.members[-1].variable for g in groups}
        return replace(
            self,
            groups=groups,
            refused=tuple(edge for edge in self.refused if members.intersection(edge.members)),
            views=tuple(view for view in self.views if view in members),
            opaque=tuple(node for node in self.opaque if node in members),
            layouts=tuple(d for d in self.layouts if {d.producer, d.consumer} & variables),
            tuned=(),
            measured=tuple(d for d in self.measured if {d.producer, d.consumer} & variables),
            about=name,
        )

    def _unknown(self, name: str) -> UserError:
        """Say what there is instead of a name, the nearest first."""
        known = dict.fromkeys(x for member in self._members() for x in spellings(member))
        known |= dict.fromkeys(g.template for g in self.groups) | dict.fromkeys(self.recomposed)
        near = nearest(name, known)
        if not near:
            near = sorted({*(m.title for m in self._members()), *self.recomposed})
            near = [*near[:_LISTED], *(["..."] if len(near) > _LISTED else [])]
        return UserError(
            f"no operator is called {name!r}",
            "a name of the model, a variable, a Relax operator, a title or a template",
            f"name one of {', '.join(near)}",
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``model``, ``target``, ``about``, ``kernels``, ``calls``, ``intermediate_bytes``,
            ``caveats``; ``stock_kernels``, ``stock_calls``, ``stock_intermediate_bytes`` (None
            without stock), ``stock_from``; ``assumed_dim``; ``groups``, ``refused``, ``views``,
            ``opaque``, ``fallbacks``, ``layouts``, ``tuned``, ``measured``, ``workers``: lists of
            objects;
            ``rewriting``: None, or as :meth:`tvm_fusion.report.explain.Rewriting.to_json` says;
            ``recomposed``: an object of lists. An edge has ``producer`` and ``consumer``
            (variables), their ``operators``, ``titles`` and ``types``, ``classes`` of their
            groups, ``bytes``, ``code``, ``sentence``, and ``through``: views between them.
        """
        stock = self.stock
        return {
            "model": self.source,
            "target": self.target,
            "about": self.about,
            "kernels": self.counts.kernels,
            "calls": self.counts.calls,
            "intermediate_bytes": self.counts.intermediate_bytes,
            "caveats": list(self.counts.caveats),
            "stock_kernels": stock.kernels if stock else None,
            "stock_calls": stock.calls if stock else None,
            "stock_intermediate_bytes": stock.intermediate_bytes if stock else None,
            "stock_from": self.stock_from,
            "assumed_dim": self.assumed_dim,
            "groups": [{"title": g.title, **asdict(g)} for g in self.groups],
            "refused": [edge_to_json(e) for e in self.refused],
            "views": [asdict(v) for v in self.views],
            "opaque": [asdict(o) for o in self.opaque],
            "fallbacks": [asdict(d) for d in self.fallbacks],
            "layouts": [asdict(d) for d in self.layouts],
            "tuned": [asdict(d) for d in self.tuned],
            "measured": [asdict(d) for d in self.measured],
            "workers": [asdict(d) for d in self.workers],
            "rewriting": None if self.rewriting is None else self.rewriting.to_json(),
            "recomposed": {name: list(known_by) for name, known_by in self.recomposed.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Explanation:
        """Read what :meth:`to_json` gave."""
        counts = Counts(
            data["kernels"], data["calls"], data["intermediate_bytes"], tuple(data["caveats"])
        )
        stock = [data[f"stock_{key}"] for key in ("kernels", "calls", "intermediate_bytes")]
        return cls(
            source=data["model"],
            target=data["target"],
            assumed_dim=data["assumed_dim"],
            groups=tuple(group_from_json(group) for group in data["groups"]),
            refused=tuple(edge_from_json(edge) for edge in data["refused"]),
            views=tuple(map(member_from_json, data["views"])),
            opaque=tuple(map(member_from_json, data["opaque"])),
            fallbacks=tuple(_decision(decision) for decision in data["fallbacks"]),
            layouts=tuple(_decision(decision) for decision in data.get("layouts", ())),
            tuned=tuple(_decision(decision) for decision in data.get("tuned", ())),
            measured=tuple(_decision(decision) for decision in data.get("measured", ())),
            workers=tuple(_decision(decision) for decision in data.get("workers", ())),
            counts=counts,
            stock=None if stock[0] is None else Counts(*stock),
            stock_from=data["stock_from"],
            about=data["about"],
            rewriting=data["rewriting"] and Rewriting.from_json(data["rewriting"]),
            recomposed={name: tuple(known_by) for name, known_by in data["recomposed"].items()},
        )

    def show(self, console: Console | None = None) -> None:
        """Print it as tables; equal groups and equal refusals are one row each."""
        show(self, console or Console())

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=_WIDTH))
        return text.getvalue().rstrip("\n")

    def _members(self) -> Iterator[Member]:
        for group in self.groups:
            yield from group.members
        yield from self.views
        yield from self.opaque


def _decision(data: Mapping[str, Any]) -> Decision:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Decision(**values)
