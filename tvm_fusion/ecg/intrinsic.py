"""Which intrinsic a call is of, whatever namespace TVM keeps it in."""

from __future__ import annotations

from typing import Any

from tvm import ir


def call_name(expr: Any) -> str:
    """Return an intrinsic's name without its dialect (``tirx.exp`` is ``exp``); else ``""``."""
    if isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op):
        return str(expr.op.name).rpartition(".")[2]
    return ""
