"""All weights of a captured function as one parameter: a call does not handle each of them.

TVM's virtual machine copies every argument several times, 0.2 us each together, and a transformer
has hundreds of weights that only the CUDA graph's kernels read. As one tuple they are one argument,
handed on to the captured function, which reads its fields when it is captured.

    main(x, w0, w1, w2):  main(x, weights):
      k0(x, w0)             w0 = weights[0]      before its first use, so that those of captured
      k1(w1, w2)            k0(x, w0)            kernels are captured with them
                            w1, w2 = weights[1], weights[2]
                            k1(w1, w2)
"""

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir.transform import PassContext

from ...core.untouched import is_lowered, is_rewritable
from .capture import CAPTURED

# Attribute of a function: its caller knows that weights may become a tuple; then, that they did.
MAY_PASS_TUPLE, PASSES_TUPLE = "tvm_fusion.may_pass_tuple", "tvm_fusion.passes_tuple"


@tvm.transform.module_pass(opt_level=0, name="PassWeightsAsTuple")
class PassWeightsAsTuple:
    """Make the parameters behind the first ``num_input`` one tuple.

    Takes captured functions whose caller knows, without dataflow blocks, before CUDA graphs are
    rewritten: TVM captures a binding with the kernels around it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that may be rewritten and is not lowered yet."""
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if not is_rewritable(func) or is_lowered(func) or not (func.attrs or {}).get(CAPTURED):
                continue
            count = int(func.attrs.get("num_input", len(func.params)))
            if func.attrs.get(MAY_PASS_TUPLE) and count < len(func.params):
                mod.update_func(gvar, _with_tuple(func, count))
        return mod


def passes_tuple(mod: tvm.IRModule, function: str) -> bool:
    """Tell whether a function takes its weights as one tuple."""
    return bool((mod[function].attrs or {}).get(PASSES_TUPLE))


def _with_tuple(func: relax.Function, count: int) -> relax.Function:
    params, weights = list(func.params[:count]), list(func.params[count:])
    whole = relax.Var("weights", relax.TupleType([weight.ty for weight in weights]))
    places = {weight: place for place, weight in enumerate(weights)}
    taken: dict[ir.Var, ir.Var] = {}

    def over(expr: relax.Expr) -> tuple[list[relax.VarBinding], relax.Expr]:
        """Take what an expression reads first out of the tuple."""
        used = [var for var in relax.analysis.free_vars(expr) if var in places]
        before = []
        for weight in used:
            if weight not in taken:
                taken[weight] = relax.Var(weight.name, weight.ty)
                item = relax.TupleGetItem(whole, places[weight])
                before.append(relax.VarBinding(taken[weight], item))
        if not used:
            return before, expr
        swapped = (ir.Var, lambda var: taken.get(var, var))
        return before, tvm_ffi.structural_map(expr, swapped, order="post")

    blocks: list[relax.BindingBlock] = []
    for block in func.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            before, value = over(binding.value)
            bindings += [*before, relax.VarBinding(binding.var, value)]
        blocks.append(relax.BindingBlock(bindings))
    before, result = over(func.body.body)
    if before:
        blocks.append(relax.BindingBlock(before))
    body = relax.SeqExpr(blocks, result)
    whole_func = relax.Function([*params, whole], body, func.ret_ty, func.is_pure, func.attrs)
    return whole_func.with_attr(PASSES_TUPLE, True)
