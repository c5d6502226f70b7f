"""Alternatives that were measured against each other: the table ``comparison`` of the records.

A row is a question (the keys of the groups of each alternative), the microseconds of each
alternative, all from one process and in turns, or the reason why there are none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .key import Key
from .records import Records

_COLUMNS = "question, device, versions, title, us, runs, error, date"


@dataclass(frozen=True)
class Question:
    """Ways of doing the same on one device, of which one takes least."""

    structure: str  # SHA-256 of the keys of all alternatives' groups
    # As a :class:`~.key.Key` has them, without a template.
    device: str
    versions: str
    title: str  # the operators, for a reader

    @classmethod
    def of(cls, alternatives: Sequence[Sequence[Key]], title: str) -> Question:
        """Ask about groups, by their keys; each alternative's in the order of running."""
        groups = [
            [[k.structure, k.dtypes, k.shapes, json.loads(k.versions)["template"]] for k in keys]
            for keys in alternatives
        ]
        first = alternatives[0][0]
        versions = json.loads(first.versions)
        del versions["template"]
        text = json.dumps(groups)
        structure = hashlib.sha256(text.encode()).hexdigest()
        return cls(structure, first.device, json.dumps(versions), title)


@dataclass(frozen=True)
class Comparison:
    """The answer to a question."""

    question: Question  # what was asked
    us: tuple[float, ...]  # median microseconds of each alternative; empty after an error
    runs: int = 1  # batches that the medians are of
    error: str = ""  # why there are no times; else empty
    number: int = 0  # of the record; 0 before there is one


class Comparisons:
    """The table of an open file."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def get(self, question: Question) -> Comparison | None:
        """Look up the answer to a question; ``None`` if nobody measured it."""
        condition = "question = ? AND device = ? AND versions = ?"
        asked = (question.structure, question.device, question.versions)
        return next(iter(self._list(condition, asked)), None)

    def put(self, answer: Comparison) -> Comparison:
        """Keep an answer, instead of an earlier one; returns it with its number."""
        if any(not (math.isfinite(us) and us > 0) for us in answer.us):
            raise ValueError(f"{answer.us} us are not durations")
        asked = answer.question
        values = (asked.structure, asked.device, asked.versions, asked.title)
        self.records.execute(
            f"INSERT INTO comparison ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, datetime('now')) "
            "ON CONFLICT (question, device, versions) DO UPDATE SET title = excluded.title, "
            "us = excluded.us, runs = excluded.runs, error = excluded.error, date = excluded.date",
            (*values, json.dumps(answer.us), answer.runs, answer.error),
        )
        kept = self.get(asked)
        assert kept is not None
        return kept

    def everything(self) -> list[Comparison]:
        """List all answers, in the order of their numbers."""
        return self._list("1", ())

    def remove(self, numbers: Sequence[int]) -> int:
        """Remove answers; tells how many there were."""
        return sum(
            self.records.execute("DELETE FROM comparison WHERE id = ?", (n,)) for n in numbers
        )

    def _list(self, condition: str, values: tuple) -> list[Comparison]:
        rows = self.records.query(
            "SELECT question, device, versions, title, us, runs, error, id FROM comparison "
            f"WHERE {condition} ORDER BY id",
            values,
        )
        return [
            Comparison(Question(*fields), tuple(json.loads(us)), runs, error, number)
            for *fields, us, runs, error, number in rows
        ]
