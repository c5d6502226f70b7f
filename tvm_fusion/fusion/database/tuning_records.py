"""What a tuner has measured: tasks, trials of their configurations, and the best of each.

Tables ``task`` (a :class:`~.key.Key` and a title), ``trial`` (configuration as JSON with
sorted keys, its time and the default's in the same process, or the error) and ``tuned`` (the
configuration to use, measured again against the default; the default's own where nothing beats it).
Every row is on the disk when its method returns, so that a killed tuner loses one trial at most.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from ...core.contract.template import Config
from .key import Key
from .records import Records

_KEY = "structure = ? AND dtypes = ? AND shapes = ? AND device = ? AND versions = ?"
_TASK = "structure, dtypes, shapes, device, versions, title"


@dataclass(frozen=True)
class Trial:
    """One configuration of a task, measured."""

    config: Config  # the configuration
    # Its microseconds and the default's, in turns in one process; ``None`` after an error.
    us: float | None
    default_us: float | None
    # Why there is no time: it crashed, took too long, gave other results. Else empty.
    error: str = ""

    @property
    def ratio(self) -> float:
        """Its time over the default's; infinite after an error."""
        return math.inf if not self.us or not self.default_us else self.us / self.default_us


@dataclass(frozen=True)
class Best:
    """The configuration to use for a task."""

    number: int
    key: Key
    title: str
    config: Config
    us: float
    default_us: float
    trials: int
    date: str


class TuningRecords:
    """The tuner's tables of an open file."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def trials(self, key: Key) -> list[Trial]:
        """List what was measured for a task."""
        found = self.records.query(
            "SELECT config, us, default_us, error FROM trial JOIN task ON task = id "
            f"WHERE {_KEY} ORDER BY config",
            astuple(key),
        )
        return [Trial(json.loads(config), *rest) for config, *rest in found]

    def put_trial(self, key: Key, title: str, trial: Trial) -> None:
        """Keep a measurement; one of the same configuration is replaced."""
        self.records.execute(
            "INSERT OR REPLACE INTO trial VALUES (?, ?, ?, ?, ?, datetime('now'))",
            (self._task(key, title), text(trial.config), trial.us, trial.default_us, trial.error),
        )

    def put_best(self, key: Key, title: str, config: Config, us: float, default_us: float) -> None:
        """Keep the configuration to use for a task."""
        self.records.execute(
            "INSERT OR REPLACE INTO tuned VALUES (?, ?, ?, ?, datetime('now'))",
            (self._task(key, title), text(config), us, default_us),
        )

    def best(self, key: Key) -> Best | None:
        """Look up a task of exactly this key."""
        return next(iter(self._best(_KEY, astuple(key))), None)

    def alike(self, key: Key) -> list[Best]:
        """List the same group on whatever device, by whatever versions; the newest first."""
        return self._best(
            "structure = ? AND dtypes = ? AND shapes = ?", (key.structure, key.dtypes, key.shapes)
        )

    def everything(self) -> list[Best]:
        """List all tasks that have a configuration to use, those that gained most first."""
        found = self._best("1", ())
        return sorted(found, key=lambda best: best.us / best.default_us)

    def remove(self, numbers: list[int]) -> int:
        """Remove tasks with their trials; tells how many there were."""
        return sum(self.records.execute("DELETE FROM task WHERE id = ?", (n,)) for n in numbers)

    def remove_failed(self) -> int:
        """Remove trials without a time, so that they are measured again; tells how many."""
        return self.records.execute("DELETE FROM trial WHERE us IS NULL")

    def tasks(self) -> list[tuple[int, Key, str]]:
        """List the numbers, keys and titles of all tasks."""
        rows = self.records.query(f"SELECT id, {_TASK} FROM task ORDER BY id", ())
        return [(number, Key(*fields), title) for number, *fields, title in rows]

    def unfinished(self) -> list[tuple[int, str, int, float | None]]:
        """List tasks without a chosen configuration: number, title, trials, the best one's gain."""
        return self.records.query(
            "SELECT id, title, count(*), max(default_us / us) "
            "FROM task JOIN trial ON trial.task = id "
            "WHERE id NOT IN (SELECT task FROM tuned) GROUP BY id ORDER BY id",
            (),
        )

    def _task(self, key: Key, title: str) -> int:
        self.records.execute(
            f"INSERT OR IGNORE INTO task ({_TASK}) VALUES (?, ?, ?, ?, ?, ?)",
            (*astuple(key), title),
        )
        return int(self.records.query(f"SELECT id FROM task WHERE {_KEY}", astuple(key))[0][0])

    def _best(self, condition: str, values: tuple) -> list[Best]:
        rows = self.records.query(
            f"SELECT id, {_TASK}, config, us, default_us, date, "
            "(SELECT count(*) FROM trial WHERE trial.task = id) "
            f"FROM tuned JOIN task ON task = id WHERE {condition} ORDER BY date DESC, id DESC",
            values,
        )
        return [
            Best(number, Key(*fields), title, json.loads(config), us, default_us, trials, date)
            for number, *fields, title, config, us, default_us, date, trials in rows
        ]


def text(config: Mapping[str, int | str]) -> str:
    """Write a configuration as the file has it: equal ones are equal texts."""
    return json.dumps(dict(config), sort_keys=True)
