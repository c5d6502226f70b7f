"""Compile: make a deployable artifact of a model file."""

import argparse
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..._interrupt import is_command_line
from ...config import PRECISIONS
from ...words import counted
from ..inputs import read_arrays
from ..model import (
    add_model_arguments,
    add_worker_arguments,
    config_of,
    profile_sentence,
    worker_options,
)
from ..notes import Notes, explain_command, lines, precision_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options; they are the fields of FusionConfig."""
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where to write it")
    add_model_arguments(parser, precisions=PRECISIONS)
    parser.add_argument(
        "--error-bound",
        type=float,
        metavar="X",
        help="with --precision auto, which runs the model in each and takes the fastest: largest "
        "max|a-b|/max|b| of an output against fp32's (default: as `check` allows, 1e-2 for fp16, "
        "5e-2 for bf16)",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        help="with --precision auto: inputs to run, by name; the others are random",
    )
    parser.add_argument(
        "--no-cuda-graph",
        dest="cuda_graph",
        action="store_false",
        help="launch GPU kernels one by one, without a CUDA or HIP graph",
    )
    parser.add_argument(
        "--static-input",
        action="append",
        default=[],
        metavar="NAME",
        help="an input with the same address in every call, such as a cache",
    )
    add_worker_arguments(parser)
    parser.add_argument(
        "--cache",
        nargs="?",
        const=True,
        metavar="DIR",
        help="reuse artifacts that a folder keeps of earlier compilations, and add this one "
        "(without DIR: the folder that the environment variable TVM_FUSION_CACHE names)",
    )
    parser.add_argument(
        "--dump", type=Path, metavar="DIR", help="write TVMScript after every stage"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compile and export.

    Returns
    -------
    dict
        ``artifact``, ``cached`` (whether it was compiled before), ``target``, ``seconds`` (export
        included), ``peak_rss_mb``, ``precision``, ``precisions``: what `--precision auto` measured,
        as the manifest has it, ``kernels``, ``calls``, ``intermediate_bytes``, of the first of
        several architectures, and ``architectures``: the same of each by its name; ``profile``:
        how many questions of the planner were ``measured``, ``known``, ``failed`` or ``estimated``,
        or null; ``workers``: sentences about weights that several share; ``not_fused``:
        pairs of operators that share no kernel; ``not_recomposed``:
        patterns of an operator that stay decomposed; ``explain``: the command that has the
        reasons; ``fallbacks``: what else did not go the usual way, decisions as the manifest has
        them; and ``files``: bytes by name.
    """
    import time

    from ..._tvm.ffi_speed import speed_up_ffi
    from ..._tvm.log import quiet_log
    from ...compiler import compile
    from ...deploy.build.artifact import check_destination
    from ...deploy.cache.folder import CachedArtifact
    from ...deploy.runtime.artifact import manifest

    start = time.perf_counter()
    if is_command_line():
        speed_up_ffi()
    folder = Path(options.output)
    check_destination(folder)
    config = replace(
        config_of(options),
        cuda_graph=options.cuda_graph,
        static_inputs=options.static_input,
        error_bound=options.error_bound,
        samples=read_arrays(options.inputs) if options.inputs else {},
        dump=options.dump,
        **worker_options(options),
    )
    with quiet_log():
        artifact = compile(options.model, options.target, config, cache=options.cache)
        artifact.export(folder)
    written = manifest.read(folder)
    notes = Notes.of(written["decisions"])
    main = manifest.main_function(written)
    figures = {
        arch: {
            key: manifest.of_architecture(written, arch)["functions"][main][key]
            for key in ("kernels", "calls", "intermediate_bytes")
        }
        for arch in written["target"]["archs"]
    }
    return {
        "artifact": str(folder),
        "cached": isinstance(artifact, CachedArtifact),
        "target": written["target"]["text"],
        "seconds": round(time.perf_counter() - start, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "precision": written["precision"],
        "precisions": written.get("precisions", []),
        **next(iter(figures.values())),
        "architectures": figures,
        "profile": written.get("profile"),
        "not_fused": notes.not_fused,
        "not_recomposed": notes.not_recomposed,
        "explain": explain_command({**written, "source": options.model}, options.target),
        "fallbacks": list(notes.others),
        "workers": written.get("workers", {}).get("split", []),
        "files": {name: entry["bytes"] for name, entry in written["files"].items()},
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was written."""
    console.print(
        f"[bold]{escape(result['artifact'])}[/] for {result['target']}: "
        f"{counted(result['kernels'], 'kernel')}, "
        f"{result['intermediate_bytes'] / 1e6:.1f} MB of intermediate tensors; "
        f"{result['seconds']:.1f} s, "
        f"{result['peak_rss_mb']:.0f} MB of peak memory"
        + (", from the cache" if result["cached"] else "")
    )
    if result["precisions"]:
        line = precision_line(result["precision"], result["precisions"])
        console.print(f"  {line}", markup=False, highlight=False)
    for arch, figures in list(result["architectures"].items())[1:]:
        size = figures["intermediate_bytes"] / 1e6
        console.print(f"  on {arch}: {counted(figures['kernels'], 'kernel')}, {size:.1f} MB")
    if result["profile"]:
        console.print(f"  {profile_sentence(result['profile'])}", highlight=False)
    for sentence in result["workers"]:
        console.print(f"  {sentence}", markup=False, highlight=False)
    notes = Notes(result["not_fused"], result["not_recomposed"], tuple(result["fallbacks"]))
    for line in lines(notes, result["explain"]):
        console.print(f"  {line}", style="yellow", markup=False, highlight=False)
