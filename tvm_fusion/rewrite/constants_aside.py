"""Large constants laid aside while a pass of TVM's runs that would hash all their elements.

    f(x) = x @ W1 + x @ W2   ->   f(x, w1, w2) = x @ w1 + x @ w2   ->   pass   ->   as before

Constants of equal elements stay, since such a pass may find expressions of them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir import GenericConst

from ..core.untouched import is_rewritable

_LARGE = 1 << 16  # bytes


def with_constants_aside(mod: tvm.IRModule, apply: ir.transform.Pass) -> tvm.IRModule:
    """Apply a pass to a module whose large constants are parameters meanwhile.

    Parameters
    ----------
    apply
        Neither adds nor removes parameters, nor asks for the elements of constants but to compare
        them.

    Returns
    -------
    tvm.IRModule
        With the very same constants.
    """
    before, aside = mod.clone(), dict[ir.GlobalVar, dict[relax.Var, GenericConst]]()
    for gvar, func in mod.functions.items():
        found = _large_constants(func) if is_rewritable(func) else {}
        if found:
            aside[gvar] = {var: const for const, var in found.items()}
            body = _replaced(func.body, GenericConst, lambda c, known=found: known.get(c, c))
            before.update_func(gvar, _with(func, [*func.params, *found.values()], body))
    after = apply(before)
    for gvar, constants in aside.items():
        func = after[gvar]
        body = _replaced(func.body, relax.Var, lambda v, known=constants: known.get(v, v))
        after.update_func(gvar, _with(func, list(func.params)[: -len(constants)], body))
    return after


def _with(func: relax.Function, params: list[relax.Var], body: relax.Expr) -> relax.Function:
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _replaced(body: relax.Expr, kind: type, change: Callable[..., relax.Expr]) -> relax.Expr:
    return tvm_ffi.structural_map(body, (kind, change), order="post")


def _large_constants(func: relax.Function) -> dict[GenericConst, relax.Var]:
    """List large constants that equal no other one, with variables of their types."""
    seen: dict[GenericConst, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and hasattr(expr.value, "__dlpack__"):
            seen.setdefault(expr)

    relax.analysis.post_order_visit(func.body, visit)
    alike: dict[Hashable, list[tuple[GenericConst, np.ndarray]]] = {}
    for const in seen:
        try:
            elements = np.from_dlpack(const.value)
        except (BufferError, RuntimeError):  # types that numpy lacks
            continue
        if elements.nbytes >= _LARGE:
            flat = elements.reshape(-1).view(np.uint8)
            sample = str(const.ty), flat[:: flat.size // 256 | 1].tobytes()
            alike.setdefault(sample, []).append((const, flat))
    lone = [
        const
        for group in alike.values()
        for const, flat in group
        if not any(o is not flat and np.array_equal(o, flat) for _, o in group)
    ]
    return {const: relax.Var(f"constant{i}", const.ty) for i, const in enumerate(lone)}
