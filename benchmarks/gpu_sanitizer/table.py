"""What the tools found, for a reader: a page, and its record."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read, write

RESULT = Path(__file__).parent / "results" / "gpu_sanitizer.json.xz"
DESCRIBED = ("flash mma", "flash tma", "mma.sync", "wgmma", "wgmma of windows")


def keep(record: Mapping[str, Any]) -> None:
    """Write a record, its configurations in words, and print the page that shows it."""
    cases = {
        name: {**case, "config": describe_any(case["config"])}
        for name, case in record["cases"].items()
    }
    record = {**record, "cases": cases}
    write(RESULT, record)
    print(page())


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(read(RESULT))


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    about, cases = record["about"], record["cases"]
    tools = sorted({tool for case in cases.values() for tool in case["tools"]}, key=_order)
    lines = [
        "# Kernels under compute-sanitizer",
        "",
        "`python -m benchmarks.gpu_sanitizer build --out DIR` compiles where there is no GPU;"
        " `python3 -m benchmarks.gpu_sanitizer.run DIR` runs the folder where there is one.",
        "",
        f"On one {about['device']} (driver {about['driver']}), compiled for {about['target']};"
        f" compute-sanitizer {about['sanitizer']}. Of each family of kernels one small case with"
        " ragged edges: its configuration is the first of the design space that has what makes"
        " the family; the call runs once, from an artifact as users load it.",
        "",
        *([about["remark"], ""] if "remark" in about else []),
        "Planted faults (`planted.cu`), which the tools have to find: "
        + ", ".join(f"{tool}: {found['verdict']}" for tool, found in record["planted"].items())
        + ".",
        "",
        *table(
            ["family", "workload", "configuration", *tools],
            [_cells(name, case, tools) for name, case in cases.items() if not case["failed"]],
        ),
    ]
    for name, case in cases.items():
        for tool, found in case["tools"].items():
            if found["verdict"] != "clean":
                lines += ["", f"## {tool} of {name}: {found['verdict']}", ""]
                lines += ["```", *found["said"], "```"]
    lost = [f"* {name}: {case['failed']}" for name, case in cases.items() if case["failed"]]
    return "\n".join([*lines, *(["", "## Not compiled", "", *lost] if lost else [])]) + "\n"


def _order(tool: str) -> int:
    from .run import TOOLS

    return TOOLS.index(tool)


def _cells(name: str, case: Mapping[str, Any], tools: list[str]) -> list[str]:
    verdicts = [case["tools"].get(tool, {"verdict": "not run"})["verdict"] for tool in tools]
    return [case["family"], name, case["config"], *verdicts]


def describe_any(config: Mapping[str, Any] | str | None) -> str:
    """Name a configuration of any template; a record that was kept has its name already."""
    if config is None or isinstance(config, str):
        return config or "default"
    if config.get("kernel") in DESCRIBED:
        return describe(config)
    return ", ".join(f"{name} {value}" for name, value in config.items() if value)


def describe(config: Mapping[str, Any]) -> str:
    """Name a configuration of attention or a GEMM in a few words."""
    kernel, c = str(config["kernel"]), defaultdict(int, config)
    if kernel == "flash mma":
        kernel = "wgmma" if c["uses_wgmma"] else "mma.sync"
        words = [f"{kernel} {c['warps']}x{c['rows_of_warp']} queries, {c['block_n']} keys"]
        words += [f"{c['stages']} stages"] + ["q in registers"] * bool(c["q_in_registers"])
        words += ["ping-pong"] * bool(c["is_ping_pong"])
        return ", ".join(words)
    if kernel == "flash tma":
        words = [f"TMA {c['warps'] // 4}x64 queries, {c['block_n']} keys", f"{c['stages']} stages"]
        return ", ".join(words + ["ping-pong"] * bool(c["is_ping_pong"]))
    if "block_m" not in c:
        settings = [f"{name} {n}" for name, n in config.items() if n and n != kernel]
        return ", ".join([kernel, *settings])
    words = [f"{kernel} {c['block_m']}x{c['block_n']}x{c['block_k']}", f"{c['stages']} stages"]
    if kernel == "mma.sync":
        words.append(f"{c['warps_m']}x{c['warps_n']}x{c['warps_k']} warps")
    else:
        words.append("ping-pong" if c["is_ping_pong"] else f"{c['consumers']} consumers")
        words += [f"{c['blocks_per_sm']} blocks per SM"] * (c["blocks_per_sm"] > 1)
    words += [f"split-K {c['split_k']}"] * (c["split_k"] > 1)
    words += [f"groups of {c['group_m']}"] * (c["group_m"] > 1)
    return ", ".join(words)
