"""Count the groups of each model that can and cannot be tuned, and estimate what they take.

Run as ``python -m benchmarks.design_spaces [--target cuda:sm_90a] [MODEL ...]``: nothing is
measured; times are those of the model that was fitted to the device's kernels, where there is one.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.markdown import table
from benchmarks.records import text
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.tuning.tasks import survey

HERE = Path(__file__).parent
RESULT = HERE / "results" / "design_spaces.json"
SHOWN = 3  # templates of groups without choices


def main() -> int:
    """Survey models and write the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design_spaces", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo (default: all)")
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in options.models or zoo.names():
        record.setdefault(options.target, {})[name] = surveyed(zoo.load(name, 0), options.target)
        print(name, record[options.target][name], file=sys.stderr, flush=True)
        RESULT.write_text(text(record))
    (HERE / "README.md").write_text(render(record))
    return 0


def surveyed(model: Any, target: str) -> dict[str, Any]:
    """Count the groups of a model, and estimate the share of those without choices."""
    spec, config = parse(target), FusionConfig()
    found = survey(import_model(model, config), spec, config)
    cost = CostModel(spec.device)
    tuned = sum(task.calls * cost.cost(task.claim).us for task in found.tasks)
    fixed: dict[str, float] = defaultdict(float)
    for one in found.fixed:
        fixed[one.claim.template.name] += one.calls * cost.cost(one.claim).us
    whole = tuned + sum(fixed.values())
    most = sorted(fixed, key=lambda name: -fixed[name])[:SHOWN]
    largest = max((one.calls * cost.cost(one.claim).us for one in found.fixed), default=0.0)
    return {
        "tasks": len(found.tasks),
        "fixed": len(found.fixed),
        "symbolic": found.symbolic,
        "share": round(sum(fixed.values()) / whole, 4),
        "largest": round(largest / whole, 4),
        "templates": {name: round(fixed[name] / whole, 4) for name in most},
    }


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# Groups with and without design spaces",
        "",
        "Generated from `results/design_spaces.json` by `python -m benchmarks.design_spaces`;",
        "edits are lost.",
        "",
        "Distinct groups of static shapes. *Share*: of the model's time, estimated by the fit to",
        "the device's kernels, that goes to groups whose templates have one configuration;",
        "*largest*: to one such group with all its calls.",
    ]
    for target, models in record.items():
        rows = [
            [
                name,
                str(one["tasks"]),
                str(one["fixed"]),
                f"{one['share']:.1%}",
                f"{one['largest']:.1%}",
                ", ".join(f"{t} {share:.1%}" for t, share in one["templates"].items()),
            ]
            for name, one in models.items()
        ]
        headings = ["model", "with choices", "without", "share", "largest", "templates"]
        lines += ["", f"## {target}", "", *table(headings, rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
