"""Tables of ``FUSED_GEMMS.md``, from ``results/fused_gemms.json.xz``, and the model of norms.

``python -m benchmarks.gpu.fused_gemms`` writes them between the page's markers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import marked, table
from benchmarks.records import read
from tvm_fusion.rewrite.norms.matches import gain_us

PAGE = Path(__file__).with_name("FUSED_GEMMS.md")
RECORD = PAGE.parent / "results" / "fused_gemms.json.xz"
MULTIPROCESSORS = 132  # of an H100


def written(page: str) -> str:
    """Return the page with the tables of the record."""
    record = read(RECORD)
    plain = [row for row in record["norm_statistics"] if not row["is_read_elsewhere"]]
    shared = [row for row in record["norm_statistics"] if row["is_read_elsewhere"]]
    for name, lines in (
        ("a GEMM and its norm", _gemm_norm(record["gemm_norm"])),
        ("layer pairs", _layer_pairs(record["layer_pairs"]["rows"])),
        ("back to back", _back_to_back(record["back_to_back"])),
        ("norms as factors", _statistics(plain)),
        ("norms that others read", _statistics(shared)),
    ):
        page = marked(page, name, lines)
    return page


def _gemm_norm(found: Mapping[str, Any]) -> list[str]:
    names = ("no_norm", "norm_kernel", "cluster", "no_norm_gemm", "cluster_gemm")
    times = [[one[name][0] for name in names] for one in found.values()]
    rows = [
        [*shape.split()[1::2], *(f"{us:.2f}" for us in (none, norm, cluster)), one["cluster"][1],
         f"{gemm:.2f}", f"{longer:.2f}"]
        for (shape, one), (none, norm, cluster, gemm, longer)
        in zip(found.items(), times, strict=True)
    ]  # fmt: skip
    head = ("M", "K", "no norm", "norm kernel", "cluster", "its cluster and tile")
    return [
        *table([*head, "first GEMM alone", "with its norm"], rows),
        "",
        f"The bound is the column without any norm: a norm kernel costs"
        f" {_span(norm - none for none, norm, *_ in times)} us more. The exchange makes the GEMM"
        f" {_span(with_norm - gemm for *_, gemm, with_norm in times)} us longer; with the cluster"
        f" a layer takes {_span((c / n for _, n, c, *_ in times), 2)} of the time with a norm"
        " kernel.",
    ]


def _back_to_back(found: list[Mapping[str, Any]]) -> list[str]:
    kinds, rows, gain = ("streamed", "resident", "cluster"), [], []
    for one in sorted(found, key=lambda one: (one["widths"], one["rows"])):
        best = min(one[kind] for kind in kinds if kind in one)
        two, prototype = one["two_kernels"], one["two_of_prototype"]
        gain.append(best / two)
        rows.append(
            [
                f"{one['rows']:,}",
                "-".join(map(str, one["widths"])) + ", hidden stored" * one["stores_hidden"],
                one["activation"],
                *(f"{us:.2f}" for us in (two, prototype)),
                *(f"{one[kind]:.2f}" if kind in one else "" for kind in kinds),
                f"{best / two:.2f}",
                f"{best / prototype:.2f}",
            ]
        )
    head = ["rows", "widths", "activation", "two kernels", "two of the prototype", *kinds]
    faster, slower = ([g for g in gain if (g < 1) == is_faster] for is_faster in (True, False))
    return [
        *table([*head, "best / two", "best / two of the prototype"], rows),
        "",
        f"One kernel takes {_span(faster, 2)} of the time of two in {len(faster)} cases, and"
        f" {_span(slower, 2)} in {len(slower)}.",
    ]


def _layer_pairs(found: list[Mapping[str, Any]]) -> list[str]:
    rows = []
    for row in found:
        us, widths = row["us"], "-".join(map(str, row["widths"]))
        two, one = us["two"], us[row["default"]]
        times = two, one, row["copy_alike"], us["inductor"], one / two, row["model"]
        what = f"{row['rows']:,}" + "*" * row["held_out"], widths, row["activation"]
        rows.append([*what, *(f"{value:.2f}" for value in times)])
    head = ["rows", "widths", "activation", "two kernels", "one", "copy", "torch.compile"]
    return table([*head, "one / two", "model"], rows)


def _statistics(found: list[Mapping[str, Any]]) -> list[str]:
    rows = []
    for one in sorted(found, key=lambda one: (one["columns"], one["rows"])):
        m, k, n = one["rows"], one["columns"], one["width"]
        norm, statistics = one["norm_kernel"], one["statistics"]
        model = "" if one["is_read_elsewhere"] else f"{gain_us(m, k, [n], MULTIPROCESSORS):.2f}"
        figures = f"{norm:.2f}", f"{statistics:.2f}", f"{norm - statistics:.2f}"
        rows.append([*(f"{size:,}" for size in (m, one["k"], k, n)), *figures, model])
    return table(["M", "K0", "K", "N", "norm kernel", "statistics", "saved", "model"], rows)


def _span(values: Any, digits: int = 1) -> str:
    ordered = sorted(values)
    return f"{ordered[0]:.{digits}f} to {ordered[-1]:.{digits}f}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
