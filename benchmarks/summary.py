"""Results of all benchmarks, from the records in ``benchmarks/*/results``, losses included.

``python -m benchmarks.summary`` writes them between two markers of ``benchmarks/README.md``, and
the most important ones of ``README.md``. Times are ratios of one run, ours over the baseline's.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cpu_half import table as cpu_half
from benchmarks.cpu_threads.table import ratio as of_threads
from benchmarks.gpu import table as gpu
from benchmarks.gpu_models.table import rival_us
from benchmarks.harness.engines import TOLERANCES
from benchmarks.harness.table import load, newest
from benchmarks.held_out import table as held_out
from benchmarks.markdown import marked, table
from benchmarks.operators_speed import __main__ as operators
from benchmarks.operators_torch.counts import counts
from benchmarks.real_models.measure import is_right
from benchmarks.records import read
from benchmarks.robustness import __main__ as robustness
from benchmarks.robustness.table import GOOD

ROOT = Path(__file__).parents[1]
SHOWN = ("workload", "baseline", "speedup, geometric mean", "device")
#: Rows of the README: what they are called there, by workloads, baseline, and part of the device.
HIGHLIGHTS = {
    ("fp32 models, batch 1", "ONNX Runtime and OpenVINO", "AMD"): "whole models, float32",
    ("fp32 models, 16 threads", "ONNX Runtime", "Xeon"): "whole models, float32, 16 threads",
    ("convolutions", "oneDNN", "AMD"): "layers of convolutional networks, float32",
    ("operators", "ONNX Runtime", "AMD"): "single operators",
    ("fp16 models, batch 1", "TorchInductor", "H200"): "whole models, float16",
    ("fp16 models, held out", "TorchInductor", "H200"): "held-out models, float16",
    ("bf16 models", "OpenVINO", "16 threads"): "whole models, bfloat16 on AMX",
    (
        "GEMMs, fp16 and bf16",
        "PyTorch",
        "H200",
    ): "matrix products with epilogues, half types",
    ("attention", "PyTorch", "H200"): "attention",
    ("convolutions", "PyTorch", "H200"): "convolutions",
    ("memory-bound kernels", "PyTorch", "H200"): "norms, softmax, copies and GEMV",
}
HEAD = (
    "workload",
    "baseline",
    "geometric mean",
    "slower",
    "slowest",
    "device, last run",
    "`python -m`",
)
#: Peers of float32 models on CPUs, and whether they may compute in a half type.
CPU_BASELINES = {
    "the faster of ONNX Runtime and OpenVINO": False,
    "OpenVINO as it is by default": True,
}
SLOWER = 1.005  # what rounds to 1.00 is no loss
#: Layers and operators on a CPU: their record, the two times of a workload, the page.
LAYERS = {
    ("convolutions", "oneDNN"): ("convolutions", "ours_us", "theirs_us", "README"),
    ("operators", "ONNX Runtime"): ("operators", "ours_us", "theirs_us", "README"),
    ("3 x 3 convolutions with `--allow approximate`", "without"): ("winograd", 1, 0, "WINOGRAD"),
    **{(f"convolutions, {name}", "float32"): ("low_precision", name, "float32", "LOW_PRECISION")
       for name in ("uint8", "bfloat16", "float16")},
}  # fmt: skip
#: Compute-bound workloads of ``benchmarks.gpu`` by the prefixes of their names.
KINDS = {
    "GEMMs, fp16 and bf16": ("gemm", "random_gemm", "swiglu"),
    "GEMMs, int4 and int8 weights": ("int4_linear", "int8_weight"),
    "GEMMs, fp8, int8, tf32, fp32": ("float8", "int8_linear", "tf32", "float32"),
    "convolutions": ("conv",),
    "mixtures of experts": ("experts",),
    "attention": ("",),
}


class Row(NamedTuple):
    """Workloads against a baseline: our time over the baseline's, by the workloads' names."""

    workloads: str
    baseline: str
    where: str
    page: str
    ratios: Mapping[str, float]

    def mean(self) -> float:
        """Return the geometric mean of the ratios."""
        return statistics.geometric_mean(self.ratios.values())

    def slower(self) -> dict[str, float]:
        """Return what takes longer than the baseline."""
        return {name: ratio for name, ratio in self.ratios.items() if ratio >= SLOWER}

    def cells(self) -> Sequence[str]:
        """Write the row; what is slower than the baseline is bold, the slowest first."""
        ordered = sorted(self.ratios.items(), key=lambda item: -item[1])
        slower = [f"{name} **{ratio:.2f}**" for name, ratio in ordered if ratio >= SLOWER]
        named = ", ".join(slower[:3]) or f"{ordered[0][0]} {ordered[0][1]:.2f}"
        mean = f"{self.mean():.2f}"
        folder = self.page.partition("/")[0]
        command = f"benchmarks.{'harness' if folder == 'cpu' else folder}"
        rest = (named, self.where, f"[{command}]({self.page}.md)")
        return self.workloads, self.baseline, mean, f"{len(slower)} of {len(ordered)}", *rest


def rows() -> Iterator[Row]:
    """Read the records of times."""
    records = load(ROOT / "benchmarks/cpu/results")
    where = _where([*records.values()][-1])
    for baseline, is_default in CPU_BASELINES.items():
        best = {model["name"]: max(ratios) for model in newest(records) if (ratios := [
            ratio["median"] for peer, ratio in model["ratios"].items()
            if (peer in TOLERANCES) == is_default
        ])}  # fmt: skip
        for batch in (1, 8):
            found = {name.partition(",")[0]: ratio for name, ratio in best.items()
                     if name.endswith(", batch 8") == (batch == 8)}  # fmt: skip
            if found:
                yield Row(f"fp32 models, batch {batch}", baseline, where, "cpu/README", found)
    for (workloads, baseline), (name, ours, theirs, page) in LAYERS.items():
        folder = "operators_speed" if name == "operators" else "convolutions"
        path = f"{folder}/results/{name}.json.xz"
        record = operators.load(operators.RECORD) if name == "operators" else _read(path)
        found = {}
        for key, one in record.get("cases", record.get("layers")).items():
            times = one.get("median_us") or one.get("least_us") or one
            if not key.startswith("1/") and ours in (*times, 1):  # of two threads where it says
                found[key.removeprefix("2/")] = times[ours] / times[theirs]
        yield Row(workloads, baseline, _where(record), f"{folder}/{page}", found)
    record = _read("gpu_models/results/gpu_models.json.xz")
    for batch in (1, 8):
        found = {row["name"].partition("_batch")[0]: row["us"]["ours"] / us
                 for row in record["rows"] if row["name"].endswith(f"_batch_{batch}")
                 and not row["wrong"] and (us := rival_us(row))}  # fmt: skip
        workloads, baseline = f"fp16 models, batch {batch}", "TorchInductor in a CUDA graph"
        yield Row(workloads, baseline, _where(record), "gpu_models/README", found)
    record = _read("held_out/results/held_out.json.xz")
    found = {row["name"]: 1 / held_out.ratio(row) for row in record["rows"]
             if not held_out.failure(row)}  # fmt: skip
    where = f"{record['rows'][0]['device']}, {record['about']['date']}"
    yield Row("fp16 models, held out", baseline, where, "held_out/README", found)
    record = _read("cpu_threads/results/cpu_threads.json.xz")
    where = f"Xeon ({record['about']['name']}), {record['about']['date']}"
    by_threads: dict[int, dict[str, float]] = {}
    for row in record["rows"]:
        by_threads.setdefault(row["threads"], {})[row["name"]] = of_threads(row)
    for threads, found in by_threads.items():
        workloads = f"fp32 models, {threads} thread{'s' * (threads > 1)}"
        yield Row(workloads, next(iter(CPU_BASELINES)), where, "cpu_threads/README", found)
    record = _read("cpu_half/results/cpu_half.json.xz")
    most = max(row["threads"] for row in record["rows"])
    found = {row["name"]: row["ms"]["bf16"] / row["ms"]["openvino"] for row in record["rows"]
             if row["threads"] == most and cpu_half.is_right(row)}  # fmt: skip
    where = f"Xeon ({record['about']['name']}), {most} threads, {record['about']['date']}"
    yield Row("bf16 models", "OpenVINO as it is by default", where, "cpu_half/README", found)
    for file in (gpu.RESULT, *sorted(gpu.RESULT.parent.glob(gpu.CARDS))):
        yield from _on_gpus(read(file))


def _on_gpus(record: Mapping[str, Any]) -> Iterator[Row]:
    """Group workloads by kind, by whether their shapes are random, and by their baseline."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in record["rows"]:
        times = (best := gpu.peer_times(row)) or gpu.same_work(row)
        if times and not row["wrong"]:
            baseline = "the fastest of PyTorch's" if best else "cuBLAS, same operation"
            kind = next(kind for kind, names in KINDS.items() if row["name"].startswith(names))
            kind = kind if row.get("flops") else "memory-bound kernels"
            name = kind + ", random" * bool(row.get("seed"))
            ratios = found.setdefault((name, baseline), {})
            ratios[f"`{row['name']}`"] = row["us"]["ours"] / min(times.values())
    for (kind, baseline), ratios in sorted(found.items()):
        yield Row(kind, baseline, _where(record), "gpu/README", ratios)


