"""Tune: measure configurations of a model's kernels on this machine, and record the fastest."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...errors import UserError
from ...fusion.database.comparisons import Comparisons
from ...fusion.database.key import versions
from ...fusion.database.records import Records
from ...fusion.database.tuning_records import TuningRecords
from ...words import counted
from ..model import add_model_arguments, config_of, profile_sentence


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


VARIABLE = "TVM_FUSION_RECORDS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_model_arguments(parser, is_optional=True)
    parser.add_argument(
        "--budget",
        default="10m",
        metavar="30m|trials=N",
        help="time of this run, or trials of all runs (default: %(default)s)",
    )
    parser.add_argument(
        "--runner",
        default="local",
        metavar="local|rpc://HOST:PORT/KEY",
        help="where candidates are measured: here, or by the servers of a TVM RPC tracker "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--search",
        choices=("bayesian", "evolutionary"),
        default="bayesian",
        help="how configurations are chosen (default: %(default)s); evolutionary: by "
        "MetaSchedule's search and its XGBoost model",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")
    parser.add_argument(
        "--export-candidates",
        type=Path,
        metavar="DIR",
        help="build candidates for a device that is elsewhere, instead of measuring here: run "
        "DIR/measure.py there, and --import the result; with --profile, the planner's questions "
        "first",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="show the records instead of tuning")
    instead.add_argument(
        "--prune",
        action="store_true",
        help="instead, remove records of other versions and failed trials, which are "
        "then tried again",
    )
    instead.add_argument(
        "--export", type=Path, metavar="FILE", help="instead, write the records as JSON lines"
    )
    instead.add_argument(
        "--import",
        dest="import_",
        type=Path,
        metavar="FILE",
        help="instead, add records that --export has written",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Tune, or look after records.

    Returns
    -------
    dict
        ``db``, ``action``; of ``tune``: ``tasks``, ``tuned``, ``trials``, ``failed``, ``fixed``,
        ``symbolic``, ``profile``, ``default_us``, ``us`` and ``model`` as
        :class:`tvm_fusion.tuning.Tuning` has them; of ``list``: ``records``, ``unfinished``,
        ``comparisons``; of ``candidates``: ``folder``, ``tasks``, ``candidates``, ``comparisons``,
        ``failed``; of the others: ``count``.
    """
    db = options.db or os.environ.get(VARIABLE)
    if not db:
        raise UserError("no records are named", "--db FILE", f"name a file, or set {VARIABLE}")
    instead = [n for n in ("list", "prune", "export", "import_") if getattr(options, n)]
    if instead and options.model is not None:
        option = f"--{instead[0].rstrip('_')}"
        raise UserError(f"{option} and a model", f"{option} alone", "leave one of them out")
    if options.export_candidates and options.runner != "local":
        found = "--export-candidates and --runner"
        raise UserError(found, "one place to measure in", "leave one of them out")
    manage = _manage(options, db)
    if manage is not None:
        return {"db": str(db), **manage}
    if options.model is None:
        raise UserError("no model is named", "an ONNX or .pt2 file, or one of --list, --prune, ...")
    if options.export_candidates:
        return {"db": str(db), "action": "candidates", **_candidates(options, db)}
    return {"db": str(db), "action": "tune", **_tune(options, db)}


