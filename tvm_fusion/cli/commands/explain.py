"""Explain: show which operators share kernels, which do not, and why."""

import argparse
from dataclasses import replace
from typing import Any

from rich.console import Console

from ...errors import UserError
from ...words import counted
from ..model import add_model_arguments, add_worker_arguments, config_of, worker_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_model_arguments(parser)
    add_worker_arguments(parser)
    parser.add_argument(
        "--op",
        metavar="NAME",
        help="show only the groups and edges of these operators, and which templates and forms of "
        "kernels were chosen between: an ONNX node, PyTorch module or tensor of the model (a "
        "module stands for all operators in it), a glob, a variable, or an operator such as "
        "nn.softmax, softmax or attention (also where the model has it decomposed)",
    )
    parser.add_argument(
        "--rewrites",
        action="store_true",
        help="show what the rewriting stage changed, by which rules, and what that saves",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page for a browser: the graph before and after, reasons, prices, kernels",
    )
    parser.add_argument(
        "--times",
        metavar="FILE",
        help="what `tvm-fusion profile --json` printed for the model's artifact: the page shows "
        "its times",
    )
    parser.add_argument(
        "--no-stock", action="store_true", help="do not count the kernels of stock TVM"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Plan, schedule, count.

    Returns
    -------
    dict
        As :meth:`tvm_fusion.report.explain.Explanation.to_json` says; ``html`` is the page, if one
        was asked for.
    """
    from ..._tvm.log import quiet_log
    from ...report.explain import explained
    from ...report.page.document import check_writable, write
    from ...report.page.profile import read_profile

    is_page, times = options.html is not None, None
    if is_page:
        check_writable(options.html)
    if options.times is not None:
        if not is_page:
            raise UserError("--times without --html", "a page, which shows the times")
        times = read_profile(options.times)
    with quiet_log():
        found = explained(
            options.model,
            options.target,
            replace(config_of(options), **worker_options(options)),
            stock=not options.no_stock,
            rewrites=options.rewrites or is_page,
            forms=options.op is not None or is_page,
        )
        if is_page:
            from ...report.page.explanation import explanation_content

            write(options.html, explanation_content(found, times))
    explanation = found.explanation
    if is_page:
        return {**explanation.to_json(), "html": options.html}
    if options.op is not None:
        explanation = explanation.of(options.op)
    return explanation.to_json()


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables, or where the page is."""
    if "html" in result:
        kernels = counted(result["kernels"], "kernel")
        text = f"wrote {result['html']} ({kernels}); open it in a browser"
        console.print(text, markup=False, highlight=False)
        return
    from ...report.explain import Explanation

    Explanation.from_json(result).show(console)
