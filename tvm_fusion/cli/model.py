"""Options that say which model, for what, and how: shared by the commands that plan a model."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..config import STORED, FusionConfig, parse_constants, parse_dims
from ..core.flags import FLAGS, SEARCHES
from ..device.parse import EXAMPLES
from ..errors import UserError
from ..words import counted


def add_model_arguments(
    parser: argparse.ArgumentParser,
    is_optional: bool = False,
    precisions: Sequence[str] = STORED,
) -> None:
    """Add the model, the target, and the options that change what is planned."""
    text = "an ONNX file, or a .pt2 file of torch.export.save"
    if is_optional:
        parser.add_argument("model", nargs="?", help=text)
    else:
        parser.add_argument("model", help=text)
    parser.add_argument(
        "--target",
        default="cpu",
        help=EXAMPLES,
    )
    parser.add_argument(
        "--precision",
        choices=precisions,
        default="fp32",
        help="dtype of weights and intermediate tensors (default: %(default)s); sums are in fp32",
    )
    parser.add_argument(
        "--half-io", action="store_true", help="inputs and outputs have that dtype as well"
    )
    parser.add_argument(
        "--wide-residuals",
        action=argparse.BooleanOptionalAction,
        help="at a half precision, keep residual streams in fp32 (default: on CPUs)",
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N|LOW..HIGH[:STEP]",
        help="bind a symbolic dimension to a number or a range; STEP: to multiples of it, as in "
        "height=32..1024:32",
    )
    add_constant_argument(parser)
    parser.add_argument(
        "--db",
        metavar="FILE",
        help="file of tuning records (default: the one that the environment variable "
        "TVM_FUSION_RECORDS names)",
    )
    parser.add_argument(
        "--profile",
        metavar="5m|trials=N",
        help="measure alternatives while planning, within this budget: fused or not, where "
        "DNNFusion's table leaves it open, and layouts of convolutions; the records keep them "
        "(default: use what is recorded, estimate the rest)",
    )
    add_rewrite_arguments(parser)


def add_constant_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that gives an input one value."""
    parser.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="bind an input to a value, such as axes=0,2 or sizes=sizes.npy",
    )


def add_rewrite_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the rewriting stage."""
    parser.add_argument(
        "--rewrite",
        choices=SEARCHES,
        default="search",
        help="search (default): the equivalent graph that is cheapest by the planner's cost model; "
        "greedy: DNNFusion's rule, fewest operations; none: the model's own graph",
    )
    parser.add_argument(
        "--allow",
        default="",
        metavar="FLAG,...",
        help="also use algebraic laws and arithmetic that may change results beyond "
        f"rounding: {', '.join(FLAGS)}",
    )
    parser.add_argument("--fast-math", action="store_true", help="--allow all flags")
    parser.add_argument(
        "--without-rule",
        action="append",
        default=[],
        metavar="NAME",
        help="switch a rewriting rule off; `explain --rewrites` has the names",
    )


def rewrite_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the config that :func:`add_rewrite_arguments` read."""
    return {
        "rewrite": options.rewrite,
        "allow": [flag.strip() for flag in options.allow.split(",") if flag.strip()],
        "fast_math": options.fast_math,
        "without": options.without_rule,
    }


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of models for several workers."""
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="split weights and caches over N processes on one machine, one per GPU",
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="WEIGHT=HOW",
        help="with --workers: how weights that a pattern names are split: whole, columns, rows, or "
        "split (the way is found, whatever it costs)",
    )


def worker_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the config that :func:`add_worker_arguments` read."""
    shards = {}
    for text in options.shard:
        pattern, equals, role = text.rpartition("=")
        if not (pattern and equals and role):
            raise UserError(f"--shard {text!r}", "WEIGHT=HOW, such as '*.mlp.*=columns'")
        shards[pattern] = role
    return {"workers": options.workers, "shards": shards}


def config_of(options: argparse.Namespace) -> FusionConfig:
    """Make the config of what :func:`add_model_arguments` read."""
    return FusionConfig(
        precision=options.precision,
        half_io=options.half_io,
        wide_residuals=options.wide_residuals,
        dims=parse_dims(options.dim),
        constants=parse_constants(options.constant),
        db=options.db,
        profile=options.profile,
        **rewrite_options(options),
    )


def profile_sentence(counts: dict[str, int]) -> str:
    """Say where the planner's answers came from."""
    failed = f", {counts['failed']} could not be measured" if counts["failed"] else ""
    return (
        f"profile: {counted(counts['measured'], 'comparison')} measured, {counts['known']} from "
        f"records, {counts['estimated']} estimated{failed}"
    )
