"""Binding symbolic variables of functions that hand PrimFuncs on.

TVM 0.27 takes variables of extents such as ``batch + 1`` in the type of a PrimFunc that is an
argument, as of what makes a paged cache, for free variables of the caller, and refuses to bind any.
"""

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, relax, tirx


def substitute(func: relax.Function, values: Mapping[str, ir.Expr]) -> relax.Function:
    """Write expressions for symbolic variables, over others that the function does not define yet.

    TVM's own binding refuses results with variables that no parameter defines.
    """
    mine = {
        v: values[v.name] for v in relax.analysis.defined_symbolic_vars(func) if v.name in values
    }
    return tvm_ffi.structural_map(func, [(ir.Var, lambda var: mine.get(var, var))], order="post")


def bind_symbolic_vars(func: relax.Function, values: Mapping[str, int | ir.Var]) -> relax.Function:
    """Replace symbolic variables by name.

    Parameters
    ----------
    func
        Whose parameters' types define the variables.
    values
        What to put for them; other names are left alone.
    """
    mine = {
        v: values[v.name] for v in relax.analysis.defined_symbolic_vars(func) if v.name in values
    }
    if not mine:
        return func
    if not relax.analysis.free_symbolic_vars(func):
        return func.bind_symbolic_vars({var.name: value for var, value in mine.items()})

    def bound(var: ir.Var) -> ir.Expr:
        value = mine.get(var, var)
        return tirx.IntImm(str(var.ty.dtype), value) if isinstance(value, int) else value

    return tvm_ffi.structural_map(func, [(ir.Var, bound)], order="post")
