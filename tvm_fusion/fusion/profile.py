"""The profile database: what alternatives take, measured against each other, asked by the planner.

  key the groups of every alternative;  the records have the question: take its answer
  else, where measuring is allowed:     measure, record the answer (or why there is none)
  else:                                 no answer; the caller estimates

DNNFusion decides the yellow cells of its mapping table by such a database. Fused against unfused,
one kernel or two, a norm inside of a matrix product or before it, values computed again or stored,
and convolutions in two layouts are all questions of this form. What cannot be measured once
(symbolic shapes, layouts that not all groups take) is left to the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tvm import tirx

from ..device import Device
from ..ecg.graph import Value
from ..program.group import Group
from .database.comparisons import Comparison, Comparisons, Question
from .database.key import Key
from .database.records import Records


@dataclass(frozen=True, eq=False)
class ProfiledGroup:
    """A group of an alternative, and what its tensors stand for."""

    template: str  # whose kernels it is to have; empty for views alone, which need none
    group: Group  # in the layouts that its images will have
    # Of the graph, in the order of the group's own: parts of one alternative meet in them.
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def plain(cls, template: str, group: Group) -> ProfiledGroup:
        """Take a group as the graph has it."""
        return cls(template, group, group.inputs, group.outputs)

    @classmethod
    def laid_out(
        cls, template: str, group: Group, original: Mapping[Value, Value]
    ) -> ProfiledGroup:
        """Take a variant of a group, given what its tensors stand for."""
        inputs, outputs = (
            tuple(original[v] for v in values) for values in (group.inputs, group.outputs)
        )
        return cls(template, group, inputs, outputs)

    @property
    def is_static(self) -> bool:
        """Whether there is one shape to measure."""
        values = (v for op in self.group.members for v in (*op.tensors, *op.results))
        return not self.group.scalars and all(
            isinstance(d, tirx.IntImm) for v in values for d in v.shape
        )


Alternative = Sequence[ProfiledGroup]


class Unmeasured(Exception):
    """An alternative cannot be built, crashes, takes too long, or gives other results."""


class NotNow(Exception):
    """What may be spent on measuring is spent."""


#: Microseconds of each alternative, and of how many batches. Raises Unmeasured or NotNow.
Bench = Callable[[Sequence[Alternative]], tuple[Sequence[float], int]]


class Profile:
    """Answers of a file of records, and of a bench where they have none.

    Parameters
    ----------
    bench
        Measures alternatives on the device; none: nothing new is measured.

    Attributes
    ----------
    measured, known, failed : int
        Distinct questions that were measured now, that the records answered, and that were tried
        and have no answer, now or earlier.
    estimated : int
        Distinct questions that were left to the model.
    """

    def __init__(self, records: Records, bench: Bench | None = None) -> None:
        if bench is not None:
            records.check_writable()
        self._answers = Comparisons(records)
        self._bench = bench
        self._process = os.getpid()
        self._seen: dict[str, Comparison | None] = {}
        self.measured = self.known = self.failed = self.estimated = 0

    def ask(self, alternatives: Sequence[Alternative], device: Device) -> Comparison | None:
        """Tell what alternatives take; ``None`` if that is not known and not measured now."""
        if os.getpid() != self._process:  # SQLite's connections do not survive a fork
            return None
        if not all(part.is_static for parts in alternatives for part in parts):
            return None
        question = question_of(alternatives, device)
        if question.structure not in self._seen:
            self._seen[question.structure] = self._answer(question, alternatives)
        found = self._seen[question.structure]
        return found if found is not None and not found.error else None

    def counts(self) -> dict[str, int]:
        """List how many questions there were, by where the answer came from."""
        names = ("measured", "known", "failed", "estimated")
        return {name: getattr(self, name) for name in names}

    def source(self, answer: Comparison) -> str:
        """Name the record of an answer, for a reader."""
        return f"record {answer.number} of {self._answers.records.path.name}"

    def _answer(self, question: Question, alternatives: Sequence[Alternative]) -> Comparison | None:
        known = self._answers.get(question)
        if known is not None:
            self.known += not known.error
            self.failed += bool(known.error)
            return known
        if self._bench is None:
            self.estimated += 1
            return None
        try:
            us, runs = self._bench(alternatives)
        except NotNow:
            self.estimated += 1
            return None
        except Unmeasured as reason:  # kept, so that it is not tried again
            self.failed += 1
            return self._answers.put(Comparison(question, (), 0, str(reason)))
        self.measured += 1
        return self._answers.put(Comparison(question, tuple(us), runs))


def question_of(alternatives: Sequence[Alternative], device: Device) -> Question:
    """Name what is asked, as the records have it."""
    keys = [[Key.of(part.group, part.template, device) for part in parts] for parts in alternatives]
    title = " + ".join(part.group.title for part in min(alternatives, key=len))
    return Question.of(keys, title)


_profile: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def profiling(profile: Profile | None) -> Iterator[None]:
    """Let the planner ask a profile inside of ``with``; it decides by the model for ``None``."""
    token = _profile.set(profile)
    try:
        yield
    finally:
        _profile.reset(token)


def current_profile() -> Profile | None:
    """Return the profile that the planner asks now."""
    return _profile.get()
