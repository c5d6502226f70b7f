"""Profile: time an artifact kernel by kernel."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...errors import UserError
from ...words import counted
from ..executable import (
    add_artifact_argument,
    add_function_argument,
    executable_of,
    function_of,
)
from ..inputs import add_input_arguments, add_threads_argument, choose_threads, read_inputs

if TYPE_CHECKING:
    from ...deploy.runtime.profile.result import KernelTime, Profile

_PROCESS, _CALL, _KERNELS = 1, 1, 2


def trace(profile: Profile) -> dict[str, Any]:
    """Write the run that is the median as complete events, in microseconds.

    Returns
    -------
    dict
        ``traceEvents``: the whole call on one track, its kernels on another; as JSON it is a file
        that ui.perfetto.dev opens.
    """
    ends = [row.start_us + row.spent_us for row in profile.rows]
    whole = max([profile.end_to_end_us, *ends])
    events: list[dict[str, Any]] = [
        _named("process_name", f"{profile.source} on {profile.device}", _CALL),
        _named("thread_name", "call", _CALL),
        _named("thread_name", f"kernels ({profile.clock})", _KERNELS),
        _event(profile.function, 0.0, whole, _CALL, {"extents": dict(profile.extents)}),
    ]
    for row in profile.rows:
        facts = {
            "kernels": list(row.kernels),
            "names": list(row.names),
            "template": row.template,
            "configuration": dict(row.config),
            "predicted us": row.predicted_us,
            "price": row.source,
            "bytes": row.bytes,
            "flops": row.flops,
        }
        events.append(_event(row.title, row.start_us, row.spent_us, _KERNELS, facts))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(kind: str, name: str, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(
    name: str, start: float, duration: float, thread: int, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "ts": start, "dur": duration,
        "pid": _PROCESS, "tid": thread, "args": facts,
    }  # fmt: skip


_SHOWN = 20  # rows, the longest
_LONG = 6  # members of a row from which on a few are named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_artifact_argument(parser)
    add_input_arguments(parser)
    add_function_argument(parser)
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="timed runs (default: 20, and more of a short call, for two seconds)",
    )
    parser.add_argument(
        "--warmup", type=int, default=3, metavar="N", help="untimed runs before them (default: 3)"
    )
    add_threads_argument(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="show all groups of kernels in the order of calls, with their configurations",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write a trace of the fastest run, for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page for a browser; `tvm-fusion explain MODEL --html FILE --times PROFILE` "
        "shows the times in the model's graph",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Profile.

    Returns
    -------
    dict
        The fields of :class:`tvm_fusion.deploy.runtime.profile.result.Profile`.
    """
    from ...report.page.document import check_writable, write
    from ...report.page.profile import profile_content

    if (options.repeat is not None and options.repeat < 1) or options.warmup < 0:
        found = "" if options.repeat is None else f"--repeat {options.repeat} "
        raise UserError(f"{found}--warmup {options.warmup}", "at least 1 and 0")
    if options.html is not None:
        check_writable(options.html)
    choose_threads(options)
    executable = executable_of(options)
    function = function_of(options, executable)
    signature = executable.signatures[function]
    inputs = read_inputs(options, signature, executable.dims)
    profile = executable.profile(
        inputs, function=function, runs=options.repeat, warmup=options.warmup
    )
    if options.trace is not None:
        _write(options.trace, json.dumps(trace(profile)))
    if options.html is not None:
        write(options.html, profile_content(profile))
    return {**profile.to_json(), "all": options.all}


