"""From call_tir to the virtual machine's instructions: memory plan, in-place results, shapes."""

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from ...core.tir.whole_extents import STEPS, steps_of
from ...core.untouched import LOWERED, is_rewritable, on_rewritable
from ..cuda_graph.capture import CAPTURED, CaptureLaunches
from ..cuda_graph.dependent_launch import LaunchEarly
from ..cuda_graph.static_inputs import with_static_inputs
from ..cuda_graph.weights_tuple import PassWeightsAsTuple
from ..memory.computed_extents import CheckComputedExtents
from ..memory.concat_parts import StoreConcatParts
from ..memory.destinations import PassDestinations
from ..memory.share_storage import ShareStorage
from ..memory.weights import WEIGHTS
from .launch_names import CallTIRRewriteWithNames

_CUDA_GRAPH, _HIP_GRAPH = "vm.builtin.cuda_graph.", "tvm_fusion.hip_graph."


@tvm.transform.module_pass(opt_level=0, name="LowerToVM")
class LowerToVM:
    """Lower Relax functions to what TVM's virtual machine executes.

    Memory is planned statically. On GPUs, with ``relax.backend.use_cuda_graph``, launches become
    CUDA or HIP graphs; see :mod:`tvm_fusion.deploy.cuda_graph.capture`, and their weights one
    tuple where the caller knows; see :mod:`tvm_fusion.deploy.cuda_graph.weights_tuple`. Kernels are
    launched early where devices can; see :mod:`tvm_fusion.deploy.cuda_graph.dependent_launch`.
    Lowered functions are marked, so that a second application leaves them alone: TVM's own passes
    would check every argument twice.

    Examples
    --------
    >>> mod = module(lambda x: op.nn.relu(op.matmul(x, weight(16, 4))), (8, 16))
    >>> with cpu:
    ...     lowered = LowerToVM()(ScheduleKernels()(FuseOperators()(Legalize()(mod))))
    >>> "R.vm.alloc_storage" in lowered.script()
    True
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that may be rewritten and is not lowered yet."""
        lower = relax.transform
        target = Target.current()
        kind = "" if target is None else target.kind.name
        if kind in ("cuda", "rocm") and ctx.config.get("relax.backend.use_cuda_graph", False):
            mod = Sequential([CaptureLaunches()])(mod)
        mod = Sequential([LaunchEarly(), StoreConcatParts()])(mod)
        mod = on_rewritable(
            lower.ToNonDataflow(),
            lower.RemovePurityChecking(),
            CallTIRRewriteWithNames(),
            PassDestinations(),
            lower.StaticPlanBlockMemory(),
            ShareStorage(),
            CheckComputedExtents(),
        )(mod)
        mod = Sequential([TakeWholeExtents(), PassWeightsAsTuple()])(mod)
        mod = on_rewritable(with_static_inputs(lower.RewriteCUDAGraph()), only=CAPTURED)(mod)
        mod = on_rewritable(
            lower.LowerAllocTensor(),
            lower.KillAfterLastUse(),
            lower.LowerRuntimeBuiltin(),
            lower.ComputePrimValue(),
            lower.VMShapeLower(),
            lower.AttachGlobalSymbol(),
        )(mod)
        if kind == "rocm":
            mod = on_rewritable(CallHipGraphs(), only=CAPTURED)(mod)
        for gvar, func in list(mod.functions.items()):
            if is_rewritable(func):
                mod.update_func(gvar, func.with_attr(LOWERED, True))
        return mod


@tvm.transform.module_pass(opt_level=0, name="CallHipGraphs")
class CallHipGraphs:
    """Let graphs be HIP's: TVM's functions are CUDA's, and both may be in one process."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every function that launches graphs."""
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if is_rewritable(func):
                named = tvm_ffi.structural_map(func, (relax.ExternFunc, _hip), order="post")
                mod.update_func(gvar, named)
        return mod


