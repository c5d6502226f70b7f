"""Count the kernels of a module, ours or stock TVM's, by the same code."""

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.target import Target

from ...errors import UserError
from .host import Env
from .machine import Machine
from .profiler import Lowered, Profiler, is_gpu, with_host
from .result import Count, Launch
from .values import FunctionValue, allocations_of

_VM_OPS = frozenset(
    {"relax.call_builtin_with_ctx", "relax.call_inplace_packed", "relax.null_value"}
)


def count(
    mod: tvm.IRModule,
    target: Target | str,
    *,
    function: str = "main",
    dims: Mapping[str, int] | None = None,
    tir_pipeline: str = "default",
    lowered: Lowered | None = None,
) -> Count:
    """Count what one call of a function launches.

    A kernel is one device launch. On a GPU these are the calls of device functions after
    SplitHostDevice (loops on the host multiply), copies and library calls; a CUDA graph counts as
    the kernels captured in it. On a CPU a kernel is one full-tensor loop nest. Of the branches of
    an ``If`` the one with more launches is counted.

    Parameters
    ----------
    mod
        What a pipeline produced: either lowered for the virtual machine (the result of
        ``relax.get_default_pipeline`` or of any pipeline that ends in AttachGlobalSymbol), or
        still in ``call_tir`` form, which TVM's ``default_build`` pipeline then lowers unfused.
    target : tvm.target.Target or str
        What the module is compiled for. No device and no CUDA compiler is needed.
    function
        Name of the function.
    dims
        Extents of the function's symbolic dimensions.
    tir_pipeline
        Name of the registered TIR pipeline that the build uses; matters on GPUs only.
    lowered : mapping of str to sequence of tvm.tirx.PrimFunc, optional
        Host code of PrimFuncs that the build has lowered for a GPU, by their names, as
        SplitHostDevice left it; others are lowered anew.

    Returns
    -------
    count : Count
        Launches, PrimFunc calls and intermediate bytes.

    Raises
    ------
    UserError
        No such function; a symbolic dimension without an extent; a PrimFunc without kernels for
        the device.
    """
    target = with_host(Target(target))
    names = [gvar.name_hint for gvar, f in mod.functions.items() if isinstance(f, relax.Function)]
    if function not in names:
        raise UserError(
            f"the module has no function '{function}'",
            f"one of {', '.join(sorted(names)) or 'none'}",
            "name one of them",
        )
    mod = _to_vm_form(mod, target)
    main = FunctionValue(mod[function], function)
    symbols = _bind(main.function, function, dims or {})
    machine = Machine(mod, Profiler(target, tir_pipeline, lowered or {}), is_gpu(target), symbols)
    result = machine.invoke(
        main, [machine.value_of_type(param.ty) for param in main.function.params]
    )
    returned = set(allocations_of(result))
    tally = machine.tally
    return Count(
        launches=tuple(
            Launch(kernel, primfunc, calls, kind)
            for (kernel, primfunc, kind), calls in tally.launches.items()
        ),
        calls=tally.calls,
        visible_bytes=sum(
            size for allocation, size in tally.allocations.items() if allocation not in returned
        ),
        hidden_bytes=tally.hidden_bytes,
        host_launches=tally.host_launches,
        caveats=tuple(dict.fromkeys(tally.caveats)),
    )


def count_stock(
    mod: tvm.IRModule,
    target: Target | str,
    *,
    function: str = "main",
    dims: Mapping[str, int] | None = None,
) -> Count:
    """Count what stock TVM makes of an imported module.

    Stock is DecomposeOpsForInference and then ``relax.get_default_pipeline`` of the target. On a
    CPU ``tvm.compile`` itself applies less than that: it fuses nothing.

    Parameters
    ----------
    mod
        An imported module with high-level operators.
    target, function, dims
        As in :func:`count`.

    Returns
    -------
    count : Count
        Launches, PrimFunc calls and intermediate bytes.
    """
    target = with_host(Target(target))
    with target:
        mod = relax.transform.DecomposeOpsForInference()(mod)
        mod = relax.get_default_pipeline(target)(mod)
    return count(mod, target, function=function, dims=dims)


def _bind(func: relax.Function, name: str, dims: Mapping[str, int]) -> Env:
    symbols = Env()
    symbolic: list[ir.Var] = []
    for param in func.params:
        tvm_ffi.structural_walk(param.ty, (ir.Var, symbolic.append))
    for var in symbolic:
        if var.name not in dims:
            raise UserError(
                f"function '{name}' has the symbolic dimension '{var.name}'",
                "an extent for it",
                f"pass dims={{'{var.name}': N}}",
            )
        symbols.values[var] = dims[var.name]
    return symbols


def _to_vm_form(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    if all(_is_vm_form(f) for f in mod.functions.values() if isinstance(f, relax.Function)):
        return mod
    with target:
        return relax.get_pipeline("default_build")(mod)


def _is_vm_form(func: relax.Function) -> bool:
    external: list[str] = []

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op):
            name = call.op.name
            if (
                name.startswith("relax.")
                and not name.startswith("relax.vm.")
                and name not in _VM_OPS
            ):
                external.append(name)

    blocks: list[relax.DataflowBlock] = []
    tvm_ffi.structural_walk(func, [(ir.Call, visit), (relax.DataflowBlock, blocks.append)])
    return not external and not blocks
