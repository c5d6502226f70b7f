"""Quantize: make an 8-bit model from a float one, with calibration data."""

import argparse
from typing import Any

from rich.console import Console

from ...words import counted

_LISTED = 10  # layers in the report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("model", help="a float ONNX file")
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR|FILE.npz",
        help="samples: arrays by input name whose first axis counts them, in one file or a folder "
        "of files",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE.onnx", help="the new model")
    parser.add_argument(
        "--samples", type=int, default=128, help="use at most this many samples (default: 128)"
    )
    parser.add_argument(
        "--method",
        default="minmax",
        metavar="minmax|entropy|percentile",
        help="how ranges are computed from the samples (default: minmax)",
    )
    parser.add_argument(
        "--activations",
        default="uint8",
        metavar="uint8|int8",
        help="their type (default: uint8, which CPUs multiply with int8 weights)",
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="NODE", help="a node that stays in float"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Quantize and compare.

    Returns
    -------
    dict
        As :meth:`tvm_fusion.quantization.Quantized.to_json` says.
    """
    from ...quantization import quantize

    return quantize(
        options.model,
        options.data,
        options.output,
        samples=options.samples,
        method=options.method,
        activations=options.activations,
        exclude=options.exclude,
    ).to_json()


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was written, and the layers that lose most."""
    before, after = (result[key] / 1e6 for key in ("bytes_before", "bytes_after"))
    console.print(
        f"{result['output']}: {before:.1f} MB became {after:.1f} MB; ranges from "
        f"{counted(result['samples'], 'sample')}",
        markup=False,
        highlight=False,
    )
    for name, error in result["outputs"].items():
        console.print(f"  {name}: relative error {error:.2e}", markup=False)
    layers = result["layers"][:_LISTED]
    console.print(f"layers of the largest error, of {len(result['layers'])}:", highlight=False)
    for layer in layers:
        text = f"  {layer['error']:.2e} {layer['operator']} {layer['node']}"
        console.print(text, markup=False, highlight=False)
    console.print("  keep one in float: --exclude NODE", highlight=False)
