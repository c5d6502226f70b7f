"""Which arguments of kernels need no check: tensors that the virtual machine or the loader makes.

    main(x, weight):                              x comes from a caller
        a = vm.alloc_tensor(...)
        conv(x, weight, a)                        conv checks x, not weight and a
        b = vm.alloc_tensor(...)
        relu(a, b)                                relu checks nothing

The loader gives weights the shape, type and device of the manifest, in contiguous memory
(:mod:`..runtime.weights_file`, :mod:`..runtime.tensors`). Destinations of results are their caller's, like inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tvm import IRModule, ir, relax, tirx

from ...lower.argument_checks import with_checked
from ..memory.weights import WEIGHTS

_ALLOC = ir.Op.get("relax.vm.alloc_tensor")
_CALL_DYNAMIC = ir.Op.get("relax.vm.call_tir_dyn")
_RESHAPE = "vm.builtin.reshape"


def mark_checked_arguments(
    mod: IRModule,
    kernels: Mapping[ir.GlobalVar, tirx.PrimFunc],
    loaders: Collection[str] = (),
) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """Mark parameters of kernels that no call passes a caller's tensor for.

    Parameters
    ----------
    mod : IRModule
        Lowered for the virtual machine.
    kernels : mapping of GlobalVar to PrimFunc
        Its PrimFuncs, by the variables that calls name.
    loaders : collection of str
        Names of those that the loader calls, with weights that it has checked.

    Returns
    -------
    dict of GlobalVar to PrimFunc
        With marks; one that nothing in the module calls has none.
    """
    names = {gvar.name_hint for gvar in kernels}
    checked = {
        g.name_hint: set(range(len(f.params))) for g, f in kernels.items() if g.name_hint in loaders
    }
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            origins = _Origins(func)
            for name, args in _kernel_calls(func, names):
                own = {k for k, arg in enumerate(args) if origins.is_own(arg)}
                checked[name] = checked.get(name, own) & own
    return {g: with_checked(f, checked.get(g.name_hint, ())) for g, f in kernels.items()}


def _kernel_calls(func: relax.Function, names: set[str]) -> list[tuple[str, Sequence[ir.Expr]]]:
    """List kernels and arguments of all calls; another use of a kernel is one without arguments."""
    found: list[tuple[str, Sequence[ir.Expr]]] = []

    def visit(expr: ir.Expr) -> None:
        if not isinstance(expr, ir.Call):
            return
        if isinstance(expr.op, ir.GlobalVar) and expr.op.name_hint in names:
            found.append((expr.op.name_hint, list(expr.args)))
            others = expr.args
        elif expr.op == _CALL_DYNAMIC and isinstance(expr.args[1], relax.Tuple):
            found.append((expr.args[0].name_hint, list(expr.args[1].fields)))
            others = []
        else:
            others = expr.args
        found.extend((arg.name_hint, ()) for arg in others if isinstance(arg, ir.GlobalVar))

    relax.analysis.post_order_visit(func, visit)
    return found


class _Origins:
    """Where the tensors of one function come from."""

    def __init__(self, func: relax.Function) -> None:
        first, count = (int(k) for k in (func.attrs or {}).get(WEIGHTS, (0, 0)))
        self._weights = frozenset(map(hash, func.params[first : first + count]))
        self._values = relax.analysis.get_var2val(func)
        self._known: dict[int, bool] = {}

    def is_own(self, expr: ir.Expr) -> bool:
        """Whether a tensor is a weight, a constant or allocated by the virtual machine."""
        if not isinstance(expr, ir.Var):
            return self._is_own(expr)
        key = hash(expr)
        if key not in self._known:
            value = self._values.get(expr)
            is_weight = key in self._weights
            self._known[key] = is_weight or (value is not None and self._is_own(value))
        return self._known[key]

    def _is_own(self, expr: ir.Expr) -> bool:
        if isinstance(expr, ir.Var):
            return self.is_own(expr)
        if isinstance(expr, ir.GenericConst):
            return isinstance(expr.ty, relax.TensorType)
        if not isinstance(expr, ir.Call):
            return False
        if isinstance(expr.op, relax.ExternFunc) and expr.op.global_symbol == _RESHAPE:
            return self.is_own(expr.args[0])
        return expr.op == _ALLOC
