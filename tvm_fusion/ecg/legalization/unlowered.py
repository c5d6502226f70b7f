"""Refuse operators that legalization could not lower, by name, before kernels are planned."""

from collections.abc import Container
from typing import Any

import tvm
from tvm import ir, relax
from tvm.ir.transform import PassContext

from ...core.names.source import bindings_of, joined, names_of, sources_of
from ...core.untouched import is_lowered, is_rewritable
from ...errors import UserError
from ...words import few
from .legalize import DISPATCHED

# TVM's virtual machine has these itself, whatever it is that they are given.
_BUILTIN = ("relax.reshape", "relax.shape_to_tensor", "relax.inspect.", "relax.ccl.", "relax.dist.")
_WITHOUT_KERNEL = frozenset({"relax.ewise_fma"})
# Python functions over numpy, which TVM has for these operators.
_CALLS_TIR = tuple(
    ir.Op.get(f"relax.{name}") for name in ("call_tir", "call_tir_with_grad", "call_tir_inplace")
)
_PYTHON = {"relax.run.nonzero": "nonzero", "relax.run.unique": "unique"}


@tvm.transform.module_pass(opt_level=0, name="RefuseUnlowered")
class RefuseUnlowered:
    """Raise a :class:`tvm_fusion.errors.UserError` where an operator is left that has no kernel.

    TVM's code generation would fail on it after all other work is done, and what TVM has as Python
    functions alone would fail where the artifact is loaded.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Check every rewritable function; the module stays as it is."""
        found: dict[str, dict[str, None]] = {}
        calls: dict[int, None] = {}

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Call) and (python := _python_name(expr)):
                reason = "is a numpy function of TVM, which an artifact cannot call"
                found.setdefault(reason, {})[python] = None
                calls[hash(expr)] = None
            elif isinstance(expr, relax.Call) and _is_unlowered(expr):
                name = str(expr.op.name).removeprefix("relax.")
                found.setdefault(_reason(expr), {})[name] = None
                calls[hash(expr)] = None

        for func in mod.functions.values():
            if is_rewritable(func) and not is_lowered(func):
                relax.analysis.post_order_visit(func.body, visit)
        if found:
            raise UserError(
                "; ".join(f"{_listed(names)} {reason}" for reason, names in found.items())
                + _places(mod, calls),
                None,
                "name the extents of tensors of unknown shape (match_cast), or export the model "
                "with shapes that do not depend on data",
            )
        return mod


def check_legalized(mod: tvm.IRModule, name: str) -> None:
    """Refuse a module of which nothing is TensorIR yet, where a pass would find nothing to do.

    Parameters
    ----------
    mod
        What the pass is applied to.

    Raises
    ------
    UserError
        If the module has operators that have a lowering, and no calls of functions.
    """
    waiting: dict[str, None] = {}
    is_begun = False

    def visit(expr: Any) -> None:
        nonlocal is_begun
        if not isinstance(expr, relax.Call):
            return
        if isinstance(expr.op, ir.GlobalVar) or expr.op in _CALLS_TIR:
            is_begun = True
        elif _has_lowering(expr):
            waiting[str(expr.op.name)] = None

    for func in mod.functions.values():
        if is_rewritable(func) and not is_lowered(func):
            relax.analysis.post_order_visit(func.body, visit)
    if waiting and not is_begun:
        first, *others = waiting
        more = f" and {len(others)} others" if others else ""
        raise UserError(
            f"{name} groups TensorIR functions, and the module's operators are none yet ({first}"
            f"{more})",
            "a module after tvm_fusion.transform.Legalize()",
            f"apply Legalize() before {name}()",
        )


def _has_lowering(call: relax.Call) -> bool:
    """Whether Legalize would make a PrimFunc of a call, whose shapes it must know."""
    if call.op in _CALLS_TIR or not _is_unlowered(call) or call.op.name in DISPATCHED:
        return False
    types = [*_results(call), *(arg.ty for arg in call.args if hasattr(arg, "ty"))]
    tensors = [ty for ty in types if isinstance(ty, relax.TensorType)]
    return all(isinstance(ty.shape, relax.ShapeExpr) for ty in tensors)


def _places(mod: tvm.IRModule, calls: Container[int]) -> str:
    """Say which operators of the model calls come from: `` (at /decoder/NonZero)``."""
    functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
    bindings = (b for func in functions for b in bindings_of(func.body))
    names = names_of(joined(sources_of(b.var) for b in bindings if hash(b.value) in calls))
    return f" (at {few(names)})" if names else ""


def _python_name(call: relax.Call) -> str | None:
    if not isinstance(call.op, ir.Op) or call.op.name != "relax.call_pure_packed":
        return None
    return _PYTHON.get(str(getattr(call.args[0], "global_symbol", "")))


def _is_unlowered(call: relax.Call) -> bool:
    if not isinstance(call.op, ir.Op):
        return False
    name = str(call.op.name)
    if not name.startswith("relax.") or name.startswith(_BUILTIN):
        return False
    if name in _WITHOUT_KERNEL or name in DISPATCHED:
        return True
    return ir.Op.get(name).get_attr("FLegalize") is not None


def _listed(names: dict[str, None]) -> str:
    return f"operator{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _reason(call: relax.Call) -> str:
    operands = [x for arg in call.args for x in (arg.fields if _is_tuple(arg) else [arg])]
    tensors = [x.ty for x in operands if isinstance(x.ty, relax.TensorType)]
    if not all(isinstance(ty.shape, relax.ShapeExpr) for ty in (*tensors, *_results(call))):
        return "on tensors whose shapes are not known before the model runs cannot be lowered"
    types = ", ".join(dict.fromkeys(str(ty.dtype.dtype) for ty in tensors))
    return f"of {types or 'no tensor'} cannot be lowered to a kernel"


def _results(call: relax.Call) -> list[relax.TensorType]:
    fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    return [ty for ty in fields if isinstance(ty, relax.TensorType)]


def _is_tuple(expr: Any) -> bool:
    return isinstance(expr, relax.Tuple)
