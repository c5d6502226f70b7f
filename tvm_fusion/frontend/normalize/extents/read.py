"""Read shapes out of tensors into the variables that a match_cast gives them.

TVM 0.27's DecomposeOpsForInference binds variables of its own, and the match_cast then says that
those of the module equal them. CanonicalizeBindings keeps one of each pair, except in operands that
are numbers (the end of an arange): one extent goes on under two names, and LegalizeOps forgets the
shape of whatever combines tensors of both.
"""

from typing import Any

from tvm import relax

from ..engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ReadExtents(value: Any, scope: Scope) -> Any:
    """Call the runtime's function where a match_cast names what ``tensor_to_shape`` returns."""
    if op_name(value) != "relax.tensor_to_shape":
        return None
    if not (scope.is_cast(scope.target) or scope.is_cast(value)):
        return None
    return relax.op.call_pure_packed(
        "vm.builtin.tensor_to_shape", *value.args, ty_args=relax.ShapeType(ndim=value.ty.ndim)
    )
