"""Groups that library dispatch has matched, but no code generator has taken."""

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, Sequential

from ...core.untouched import PRIMITIVE
from ...errors import UserError
from .legalize import Legalize

_COMPOSITE, _CODEGEN = "Composite", "Codegen"


@tvm.transform.module_pass(opt_level=0, name="CompileComposites")
class CompileComposites:
    """Lower the operators of Composite functions, which become one kernel each.

    For builds only: whoever goes on with a pipeline of their own may yet run a code generator.
    FuseOpsByPattern without ``annotate_codegen`` leaves such functions, and TVM's default pipeline
    compiles them. They keep their boundaries: nothing is fused with what they hold.

    Raises
    ------
    UserError
        Where functions for an external code generator are left, which RunCodegen would have taken.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every function with the attribute Composite."""
        functions = {g: f for g, f in mod.functions.items() if isinstance(f, relax.Function)}
        waiting = {
            str(func.attrs[_CODEGEN]): gvar.name_hint
            for gvar, func in functions.items()
            if func.attrs and _CODEGEN in func.attrs
        }
        if waiting:
            generator, name = next(iter(waiting.items()))
            raise UserError(
                f"function {name} is for the external code generator {generator}",
                "a module whose external functions are compiled",
                "run relax.transform.RunCodegen before",
            )
        ours = [g for g, f in functions.items() if f.attrs and _COMPOSITE in f.attrs]
        if not ours:
            return mod
        alone = mod.clone()
        for gvar, func in functions.items():
            if gvar in ours:
                alone.update_func(gvar, func.without_attr(_COMPOSITE).without_attr(PRIMITIVE))
            else:
                alone.update_func(gvar, relax.ExternFunc(gvar.name_hint, func.ty))
        public = {g: alone[g].with_attr("global_symbol", g.name_hint) for g in ours}
        alone.update(tvm.IRModule(public))
        lowered = Sequential([Legalize()])(alone)
        for gvar in functions:
            func = mod[gvar]
            if gvar in ours:
                func = lowered[gvar].without_attr("global_symbol").with_attr(PRIMITIVE, True)
            lowered.update_func(gvar, func)
        return lowered
