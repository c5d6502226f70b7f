"""Explain: show which operators share kernels, which do not, and why."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from .model import add_model_arguments, config_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--op",
        metavar="NAME",
        help="only the groups and edges of these operators, and the forms of kernels that they "
        "could have: a name of the model (ONNX node, PyTorch module, tensor), whose parts are "
        "meant as well, a glob, a variable, nn.softmax, softmax, or attention, which the model may "
        "have decomposed",
    )
    parser.add_argument(
        "--rewrites",
        action="store_true",
        help="show what the rewriting stage changed, by which rules, and what that saves",
    )
    parser.add_argument(
        "--no-stock", action="store_true", help="do not count the kernels of stock TVM"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Plan, schedule, count.

    Returns
    -------
    dict
        As :meth:`tvm_fusion.report.explain.Explanation.to_json` says.
    """
    from .._tvm.log import quiet_log
    from ..report.explain import explain

    with quiet_log():
        explanation = explain(
            options.model,
            options.target,
            config_of(options),
            stock=not options.no_stock,
            rewrites=options.rewrites,
            forms=options.op is not None,
        )
    if options.op is not None:
        explanation = explanation.of(options.op)
    return explanation.to_json()


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    from ..report.explain import Explanation

    Explanation.from_json(result).show(console)
