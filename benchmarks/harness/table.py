"""Regenerates the Markdown tables from the JSON files alone.

``python -m benchmarks.harness.table`` writes ``README.md`` next to the folder ``results``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read
from tvm_fusion.errors import UserError

from .client import ROOT
from .engines import ENGINES, OURS

#: Changes when a field of the JSON files changes its meaning or goes.
SCHEMA = 1
CPU = ROOT / "benchmarks" / "cpu"
_STOCK = "tvm"
_INTRODUCTION = """\
# Latency on a CPU

Generated from `results/*.json.xz` by `python -m benchmarks.harness.table`; edits are lost.

Every engine runs in its own process with the same number of threads. In each round every engine has
one turn: warm-up, then as many runs as fit the budget. A round's figure is the median of its runs;
the records keep the spread of these figures over the rounds. Before anything is timed the outputs
are compared: max|a-b| / max|b| against ONNX Runtime without graph optimizations (PyTorch's peers,
which have other random weights, against PyTorch eager). What differs is not timed. `openvino`
computes in float32 as the others do, `openvino-default` in the precision that it chooses by itself,
which is bfloat16 on CPUs that have instructions for it: it may differ by 5e-2.
"""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Read all records of a folder, by file name, the oldest first.

    Raises
    ------
    UserError
        When a file has another schema.
    """
    records = {path.name: read(path) for path in sorted(folder.glob("*.json*"))}
    for name, record in records.items():
        if record.get("schema") != SCHEMA:
            raise UserError(
                f"{name} has schema {record.get('schema')}", str(SCHEMA), "measure it again"
            )
    return dict(sorted(records.items(), key=lambda item: item[1]["environment"]["date"]))


def load_memory(folder: Path) -> dict[str, Any] | None:
    """Read the record of memory in a folder, if there is one."""
    path = folder / "memory.json"
    return read(path) if path.exists() else None


def newest(records: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the models by name; of one in several records, the newest measurement counts."""
    found = {model["name"]: model for record in records.values() for model in record["models"]}
    return [found[name] for name in sorted(found)]


def render(records: dict[str, dict[str, Any]], memory: dict[str, Any] | None = None) -> str:
    """Return the page for the records."""
    models = newest(records)
    if not models:
        return _INTRODUCTION + "\nNo results yet.\n"
    found = {peer for model in models for peer in model["peers"]}
    peers = [name for name in ENGINES if name in found] + sorted(found - set(ENGINES))
    return "\n".join(
        [
            _INTRODUCTION,
            *_latency(models, peers),
            *_cost(models),
            *(_memory(memory) if memory else []),
            *_not_timed(models),
            *_sources(records),
        ]
    )


def _latency(models: Sequence[dict[str, Any]], peers: Sequence[str]) -> list[str]:
    rows = [[model["name"], *(_latency_cell(model, peer) for peer in peers)] for model in models]
    found = [[m["ratios"][p]["median"] for m in models if p in m["ratios"]] for p in peers]
    if any(found):
        means = (f"({_ratio(geometric_mean(ratios))})" if ratios else "" for ratios in found)
        rows.append(["geometric mean", *means])
    return [
        "## Median latency\n",
        f"Milliseconds; in brackets the median over the rounds of {OURS}/peer: below 1, {OURS} is "
        "faster.\n",
        *table(["model", *peers], rows),
    ]


def _latency_cell(model: dict[str, Any], peer: str) -> str:
    result = model["peers"].get(peer)
    if result is None:
        return ""
    if "latency_ms" not in result:
        return result["status"]
    ratio = model["ratios"].get(peer)
    return _number(result["latency_ms"]["median"]) + (
        f" ({_ratio(ratio['median'])})" if ratio else ""
    )


def _cost(models: Sequence[dict[str, Any]]) -> list[str]:
    """Show kernels, bytes and compilation, ours and stock; columns without records are left out."""
    columns = {
        "kernels": ("kernels", 1),
        "calls": ("calls", 1),
        "intermediates, MB": ("intermediate_bytes", 1e-6),
        "compile, s": ("compile_seconds", 1),
        "peak RSS, MB": ("compile_peak_rss_mb", 1),
    }
    facts = {
        peer: [model["peers"].get(peer, {}).get("facts", {}) for model in models]
        for peer in (OURS, _STOCK)
    }
    shown = [
        (f"{title}, {peer}", [_number(f[key] * scale) if key in f else "" for f in facts[peer]])
        for title, (key, scale) in columns.items()
        for peer in facts
        if any(key in fact for fact in facts[peer])
    ]
    names = [model["name"] for model in models]
    return [
        "\n## Kernels and compilation\n",
        "A kernel is one loop nest over a whole tensor, a call one PrimFunc call of the virtual "
        "machine. Intermediates are tensors between calls and buffers larger than a tile inside a "
        f"PrimFunc. `{_STOCK}` is stock TVM's pipeline for this target; its kernels, calls and "
        "intermediates are counted after DecomposeOpsForInference, which its timed build lacks.\n",
        *table(
            ["model", *(title for title, _ in shown)],
            zip(names, *(cells for _, cells in shown), strict=True),
        ),
        *(
            f"\n{model['name']}, {peer}: not counted: {result['facts']['not_counted']}"
            for model in models
            for peer, result in model["peers"].items()
            if "not_counted" in result.get("facts", {})
        ),
    ]


def _memory(record: dict[str, Any]) -> list[str]:
    """Intermediates at their peak; written by :mod:`~benchmarks.harness.arena`."""
    rows = [
        [name, *(f"{one[who] / 1e6:.1f}" for who in ("ours", "onnxruntime"))]
        for name, one in record["models"].items()
    ]
    return [
        "\n## Memory of intermediates\n",
        "MB at the peak of a run of batch 1 with two threads, without weights, inputs and outputs' "
        "copies. Ours is the planned storage and what both threads keep in the largest kernel; "
        f"onnxruntime {record['onnxruntime']} is the least arena in which the model runs. By "
        "`python -m benchmarks.harness.arena`.\n",
        *table(["model", "ours", "onnxruntime"], rows),
    ]


def _not_timed(models: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        [model["name"], peer, result["status"], result["reason"].replace("|", "\\|")]
        for model in models
        for peer, result in model["peers"].items()
        if result["status"] != "right"
    ]
    if not rows:
        return []
    return ["\n## Not timed\n", *table(["model", "peer", "status", "reason"], rows)]


def _sources(records: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["\n## How it was measured\n"]
    for name, record in records.items():
        where, settings = record["environment"], record["settings"]
        results = [r for model in record["models"] for r in model["peers"].values()]
        versions = dict(v for r in results for v in r.get("versions", {}).items())
        commit = where["commit"] or "unknown"
        lines += [
            f"* `results/{name}`: {where['date']}, {where['cpu']}, {settings['threads']} threads, "
            f"{settings['rounds']} rounds of {settings['budget']:g} s, seed {settings['seed']}, "
            f"commit {commit[:12]}{' with changes' if where['dirty'] else ''}; "
            f"Python {where['python']}, "
            + ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
            + f"; `{' '.join(record['command'])}`",
        ]
    return [*lines, ""]


def _number(value: float) -> str:
    """Write a count whole and a measurement with about three digits."""
    if isinstance(value, int) or value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def main(arguments: list[str] | None = None) -> int:
    """Write ``README.md`` next to the folder ``results``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.table", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=CPU, help="default: benchmarks/cpu")
    folder = parser.parse_args(arguments).folder
    try:
        page = render(load(folder / "results"), load_memory(folder))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (folder / "README.md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
