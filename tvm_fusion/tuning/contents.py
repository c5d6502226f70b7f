"""What a file of records has: listed, and cleared of what is of no use."""

from __future__ import annotations

import json
import os
from typing import Any

from ..fusion.database.comparisons import Comparisons
from ..fusion.database.key import versions
from ..fusion.database.records import Records
from ..fusion.database.tuning_records import TuningRecords


def listed(db: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """List the tasks that have a configuration to use, those that gained most first.

    Returns
    -------
    list of dict
        ``number``, ``title``, ``template``, ``config``, ``us``, ``default_us``, ``gain``,
        ``trials``, ``device``, ``versions``, ``date``.

    Raises
    ------
    UserError
        If the file does not exist or is no file of records.
    """
    with Records.open(db, must_exist=True) as records:
        found = TuningRecords(records).everything()
    return [
        {
            "number": best.number,
            "title": best.title,
            "template": json.loads(best.key.versions)["template"],
            "config": dict(best.config),
            "us": best.us,
            "default_us": best.default_us,
            "gain": best.default_us / best.us,
            "trials": best.trials,
            "device": json.loads(best.key.device),
            "versions": json.loads(best.key.versions),
            "date": best.date,
        }
        for best in found
    ]


def unfinished(db: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """List the tasks with trials and no configuration to use: their run was interrupted.

    Returns
    -------
    list of dict
        ``number``, ``title``, ``trials``, and ``gain``: how many times as fast as the default the
        best trial was; None where none has a time.
    """
    with Records.open(db, must_exist=True) as records:
        found = TuningRecords(records).unfinished()
    return [dict(zip(("number", "title", "trials", "gain"), row, strict=True)) for row in found]


def comparisons(db: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """List the answers of the profile database.

    Returns
    -------
    list of dict
        ``number``, ``title``, ``us`` of each alternative (what is fused first), ``error``,
        ``device``, ``versions``.
    """
    with Records.open(db, must_exist=True) as records:
        found = Comparisons(records).everything()
    return [
        {
            "number": answer.number,
            "title": answer.question.title,
            "us": list(answer.us),
            "error": answer.error,
            "device": json.loads(answer.question.device),
            "versions": json.loads(answer.question.versions),
        }
        for answer in found
    ]


def prune(db: str | os.PathLike[str]) -> int:
    """Remove what other versions of tvm_fusion or apache-tvm have measured, and failures.

    A candidate that crashed, took too long or gave other results is recorded and not measured
    again; but a time-out may have been that of a busy machine. Without its record it is measured
    again by the next run.

    Returns
    -------
    int
        How many tasks and comparisons of other versions, failed trials and failed comparisons.

    Raises
    ------
    UserError
        If the file does not exist, is no file of records or cannot be written.
    """
    ours = versions()
    with Records.open(db, must_exist=True) as records:
        records.check_writable()
        known = TuningRecords(records)
        answers = Comparisons(records)

        def is_other(text: str) -> bool:
            theirs = json.loads(text)
            return any(theirs.get(package) != version for package, version in ours.items())

        tasks = [number for number, key, _ in known.tasks() if is_other(key.versions)]
        others = [
            a.number for a in answers.everything() if is_other(a.question.versions) or a.error
        ]
        return known.remove(tasks) + known.remove_failed() + answers.remove(others)
