"""Bisect: find the fusion decision that breaks a model or slows it down."""

import argparse
from typing import Any

from rich.console import Console

from ...core.progress import report
from ...errors import UserError
from ...measure.errors import TOLERANCE
from ...words import counted, few
from ..inputs import read_inputs
from ..model import add_model_arguments, config_of

_SLOWER = 0.05  # of the operators' own time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="one input's array"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name")
    parser.add_argument("--seed", type=int, default=0, help="seed of random inputs (default: 0)")
    parser.add_argument(
        "--slow", action="store_true", help="look for lost time instead of lost accuracy"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="limit on max|a-b|/max|b| of each output against the unfused model (default: 1e-4 for "
        "fp32, 1e-2 fp16, 5e-2 bf16); with --slow the share of time that fusing may cost "
        "(default: 0.05)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compile variants, run them, compare.

    Returns
    -------
    dict
        ``passed`` and the attributes of :class:`tvm_fusion.report.bisect.Bisection`.
    """
    from ..._tvm.log import quiet_log
    from ...device import parse
    from ...measure.isolate import Failed
    from ...report.bisect import find_broken, find_slow
    from ...report.bisect.execute import check_runnable
    from ...report.planned import plan_model

    tolerance = options.tolerance
    if tolerance is None:
        tolerance = _SLOWER if options.slow else TOLERANCE[options.precision]
    if not tolerance >= 0:
        raise UserError(f"--tolerance {tolerance}", "0 or more")
    spec = parse(options.target)
    check_runnable(spec)  # before the work of planning
    with quiet_log():
        planned = plan_model(options.model, spec, config_of(options))
        imported = planned.imported
        # --dim has said what the dimensions are; random inputs take them at their lower ends.
        given = argparse.Namespace(**{**vars(options), "dim": []})
        inputs = read_inputs(given, imported.signatures[planned.main], imported.dims)

        find = find_slow if options.slow else find_broken
        try:
            return find(planned, inputs, tolerance, report).to_json()
        except Failed as failure:
            raise UserError(
                f"the model cannot be timed ({failure})",
                "a model that runs",
                "find what breaks it by `bisect` without --slow",
            ) from failure


def show(result: dict[str, Any], console: Console) -> None:
    """Print who is at fault."""
    groups, variants = counted(result["candidates"], "group"), counted(result["probes"], "variant")
    total = f"{groups} of several operators, {variants}"
    if result["reference_crash"]:
        text = f"The unfused model fails, so no merge is at fault: {result['reference_crash']}"
        console.print(text, style="red", markup=False)
    for culprit in result["culprits"]:
        _show_culprit(culprit, console)
    for slow in result["slow"]:
        group = slow["group"]
        console.print(
            f"[red]slow[/]: {slow['fused_us']:.1f} us fused, {slow['unfused_us']:.1f} us unfused"
            + (" (whole model)" if slow["measured"] == "model" else "")
        )
        _show_group(group, console)
    if result["times_us"]:
        times = (f"{us:.0f} us {name.replace('_', ' ')}" for name, us in result["times_us"].items())
        console.print(f"the model: {', '.join(times)}")
    if result["cured"]:
        console.print(f"without them: {_outcome(result['cured'])}", markup=False)
    if result["passed"]:
        console.print(f"[green]passed[/]: fusion is not at fault ({total})")
        if result["fused"]:
            console.print(f"  fused against unfused: {_outcome(result['fused'])}", markup=False)
    else:
        console.print(f"{total}, tolerance {result['tolerance']:g}")


def _show_culprit(culprit: dict[str, Any], console: Console) -> None:
    together = "" if len(culprit["groups"]) == 1 else ", together only"
    console.print(f"[red]broken[/]{together}: {_outcome(culprit['alone'])}")
    for group in culprit["groups"]:
        _show_group(group, console)
    smallest = culprit["smallest"]
    if smallest and len(smallest) < len(culprit["groups"][0]["members"]):
        part = " + ".join(f"{m['variable']} ({m['title']})" for m in smallest)
        console.print(f"  it is enough to fuse {part}", markup=False)


def _show_group(group: dict[str, Any], console: Console) -> None:
    times = f"{group['instances']} x " if group["instances"] > 1 else ""
    console.print(f"  {times}{group['title']}, by the template {group['template']}", markup=False)
    for member in group["members"]:
        text = f"    {member['variable']} = {member['operator']} ({member['type']})"
        named = few(member["names"])
        console.print(f"{text}: {named}" if named else text, markup=False)
    for decision in group["decisions"]:
        ends = (few(decision[f"{end}_names"]) or decision[end] for end in ("producer", "consumer"))
        text = f"    {' -> '.join(ends)}: {decision['code']}"
        console.print(f"{text}. {decision['sentence']}", markup=False)


def _outcome(outcome: dict[str, Any]) -> str:
    if outcome["crash"]:
        return f"crashes ({outcome['crash']})"
    worst = max(outcome["outputs"], key=outcome["outputs"].__getitem__, default="")
    return f"error {outcome['error']:.2e} in {worst}"
