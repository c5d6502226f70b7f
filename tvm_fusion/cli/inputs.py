"""Inputs of a model on the command line: files, or seeded random arrays."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ..config import parse_dim
from ..deploy.arguments import evaluate
from ..errors import UserError
from ..signature import DimRange, Signature


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a model is run on."""
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="one input's array"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="extent of a symbolic dimension for random inputs (default: its smallest)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")


def read_inputs(
    options: argparse.Namespace, signature: Signature, dims: Mapping[str, DimRange]
) -> dict[str, np.ndarray]:
    """Collect the inputs that the options name; random arrays stand in for the rest.

    Parameters
    ----------
    options : argparse.Namespace
        With the fields that :func:`add_input_arguments` adds.
    signature : Signature
        Names, shapes and dtypes.
    dims : mapping of str to DimRange
        Ranges of symbolic dimensions.

    Returns
    -------
    dict of str to numpy.ndarray
        Floats are drawn from a normal distribution, integers and booleans from {0, 1}.

    Raises
    ------
    UserError
        For files that cannot be read, unknown names and malformed options.
    """
    given: dict[str, np.ndarray] = {}
    if options.inputs:
        archive = _read(options.inputs)
        if not isinstance(archive, Mapping):
            raise UserError(f"{options.inputs!r} holds one array", "an .npz file of named arrays")
        given.update({name: archive[name] for name in archive})
    for text in options.input:
        name, equals, path = text.partition("=")
        if not equals:
            raise UserError(f"--input {text!r}", "NAME=FILE.npy")
        given[name] = _read(path)
    names = [spec.name for spec in signature.inputs]
    for name in given:
        if name not in names:
            raise UserError(f"unknown input {name!r}", f"one of {', '.join(map(repr, names))}")
    extents = _extents(options.dim, dims)
    generator = np.random.default_rng(options.seed)
    return {
        spec.name: given[spec.name]
        if spec.name in given
        else _random(generator, [evaluate(e, extents) or 1 for e in spec.shape], spec.dtype)
        for spec in signature.inputs
    }


def _extents(texts: list[str], dims: Mapping[str, DimRange]) -> dict[str, int]:
    extents = {name: dim.low for name, dim in dims.items()}
    for text in texts:
        name, value = parse_dim(text)
        if name not in dims:
            known = ", ".join(dims) or "none: all its shapes are fixed"
            raise UserError(f"--dim names {name!r}", f"a symbolic dimension of the model ({known})")
        if not isinstance(value, int):
            raise UserError(f"--dim {text!r} is a range", "one extent", f"write {name}={value.low}")
        extents[name] = value
    return extents


def _random(generator: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind in "iub":
        return generator.integers(0, 2, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


def _read(path: str) -> Any:
    try:
        return np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read {path!r} ({error})", "a numpy .npy or .npz file") from error
