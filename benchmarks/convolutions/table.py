"""The page of a record."""

from collections.abc import Iterable, Mapping
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import table

from .layers import NETWORKS, Layer


def render(record: Mapping[str, Any]) -> str:
    """Write the page: geometric means, then every layer."""
    machine, layers = record["machine"], record["layers"]
    where = record["environment"]
    peak = max((m["peak_gflops"] for m in machine.values()), default=float("nan"))
    lines = [
        "# Convolution layers against oneDNN",
        "",
        "Generated from `results/convolutions.json.xz` by `python -m benchmarks.convolutions`; "
        "edits are lost.",
        "",
        f"{where.get('cpu')}, {where.get('cpus')} cores, {where.get('date')}. float32, batch 1, "
        "with bias; images and results in blocks of channels as wide as a vector (first layers "
        "read a plain image), weights packed before. oneDNN is called through PyTorch on tensors "
        "in its own layouts. Both take turns in one process, results are compared with float64 "
        "first, and the quickest call counts; with one thread in CPU time, since other processes "
        "share the machine. A ratio of 2 means twice oneDNN's speed. PyTorch's calls cost more "
        "than ours, which time the kernel alone, with its output allocated before; this shows in "
        "small layers, so the second ratio subtracts each side's time for a layer of four pixels. "
        "Fused multiply-adds of registers alone reach "
        f"{peak:.0f} GFLOP/s on one thread.",
        "",
        *table(
            ["threads", "network", "layers", "speed / oneDNN", "without calls", "least",
             "dense: of peak"],
            _summary(machine, layers, peak),
        ),
    ]  # fmt: skip
    for threads in dict.fromkeys(key.partition("/")[0] for key in layers):
        lines += ["", f"## {threads} thread{'s' if threads != '1' else ''}", ""]
        rows = []
        for network, members in NETWORKS.items():
            calls = machine.get(f"{threads}/{network}", {}).get("call_us", [0, 0])
            for layer in members:
                found = layers.get(f"{threads}/{network}/{layer.name}")
                if found is not None:
                    rows.append([network, layer.name, *_cells(found, calls)])
        headings = ["network", "layer", "ours, us", "oneDNN, us", "GFLOP/s", "ratio", "no calls"]
        lines += table(headings, rows)
    return "\n".join(lines) + "\n"


def _summary(
    machine: Mapping[str, Any], layers: Mapping[str, Any], peak: float
) -> Iterable[list[str]]:
    for key, head in machine.items():
        threads, _, network = key.partition("/")
        found = {x: layers.get(f"{key}/{x.name}", {}) for x in NETWORKS[network]}
        found = {x: f for x, f in found.items() if "ours_us" in f}
        ratios = [f["theirs_us"] / f["ours_us"] for f in found.values()]
        without = [_without_calls(f, head["call_us"]) for f in found.values()]
        shares = [_share(x, f, peak * int(threads)) for x, f in found.items() if not x.is_depthwise]
        yield [
            threads,
            network,
            str(len(found)),
            f"{_mean(ratios):.2f}",
            f"{_mean(without):.2f}",
            f"{min(without):.2f}",
            f"{_mean(shares):.0%}",
        ]


def _share(layer: Layer, found: Mapping[str, float], peak: float) -> float:
    return layer.flops / found["ours_us"] / 1e3 / peak


def _without_calls(found: Mapping[str, float], calls: list[float]) -> float:
    """Return the ratio without the time of an empty call, or a tenth if hardly more is left."""
    ours, theirs = (
        max(found[name] - call, found[name] / 10)
        for name, call in zip(("ours_us", "theirs_us"), calls, strict=True)
    )
    return theirs / ours


def _cells(found: Mapping[str, Any], calls: list[float]) -> list[str]:
    if "ours_us" not in found:
        return [found["error"], "", "", "", ""]
    ours, theirs = found["ours_us"], found["theirs_us"]
    rate = f"{found['flops'] / ours / 1e3:.0f}"
    without = f"{_without_calls(found, calls):.2f}"
    return [f"{ours:.0f}", f"{theirs:.0f}", rate, f"{theirs / ours:.2f}", without]


def _mean(values: list[float]) -> float:
    return geometric_mean(values) if values else float("nan")
