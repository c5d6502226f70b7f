"""Records as JSON lines: a line for each task, to be read, kept under version control, and moved.

A line has ``key`` (the five texts of a Key), ``title``, ``trials`` (lists of configuration,
microseconds, the default's, error) and ``tuned`` (configuration, microseconds, the default's), or
null. A line of the profile database has ``comparison``: the fields of a
:class:`~..fusion.database.comparisons.Comparison`.
"""

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.contract.template import Config
from ..errors import UserError, refuse_lfs_pointer
from ..fusion.database.comparisons import Comparison, Comparisons, Question
from ..fusion.database.key import Key
from ..fusion.database.records import Records
from ..fusion.database.tuning_records import Trial, TuningRecords


def export_lines(db: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write all tasks and comparisons of a file of records; tells how many.

    Raises
    ------
    UserError
        If the records cannot be read, or the lines cannot be written.
    """
    with Records.open(db, must_exist=True) as records:
        known = TuningRecords(records)
        lines = []
        for _, key, title in known.tasks():
            best = known.best(key)
            line = {
                "key": asdict(key),
                "title": title,
                "trials": [
                    [dict(t.config), t.us, t.default_us, t.error] for t in known.trials(key)
                ],
                "tuned": best and [dict(best.config), best.us, best.default_us],
            }
            lines.append(json.dumps(line, sort_keys=True) + "\n")
        for answer in Comparisons(records).everything():
            line = asdict(answer)
            del line["number"]
            lines.append(json.dumps({"comparison": line}, sort_keys=True) + "\n")
    try:
        _write(Path(path), "".join(lines))
    except OSError as error:
        raise UserError(f"{os.fspath(path)!r} cannot be written ({error.strerror})") from error
    return len(lines)


def _write(path: Path, text: str) -> None:
    """Write a file, or none: under another name next to it, and then renamed."""
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    staging = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def import_lines(db: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Add tasks and comparisons to a file of records; tells how many.

    A task may have several lines. Of one that is there already, trials are added, and the
    configuration to use is replaced where the new one gains more. Nothing is written unless all
    lines can be read.

    Raises
    ------
    UserError
        For the first line that is no record, and for files that cannot be used.
    """
    refuse_lfs_pointer(path)
    try:
        if Path(path).is_fifo() or Path(path).is_char_device():  # which may never end
            raise UserError(f"{os.fspath(path)!r} is not a regular file", "lines that tune wrote")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{os.fspath(path)!r} cannot be read as lines of text ({error})") from error
    read = [_read(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    with Records.open(db) as records:
        records.check_writable()
        known, answers = TuningRecords(records), Comparisons(records)
        for one in read:
            if isinstance(one, Comparison):
                answers.put(one)
                continue
            for trial in one.trials:
                known.put_trial(one.key, one.title, trial)
            if one.tuned is None:
                continue
            before = known.best(one.key)
            config, us, default_us = one.tuned
            if before is None or us / default_us < before.us / before.default_us:
                known.put_best(one.key, one.title, config, us, default_us)
    keys = {one.key for one in read if isinstance(one, _Line)}
    return len(keys) + sum(isinstance(one, Comparison) for one in read)


@dataclass(frozen=True)
class _Line:
    key: Key
    title: str
    trials: list[Trial]
    tuned: tuple[Config, float, float] | None


def _read(line: str, number: int, path: str | os.PathLike[str]) -> _Line | Comparison:
    try:
        data = json.loads(line)
        if "comparison" in data:
            return _comparison(**data["comparison"])
        key = Key(**data["key"])
        if not all(isinstance(text, str) for text in asdict(key).values()):
            raise TypeError("its key is no texts")
        trials = [_trial(*trial) for trial in data["trials"]]
        tuned = data["tuned"]
        if tuned is not None:
            tuned = _config(tuned[0]), _time(tuned[1]), _time(tuned[2])
        return _Line(key, str(data["title"]), trials, tuned)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
        raise UserError(
            f"line {number} of {os.fspath(path)!r} is not a record ({error})",
            "lines that tune --export has written",
            "remove the line; nothing was imported",
        ) from error


def _comparison(question: Any, us: Any, runs: Any, error: Any) -> Comparison:
    asked = Question(**question)
    if not all(isinstance(text, str) for text in (*asdict(asked).values(), error)):
        raise TypeError("its question is not an object of strings")
    return Comparison(asked, tuple(map(_time, us)), int(runs), error)


def _trial(config: Any, us: Any, default_us: Any, error: Any) -> Trial:
    if us is None:
        return Trial(_config(config), None, None, str(error))
    return Trial(_config(config), _time(us), _time(default_us), str(error))


def _config(value: Any) -> Config:
    if not isinstance(value, Mapping) or not all(isinstance(v, int | str) for v in value.values()):
        raise TypeError("a configuration is not an object of numbers and strings")
    return value


def _time(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{value!r} us is not a duration")
    return float(value)
