"""Functions of a Relax module that exist in the compiling Python process alone."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax

from ..core.untouched import is_rewritable
from ..errors import UserError

_CALL = "relax.call_py_func"


def refuse_python_functions(mod: tvm.IRModule) -> None:
    """Raise a :class:`tvm_fusion.errors.UserError` that names a module's Python functions.

    An artifact holds no Python: the process that loads it could not call them.

    Parameters
    ----------
    mod : tvm.IRModule
        With functions written by ``I.pyfunc`` or calls by ``call_py_func``, or without.
    """
    names: dict[str, None] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) and expr.op.name == _CALL:
            names[str(expr.args[0].value)] = None

    for gvar, func in mod.functions.items():
        if (func.attrs or {}).get("is_pyfunc", False):
            names[gvar.name_hint] = None
        elif is_rewritable(func):
            relax.analysis.post_order_visit(func.body, visit)
    if names:
        plural = "s" if len(names) > 1 else ""
        raise UserError(
            f"the IRModule needs Python function{plural} {', '.join(names)}",
            "functions that run without the Python process that compiles them",
            "write them as Relax functions or PrimFuncs, or as packed functions of a library that "
            "the loading process has",
        )