def show(result: dict[str, Any], console: Console) -> None:
    """Print where the time goes."""
    from ...deploy.runtime.profile.result import Profile

    profile = Profile.from_json({k: v for k, v in result.items() if k != "all"})
    at = "".join(f", {name}={extent}" for name, extent in profile.extents.items())
    on = (
        f"{profile.device}, {counted(profile.threads, 'thread')}"
        if profile.threads
        else profile.device
    )
    console.print(f"[bold]{escape(profile.source)}[/] on {escape(on)}{escape(at)}", highlight=False)
    console.print(f"  {_sums(profile)}", markup=False, highlight=False)
    for line in _machine(profile):
        console.print(f"  {line}", markup=False, highlight=False)
    rows = list(profile.rows)
    if not result["all"]:
        rows = sorted(rows, key=lambda row: -row.us)[:_SHOWN]
    console.print(_table(profile, rows, result["all"]), soft_wrap=False)
    for note in profile.notes:
        console.print(f"  {note}", style="yellow", markup=False, highlight=False)


def _sums(profile: Profile) -> str:
    text = (
        f"a call takes {_time(profile.end_to_end_us)}: {_time(profile.kernels_us)} in "
        f"{counted(len(profile.rows), 'group')} of kernels ({profile.kernels_share:.1%})"
    )
    if profile.gaps_us is not None:
        text += f", {_time(profile.gaps_us)} in gaps between them"
    if profile.streamed_us is not None:
        text += f"; {_time(profile.streamed_us)} where calls do not wait for each other"
    if profile.launched_us is not None:
        text += f"; {_time(profile.launched_us)} with each kernel launched by itself, as timed here"
    return text


def _machine(profile: Profile) -> list[str]:
    rates = profile.rates
    found = [f"copies {rates.bandwidth / 1e9:.0f} GB/s"] if rates.bandwidth else []
    peaks = ", ".join(f"{d} {rate / 1e12:.3g}" for d, rate in rates.peak_flops.items())
    found += [f"{rates.peak_from} peak in TFLOP/s: {peaks}"] if peaks else []
    return [f"this machine: {'; '.join(found)}"] if found else []


def _table(profile: Profile, rows: list[KernelTime], is_full: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for name in ("us", "share", "expected", "bandwidth", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("group", overflow="fold", ratio=1)
    for row in rows:
        table.add_row(
            f"{row.us:.1f}",
            f"{row.share:.1%}",
            "" if row.predicted_us is None else f"{row.predicted_us:.1f}",
            _percent(row.bandwidth_share),
            _percent(row.peak_share),
            f"{escape(_members(row))}\n[dim]{escape(_made(row, is_full))}[/]",
        )
    left = len(profile.rows) - len(rows)
    if left:
        rest = profile.kernels_us - sum(row.us for row in rows)
        table.add_row(
            f"{rest:.1f}",
            f"{rest / (profile.kernels_us or 1):.1%}",
            "",
            "",
            "",
            f"{left} more: --all",
        )
    host = f"{profile.host_us:.1f}" if profile.host_us >= 0 else ""
    table.add_row(host, "", "", "", "", "outside of kernels: arguments, virtual machine, gaps")
    sources = sorted({row.source for row in rows if row.source})
    prices = f"expected: {', '.join(sources)}; " if sources else ""
    table.caption = f"{prices}bandwidth, peak: shares of what this machine reaches"
    if "roofline" in sources:
        table.caption += (
            "\nroofline: a model that ranks alternatives; its times are not predictions"
        )
    return table


def _members(row: KernelTime) -> str:
    """Name a row by the user's names, or else by its operators."""
    names = list(row.names or row.operators or row.kernels)
    if len(names) > _LONG:
        names = [*names[: _LONG - 2], f"{len(names) - _LONG + 1} more", names[-1]]
    return " + ".join(names)


def _made(row: KernelTime, is_full: bool) -> str:
    parts = [row.title] if row.names else []
    parts += [f"by {row.template}"] if row.template else []
    config = " ".join(f"{name}={value}" for name, value in row.config.items())
    parts += [config] if config and is_full else []
    parts += [f"{row.bytes / 1e6:.3g} MB, {row.flops / 1e6:.3g} MFLOP"]
    return "; ".join(parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if abs(us) >= 1e3 else f"{us:.1f} us"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        advice = "name a file in a folder that you may write to, with space left"
        raise UserError(f"cannot write {str(path)!r} ({error.strerror})", None, advice) from error
