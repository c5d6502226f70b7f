"""Inspect: show what an artifact holds."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ...deploy.runtime.artifact import manifest
from ...deploy.runtime.artifact.signature import dims_from_json
from ...device.cpu_features import vector_extensions
from ...words import counted
from ..notes import Notes, explain_command, lines, precision_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("artifact", help="a folder that `tvm-fusion compile` wrote")
    parser.add_argument("--verify", action="store_true", help="hash every file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Read the manifest.

    Returns
    -------
    dict
        All of the manifest, and of function ``main``: ``kernels``, ``calls``,
        ``intermediate_bytes``; ``explain``, the command that explains it, null for what was not a
        file; ``verified`` if asked for.
    """
    folder = Path(options.artifact)
    found = manifest.read(folder)
    main = found["functions"][manifest.main_function(found)]
    result = {**found, **{k: main[k] for k in ("kernels", "calls", "intermediate_bytes")}}
    result["explain"] = explain_command(found)
    if options.verify:
        manifest.verify(folder, found)
        result["verified"] = True
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """Print the manifest for a reader."""
    for line in _lines(result):
        console.print(line, markup=False)


def _lines(result: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield f"{result['source']}, {result['precision']}, made by {versions}"
    if measured := result.get("precisions"):
        yield f"measured {precision_line(result['precision'], measured)}"
    yield f"target   {result['target']['text']}"
    archs = result["target"]["archs"]
    for arch in archs:
        features = manifest.of_architecture(result, arch)["target"].get("features", ())
        if needed := vector_extensions(features):
            yield f"needs    {', '.join(needed)}{f' on {arch}' * (len(archs) > 1)}"
    for name, dim in dims_from_json(result["dims"]).items():
        yield f"dim      {name}: {dim.sentence}"
    first, *others = archs
    for name, function in result["functions"].items():
        yield f"function {name}{f' on {first}' * bool(others)}: {_figures(function)}"
        for arch in others:
            own = result["architectures"][arch]["functions"][name]
            yield f"function {name} on {arch}: {_figures(own)}"
        for kind in ("inputs", "outputs"):
            for spec in function[kind]:
                shape = ", ".join(map(str, spec["shape"]))
                yield f"  {kind[:-1]:7}{spec['name']}: {spec['dtype']} ({shape})"
    for group in result["stored_kernels"]:
        count, names = counted(len(group["names"]), "kernel"), ", ".join(group["archs"])
        yield f"stored   {count} for {names}"
    for name, entry in result["files"].items():
        yield f"file     {name}: {entry['bytes']:,} bytes, sha256 {entry['sha256'][:16]}"
    explain = result["explain"]
    for line in lines(Notes.of(result["decisions"]), explain):
        yield f"note     {line}"
    if explain:
        yield f"explain  {explain}"
    if result.get("verified"):
        yield "verified: every file is as it was written"


def _figures(function: dict[str, Any]) -> str:
    """Say what one inference of a function takes."""
    return (
        f"{counted(function['kernels'], 'kernel')} in {counted(function['calls'], 'call')}, "
        f"{function['intermediate_bytes'] / 1e6:.2f} MB of intermediate tensors, "
        f"{counted(len(function['weights']), 'weight')}"
    )
