"""Private functions written out where ``main`` calls them.

TVM's InlinePrivateFunctions leaves the symbolic variables of what it writes out undefined.
"""

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import ir, relax

from tvm_fusion.schedule.kernels import arguments_of


def inlined(mod: tvm.IRModule) -> tvm.IRModule:
    """Write out all Relax functions that ``main`` calls; they go.

    Parameters
    ----------
    mod
        The functions' symbolic variables are bare extents or parameters.

    Returns
    -------
    tvm.IRModule
        With ``main`` as its only Relax function.
    """
    main = mod["main"]
    others = {g: f for g, f in mod.functions.items() if not isinstance(f, relax.Function)}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    with builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            output = builder.emit_output(_emit(builder, mod, main, {}))
        builder.emit_func_output(output)
    return builder.get()


def _emit(
    builder: relax.BlockBuilder,
    mod: tvm.IRModule,
    func: relax.Function,
    known: dict[ir.Var, ir.Expr],
) -> relax.Expr:
    """Emit a function's bindings over what its variables stand for; return its result."""
    for block in func.body.blocks:
        for binding in block.bindings:
            value = _substitute(binding.value, known)
            callee = mod.functions.get(value.op) if isinstance(value, relax.Call) else None
            if isinstance(callee, relax.Function):
                value = _emit(builder, mod, callee, arguments_of(callee, value.args))
            known[binding.var] = builder.emit(value)
    return _substitute(func.body.body, known)


def _substitute(expr: relax.Expr, known: Mapping[ir.Var, ir.Expr]) -> relax.Expr:
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: known.get(v, v)), order="post")