def _candidates(options: argparse.Namespace, db: str | Path) -> dict[str, Any]:
    from ..._tvm.log import quiet_log
    from ...tuning.candidates import export_candidates

    with quiet_log() as terminal:
        return export_candidates(
            options.model,
            options.target,
            options.export_candidates,
            config_of(options),
            db=db,
            budget=options.budget,
            seed=options.seed,
            progress=lambda text: print(text, file=terminal),
        )


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was found, or what is recorded."""
    db, action = escape(result["db"]), result["action"]
    if action == "list":
        console.print(_table(result["records"]))
        if result["unfinished"]:
            console.print(_interrupted(result["unfinished"]))
        if result["comparisons"]:
            console.print(_compared(result["comparisons"]))
    elif action == "candidates":
        what = f"{counted(result['candidates'], 'candidate')} of {counted(result['tasks'], 'task')}"
        if result["comparisons"]:
            what = f"{counted(result['comparisons'], 'question')} of the planner"
        console.print(
            f"[bold]{escape(result['folder'])}[/]: {what}; run measure.py where the device is, and "
            "`tvm-fusion tune --import` what it writes"
        )
        if result["failed"]:
            console.print(f"  {counted(result['failed'], 'candidate')} could not be built")
    elif action != "tune":
        done = {"prune": "removed", "export": "written", "import": "imported"}[action]
        console.print(f"[bold]{db}[/]: {counted(result['count'], 'record')} {done}")
    else:
        _show_tuning(result, db, console)


def _manage(options: argparse.Namespace, db: str | Path) -> dict[str, Any] | None:
    from ...tuning import exchange

    if options.list:
        return {
            "action": "list",
            "records": listed(db),
            "unfinished": unfinished(db),
            "comparisons": comparisons(db),
        }
    if options.prune:
        return {"action": "prune", "count": prune(db)}
    if options.export:
        return {"action": "export", "count": exchange.export_lines(db, options.export)}
    if options.import_:
        return {"action": "import", "count": exchange.import_lines(db, options.import_)}
    return None


def _tune(options: argparse.Namespace, db: str | Path) -> dict[str, Any]:
    from dataclasses import asdict

    from ..._tvm.log import quiet_log
    from ...tuning import tune
    from ...tuning.view import view

    with quiet_log() as terminal, view(Console(file=terminal), options.quiet) as progress:
        found = tune(
            options.model,
            options.target,
            config_of(options),
            db=db,
            budget=options.budget,
            runner=options.runner,
            search=options.search,
            seed=options.seed,
            progress=progress,
        )
    result = asdict(found)
    del result["db"]
    if found.model is not None:
        result["model"]["gain"] = found.model.gain
    return result


def _show_tuning(result: dict[str, Any], db: str, console: Console) -> None:
    from ...tuning.view import duration

    tasks = counted(result["tasks"], "task")
    console.print(
        f"[bold]{db}[/]: {result['tuned']} of {tasks} faster than the default after "
        f"{counted(result['trials'], 'trial')} ({result['failed']} failed); "
        f"{duration(result['default_us'])} -> {duration(result['us'])} of kernels"
    )
    others = [f"{result['fixed']} without choices"] if result["fixed"] else []
    others += [f"{result['symbolic']} of symbolic shapes"] if result["symbolic"] else []
    if others:
        console.print(f"  not tuned: {', '.join(others)}")
    if any(result["profile"].values()):
        console.print(f"  {profile_sentence(result['profile'])}", highlight=False)
    model = result["model"]
    if model and model["error"]:
        console.print(f"  the whole model was not timed: {model['error']}", markup=False)
    elif model:
        console.print(
            f"  the whole model: {duration(model['default_us'])} -> {duration(model['us'])} "
            f"({model['gain']:.3f}x)"
        )


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table()
    table.add_column("", justify="right")
    table.add_column("task", overflow="fold")
    table.add_column("configuration", overflow="fold")
    for name in ("us", "gain", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("device", "date"):
        table.add_column(name, overflow="fold")
    for one in records:
        config = ", ".join(f"{name} {value}" for name, value in one["config"].items())
        table.add_row(
            str(one["number"]),
            f"{escape(one['title'])} [dim]by {one['template']}[/]",
            escape(config),
            f"{one['us']:.1f}",
            f"{one['gain']:.3f}x",
            str(one["trials"]),
            escape(str(one["device"][2] or one["device"][1])),
            one["date"],
        )
    return table


def _interrupted(tasks: list[dict[str, Any]]) -> Table:
    table = Table(
        title="interrupted before configurations were chosen: the same command continues",
        title_justify="left",
    )
    table.add_column("", justify="right")
    table.add_column("task", overflow="fold")
    for name in ("best gain", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in tasks:
        gain = "" if one["gain"] is None else f"{one['gain']:.3f}x"
        table.add_row(str(one["number"]), escape(one["title"]), gain, str(one["trials"]))
    return table


def _compared(comparisons: list[dict[str, Any]]) -> Table:
    table = Table(title="compared for the planner", title_justify="left")
    table.add_column("", justify="right")
    table.add_column("operators", overflow="fold")
    table.add_column("fused us", justify="right", no_wrap=True)
    table.add_column("unfused us", justify="right", no_wrap=True)
    for one in comparisons:
        times = [f"{us:.1f}" for us in one["us"]] or [escape(one["error"]), ""]
        table.add_row(str(one["number"]), escape(one["title"]), *times)
    return table
