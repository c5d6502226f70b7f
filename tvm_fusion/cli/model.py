"""Options that say which model, for what, and how: shared by the commands that plan a model."""

from __future__ import annotations

import argparse

from ..config import PRECISIONS, FusionConfig, parse_dims


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the target, and the options that change what is planned."""
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument(
        "--target",
        default="cpu",
        help="cpu (this machine, the default), cpu:NAME, cuda:sm_80,sm_90a, rocm:gfx942",
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument(
        "--half-io", action="store_true", help="inputs and outputs take the precision, too"
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N|LOW..HIGH",
        help="bind a dimension, or keep it symbolic within a range",
    )


def config_of(options: argparse.Namespace) -> FusionConfig:
    """Make the config of what :func:`add_model_arguments` read."""
    return FusionConfig(
        precision=options.precision, half_io=options.half_io, dims=parse_dims(options.dim)
    )
