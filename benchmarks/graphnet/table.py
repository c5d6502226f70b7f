"""The page: what becomes of graphs of real models, source by source, and the slow ones."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import table

GOOD = ("right", "compiles")
_HEAD = """# Graphs of real PyTorch models

Generated from `results/graphnet.json` by `GRAPHNET=checkout python -m benchmarks.graphnet`; edits
are lost. The graphs are sampled from [GraphNet](https://github.com/PaddlePaddle/GraphNet) (MIT), of
which only names are kept here: evenly over its sources, graphs that differ in numbers alone counted
as one, at most {most} million elements of weights and inputs. Weights and inputs are random, with
the means and deviations that the collection records (a fifth or less of the deviations where
results overflow, or eager PyTorch's own error exceeds 1e-3); integers without data are zeros.

*right*: exported by `torch.export`, compiled, and run in a new process with TVM's runtime alone,
every output is within 1e-4 of eager PyTorch in float64, relative to the output's largest value, or
within 4 times the error of eager PyTorch in the graph's own dtypes. An output that jumps, such as
one ordered by nearly equal scores, may be further off in a share of its elements: 4 times that
which in float64 jumps where weights and inputs get relative noise of 1e-6 (or their dtype's last
place), if that moves a twentieth at most. *ratio*: time of a call on one
thread over eager PyTorch's, medians of calls in turns; several graphs ran side by side. *sm_90a*:
kernels of the graph compiled in float16 for an H200, where it does not run here. Seconds are
processor time of compiling and exporting.
"""
SLOW = 1.005  # what rounds to 1.00 is no loss


def page(record: Mapping[str, Any]) -> str:
    """Write the page of a record."""
    graphs: Mapping[str, Any] = record["graphs"]
    about = record["about"]
    programs = {n: r for n, r in graphs.items() if r["export"]["outcome"] == "right"}
    counted = Counter(r["cpu"]["outcome"] for r in programs.values())
    ratios = {n: row["ours_s"] / row["eager_s"] for n, r in programs.items()
              if (row := r["cpu"]).get("eager_s")}  # fmt: skip
    lines = [_HEAD.format(most=about["most"] // 10**6), "## Totals", ""]
    where = f"{about['cpu']}, {about['date'][:10]}, seed {about['seed']}"
    lines += [f"{where}. Of {len(graphs)} graphs `torch.export` takes {len(programs)}."]
    gpu = Counter(r["sm_90a"]["outcome"] for r in programs.values() if "sm_90a" in r)
    lines += [f"On the CPU {_said(counted)}; for sm_90a {_said(gpu)}.", ""]
    lines += _by_source(programs, ratios)
    lines += ["", "## Graph by graph", "", *_rows(programs, ratios), ""]
    bad = [f"* {name}, {cell}: {row['outcome']}: {row.get('reason', '')}"
           for name, rows in programs.items() for cell, row in rows.items()
           if cell != "export" and row["outcome"] not in GOOD]  # fmt: skip
    lines += ["## What fails, and why", "", *(bad or ["Nothing."]), ""]
    none = [
        f"* {n}: {r['export'].get('reason', '')}" for n, r in graphs.items() if n not in programs
    ]
    lines += ["## What PyTorch does not export", "", *(none or ["Nothing."])]
    return "\n".join(lines) + "\n"


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _by_source(programs: Mapping[str, Any], ratios: Mapping[str, float]) -> list[str]:
    rows = []
    for source in dict.fromkeys(name.partition("/")[0] for name in programs):
        names = [name for name in programs if name.partition("/")[0] == source]
        right = sum(programs[name]["cpu"]["outcome"] == "right" for name in names)
        timed = [ratios[name] for name in names if name in ratios]
        rows.append([source, str(len(names)), str(right), *_summary(timed)])
    rows.append(["**all**", str(len(programs)),
                 str(sum(r["cpu"]["outcome"] == "right" for r in programs.values())),
                 *_summary(list(ratios.values()))])  # fmt: skip
    return table(["source", "graphs", "right", "geometric mean of ratios", "slower", "worst"], rows)


def _summary(ratios: Sequence[float]) -> tuple[str, str, str]:
    if not ratios:
        return "", "", ""
    slower = sum(ratio >= SLOW for ratio in ratios)
    return f"{statistics.geometric_mean(ratios):.2f}", str(slower), f"{max(ratios):.2f}"


def _rows(programs: Mapping[str, Any], ratios: Mapping[str, float]) -> list[str]:
    rows = []
    for name, cells in programs.items():
        cpu, gpu = cells["cpu"], cells.get("sm_90a", {})
        outcome = cpu["outcome"] if cpu["outcome"] in GOOD else f"**{cpu['outcome']}**"
        ratio = ratios.get(name)
        shown = "" if ratio is None else f"**{ratio:.2f}**" if ratio >= SLOW else f"{ratio:.2f}"
        milliseconds = [
            f"{1e3 * cpu[key]:.1f}" if key in cpu else "" for key in ("ours_s", "eager_s")
        ]
        rows.append([name, outcome, f"{cpu.get('error', '')}", f"{cpu.get('kernels', '')}",
                     f"{cpu.get('seconds', '')}", *milliseconds, shown,
                     f"{gpu.get('kernels', gpu.get('outcome', ''))}"])  # fmt: skip
    head = ["graph", "CPU", "error", "kernels", "s", "ours ms", "eager ms", "ratio", "sm_90a"]
    return table(head, rows)
