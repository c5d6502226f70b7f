"""Lift nested functions and closures to functions of the module."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...core.untouched import is_rewritable
from ...errors import UserError


@tvm.transform.module_pass(opt_level=0, name="LiftFunctions")
class LiftFunctions:
    """Run TVM's LambdaLift where there is anything to lift; its virtual machine needs that."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Lift the functions inside our functions; one that captures variables is refused."""
        has_local = any(is_rewritable(func) and _has_local(func) for func in mod.functions.values())
        return relax.transform.LambdaLift()(mod) if has_local else mod


def _has_local(func: relax.Function) -> bool:
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Function):
            found.append(expr)

    relax.analysis.post_order_visit(func.body, visit)
    captured = [var.name for local in found for var in relax.analysis.free_vars(local)]
    if captured:  # LambdaLift passes them untyped, and kernels need types
        raise UserError(
            f"a function inside another one uses {', '.join(captured)} from outside of it",
            "functions that use nothing but their parameters",
            "pass it as an argument",
        )
    return bool(found)