def counted() -> Iterator[str]:
    """List what is counted and not timed."""
    models = _read("fusion/results/counts.json.xz")["models"]
    for target in ("cuda:sm_90a", "cpu"):
        kernels = (f"{n} {m['ours'][target]['kernels']} / {m['stock'][target]['kernels']}"
                   for n, m in models.items())  # fmt: skip
        link = f"[Kernels](fusion/README.md) of one inference on `{target}`"
        yield f"* {link}, ours / stock TVM's: {', '.join(kernels)}."
    tiny = robustness.load(ROOT / "benchmarks/robustness/results/robustness.json.xz").values()
    good = [sum(one.get(cell, {}).get("outcome") in GOOD for one in tiny)
            for cell in ("cpu:fp32", "stock", "cuda:sm_90a:fp16", "rocm:gfx942:fp16")]  # fmt: skip
    link = f"[Tiny models](robustness/README.md) of {len(tiny)} architectures"
    yield f"* {link}: right on a CPU {good[0]} (stock TVM: {good[1]}), compiled in fp16 for sm_90a"
    yield f"  {good[2]}, for gfx942 {good[3]}."
    graphs = _read("graphnet/results/graphnet.json.xz")["graphs"].values()
    exported = [graph for graph in graphs if graph["export"]["outcome"] == "right"]
    cells = [Counter(graph[cell]["outcome"] for graph in exported) for cell in ("cpu", "sm_90a")]
    link = "[Graphs of real PyTorch models](graphnet/README.md)"
    yield f"* {link}, sampled from GraphNet: right on a CPU {cells[0]['right']} of {len(exported)},"
    yield f"  {cells[0]['wrong']} wrong, compiled in fp16 for sm_90a {cells[1]['compiles']}."
    files = _read("real_models/results/real_models.json.xz")["files"]
    times = [row["threads_2"] for row in files if "threads_2" in row]
    ratios = [one["ours_ms"] / one["onnxruntime_ms"] for one in times]
    link = "[Trained files](real_models/README.md) of PyPI packages"
    mean = f"{statistics.geometric_mean(ratios):.2f}"
    on_gpu = [row["sm_90a"]["outcome"] for row in files if "sm_90a" in row]
    yield f"* {link}: right with the ranges of their users: {sum(map(is_right, files))} of"
    yield f"  {len(files)}, on two threads {mean} times as long as ONNX Runtime; in fp16 on an H200"
    yield f"  {on_gpu.count('right')} of {len(on_gpu)} right."
    by_dtype = counts(_read("operators_torch/results/operators_torch.json.xz")["operators"])
    torch = sum(by_dtype.values(), Counter[str]())
    of = f"{torch['right']} of {torch.total() - torch['no program']}, {torch['refused']} refused"
    yield f"* Operator samples right: [PyTorch's](operators_torch/README.md) {of} by"
    onnx, link = (
        _read("operators_onnx/results/excluded.json.xz"),
        "operators_onnx/README.md",
    )
    yield f"  name, {torch['wrong']} wrong; [ONNX's]({link}) {onnx['right']} of {onnx['cases']}."


