"""Replace shapes that are computed at run time by symbolic extents."""

from typing import Any

from tvm import ir, relax, tirx

from ..engine import Scope, rewrite_pass

# These take a shape as a value. All others get extents, which legalization asks for.
_TAKE_SHAPES = ("relax.shape_to_tensor", "relax.tensor_to_shape", "relax.shape_of")


@rewrite_pass
def ResolveShapes(value: Any, scope: Scope) -> Any:
    """Write extents where operators take a variable that is a shape.

    ``s = tensor_to_shape(t); reshape(x, s)`` becomes ``s = tensor_to_shape(t); match_cast(s,
    Shape([a, b])); reshape(x, (a, b))`` with new symbols. TVM's legalization leaves operators
    over variables alone, and its code generation then fails.
    """
    if not isinstance(value, relax.Call):
        return None
    ty = value.ty
    is_open = isinstance(ty, relax.ShapeType) and ty.values is None and ty.ndim >= 0
    if is_open and not scope.is_cast(scope.target):
        shape = scope.emit(value)
        symbols = [tirx.Var(f"{shape.name}_{axis}", "int64") for axis in range(ty.ndim)]
        scope.match_cast(shape, relax.ShapeType(symbols))
        return relax.ShapeExpr(symbols)
    if not _takes_extents(value):
        return None
    args = [_extents(arg) for arg in value.args]
    if all(new is old for new, old in zip(args, value.args, strict=True)):
        return None
    return relax.Call(value.op, args, value.attrs, value.ty_args)


def _takes_extents(value: relax.Call) -> bool:
    if not isinstance(value.op, ir.Op) or value.op.name in _TAKE_SHAPES:
        return False
    return ir.Op.get(value.op.name).get_attr("FLegalize") is not None


def _extents(arg: Any) -> Any:
    is_known = isinstance(arg, relax.Var) and isinstance(arg.ty, relax.ShapeType)
    return relax.ShapeExpr(arg.ty.values) if is_known and arg.ty.values is not None else arg