def _hip(function: relax.ExternFunc) -> relax.ExternFunc:
    name = str(function.global_symbol)
    if not name.startswith(_CUDA_GRAPH):
        return function
    return relax.ExternFunc(_HIP_GRAPH + name.removeprefix(_CUDA_GRAPH))


# Take whole extents where a function has numbers of steps: ``32*k`` is ``h`` to its callers.
#
# A function of which dimensions are multiples of a step
# (:mod:`tvm_fusion.frontend.dimensions.steps`) has a parameter of these numbers. Lowered, it
# computes them from the tensors that it is given, and checks that these are multiples.
@tvm.transform.module_pass(opt_level=0, name="TakeWholeExtents")
class TakeWholeExtents:
    """Replace the parameter of numbers of steps; runs behind the memory plan, which bounds them."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply to every function that has such a parameter."""
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if is_rewritable(func) and steps_of(func):
                mod.update_func(gvar, _whole(func))
        return mod


def _whole(func: relax.Function) -> relax.Function:
    steps = steps_of(func)
    at = next(i for i, param in enumerate(func.params) if _names(param.ty) == steps.keys())
    numbers = list(func.params[at].ty.values)
    extents = {v: tirx.Var(steps[v.name][0], "int64") for v in numbers}
    by_steps = {v: tirx.floordiv(extents[v], steps[v.name][1]) for v in numbers}
    shape = relax.Var("steps", relax.ShapeType(numbers))
    computed = relax.ShapeExpr([by_steps[v] for v in numbers])
    # Bound on its own: TVM 0.27 finds no slot for expressions in the value of a MatchCast.
    given = relax.Var("whole_steps", relax.ShapeType(list(computed.values)))
    bindings: list[Any] = [
        relax.VarBinding(given, computed),
        relax.MatchCast(shape, given, relax.ShapeType(numbers)),
    ]
    params = []
    for i, param in enumerate(func.params):
        if i == at:
            continue
        outer = _outer_type(param.ty, extents, by_steps, steps)
        if outer is None:
            params.append(param)
            continue
        params.append(relax.Var(param.name, outer))
        bindings.append(relax.MatchCast(param, params[-1], param.ty))
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    attrs = {k: v for k, v in dict(func.attrs).items() if k != STEPS}
    if int(attrs.get("num_input", -1)) > at:
        attrs["num_input"] = int(attrs["num_input"]) - 1
    if WEIGHTS in attrs:
        first, count = map(int, attrs[WEIGHTS])
        attrs[WEIGHTS] = [first - (first > at), count]
    ret_ty = _over(func.ret_ty, by_steps)
    return relax.Function(params, body, ret_ty, func.is_pure).with_attrs(attrs)


def _over(node: Any, values: dict[Any, Any]) -> Any:
    """Write expressions or types over other variables."""
    return tvm_ffi.structural_map(node, [(ir.Var, lambda var: values.get(var, var))], order="post")


def _names(ty: Any) -> set[str]:
    """Return the names of the variables that a parameter that is a shape defines."""
    values = (ty.values or []) if isinstance(ty, relax.ShapeType) else []
    return {value.name for value in values if isinstance(value, tirx.Var)}


def _outer_type(ty: Any, extents: Any, by_steps: Any, steps: Any) -> Any:
    """Return a tensor's type over whole extents; None where it has no number of steps."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    analyzer = tvm.sym.Analyzer()
    found, changed = [], False
    for extent in ty.shape.values:
        used = [v for v in tirx.analysis.undefined_vars(extent) if v in extents]
        changed |= bool(used)
        if len(used) == 1 and analyzer.can_prove_equal(extent, used[0] * steps[used[0].name][1]):
            found.append(extents[used[0]])
        else:
            found.append(_over(extent, by_steps) if used else extent)
    if not changed:
        return None
    return relax.TensorType(found, ty.dtype, ty.vdevice)