def _read(path: str) -> Any:
    return read(ROOT / "benchmarks" / path)


def _where(record: Mapping[str, Any]) -> str:
    found = record.get("environment") or record["about"]
    return f"{found.get('cpu') or found['device']}, {found['date'][:10]}"


def results() -> list[str]:
    """Write all results."""
    return [*table(HEAD, (row.cells() for row in rows())), "", *counted()]


def highlights() -> list[str]:
    """Write the README's rows, and what is slower in all results."""
    found, cells = [*rows()], []
    for (workloads, baseline, device), name in HIGHLIGHTS.items():
        row = next(row for row in found if row.workloads == workloads
                   and baseline in row.baseline and device in row.where)  # fmt: skip
        times = f"[{1 / row.mean():.2f}](benchmarks/{row.page}.md)"
        cells.append((name, row.baseline, times, row.where.partition(", ")[0]))
    losses = [(ratio, name, row) for row in found for name, ratio in row.slower().items()]
    ratio, name, row = max(losses, key=lambda loss: loss[0])
    total = sum(len(row.ratios) for row in found)
    return [
        *table(SHOWN, cells),
        "",
        f"Each row is of one run. Of {total} workloads in [all results](benchmarks/README.md), "
        f"{len(losses)} are slower than their baseline; the slowest is {name} ({row.workloads}, "
        f"against {row.baseline}), which takes {ratio:.2f} times as long.",
    ]


PAGES = {ROOT / "README.md": highlights, ROOT / "benchmarks/README.md": results}


def written(page: Path) -> str:
    """Return a page with the results of today's records."""
    return marked(page.read_text(), "results", PAGES[page]())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page))
