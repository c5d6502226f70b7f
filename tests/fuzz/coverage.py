"""How many groups of each template contained each operator."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax

TEMPLATE = "tvm_fusion.template"  # attribute of a fused Relax function
OPERATOR = "tvm_fusion.op"  # attribute of a PrimFunc: JSON of what it was


class Coverage:
    """Counts of (template, operator), of graphs per operator, of decisions per reason."""

    def __init__(self) -> None:
        self.groups: Counter[tuple[str, str]] = Counter()
        self.operators: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()

    def add(self, mod: tvm.IRModule) -> None:
        """Read the groups of a module as the fusion stage leaves it."""
        for func in mod.functions.values():
            attrs = func.attrs or {}
            if isinstance(func, relax.Function) and TEMPLATE in attrs:
                for name in set(_operators(mod, func)):
                    self.groups[str(attrs[TEMPLATE]), name] += 1

    def add_graph(self, operators: Iterable[str]) -> None:
        """Count the operators of a generated graph, each once."""
        self.operators.update(set(operators))

    def add_decisions(self, decisions: Iterable[Any]) -> None:
        """Count decisions by verdict and code."""
        self.decisions.update(f"{d.verdict} {d.code}" for d in decisions)

    def update(self, other: dict[str, Any]) -> None:
        """Add what :meth:`as_json` returned elsewhere."""
        self.operators.update(other["operators"])
        self.decisions.update(other["decisions"])
        for template, counts in other["templates"].items():
            for name, count in counts.items():
                self.groups[template, name] += count

    def as_json(self) -> dict[str, Any]:
        """Return counts by template and operator, and graphs by operator."""
        templates: dict[str, dict[str, int]] = {}
        for (template, name), count in sorted(self.groups.items()):
            templates.setdefault(template, {})[name] = count
        return {
            "operators": dict(sorted(self.operators.items())),
            "decisions": dict(sorted(self.decisions.items())),
            "templates": templates,
        }

    def table(self) -> str:
        """Lay out operators as rows and templates as columns."""
        templates = sorted({template for template, _ in self.groups})
        names = sorted({name for _, name in self.groups} | set(self.operators))
        width = max(map(len, names), default=0)
        lines = ["  ".join(["operator".ljust(width), "graphs", *templates])]
        for name in names:
            cells = [str(self.groups[t, name] or ".").rjust(len(t)) for t in templates]
            graphs = str(self.operators[name] or ".").rjust(len("graphs"))
            lines.append("  ".join([name.ljust(width), graphs, *cells]))
        return "\n".join(lines)


def _operators(mod: tvm.IRModule, func: relax.Function) -> list[str]:
    """List the operators of a group as the generator spells them; a PrimFunc's name if unknown."""
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            kernel = mod[expr.args[0]]
            record = (kernel.attrs or {}).get(OPERATOR)
            found.append(_name(record) if record is not None else expr.args[0].name_hint)

    relax.analysis.post_order_visit(func.body, visit)
    return found


def _name(record: Any) -> str:
    """Read the operator's name in a record, which is JSON text."""
    return str(json.loads(str(record))["name"]).removeprefix("relax.")
