"""Lift graphs inside nodes (branches, loop bodies) to private functions of the module.

A graph inside a node reads values from around it. The function that it becomes gets them as
parameters; constants and extents it uses as they are, and one parameter, a shape, defines the
symbolic extents that any of them has. So every stage sees one more function, no closures.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir import GenericConst, is_prim_expr

from ..registry import Unsupported
from ..shape_values import SymbolicArray


@dataclass
class Captured:
    """Values from outside that a function reads."""

    # By name in the outer graph, what stands for it inside.
    values: dict[str, Any] = field(default_factory=dict)
    params: list[Any] = field(default_factory=list)  # parameters, one for each tensor
    args: list[Any] = field(default_factory=list)  # what callers outside pass for them
    symbols: list[Any] = field(default_factory=list)  # the symbolic extents of all of them

    def note(self, exprs: Iterable[Any]) -> None:
        """Note the symbolic extents in expressions."""
        for expr in exprs:
            if isinstance(expr, ir.Expr):
                found = tirx.analysis.undefined_vars(expr)
                self.symbols += [var for var in found if not any(map(var.same_as, self.symbols))]


def capture(bb: Any, nodes: Mapping[str, Any], names: Iterable[str]) -> Captured:
    """Turn values that a graph reads into parameters of the function that it becomes.

    Parameters
    ----------
    bb : tvm.relax.BlockBuilder
        Where values are bound outside.
    nodes : mapping of str to object
        The values outside by name.
    """
    captured, known = Captured(), {}

    def inside(value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([inside(item) for item in value.fields])
        if isinstance(value, SymbolicArray):
            captured.note(value.expressions())
            return value
        if isinstance(value, GenericConst) or not isinstance(value, ir.Expr):
            return value
        if isinstance(value, relax.ShapeExpr):
            captured.note(value.values)
            return value
        if is_prim_expr(value):
            captured.note([value])
            return value
        bound = value if isinstance(value, relax.Var) else bb.emit(value)
        if bound not in known:
            captured.note(extents_of(bound.ty))
            known[bound] = relax.Var(bound.name, bound.ty)
            captured.args.append(bound)
            captured.params.append(known[bound])
        return known[bound]

    for name in names:
        captured.values[name] = inside(nodes[name])
    return captured


def extents_of(ty: Any) -> list[Any]:
    """List the extents in a type."""
    if isinstance(ty, relax.TupleType):
        return [extent for part in ty.fields for extent in extents_of(part)]
    if isinstance(ty, relax.ShapeType):
        return list(ty.values or [])
    shape = getattr(ty, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def add_function(
    bb: Any, name: str, params: Sequence[Any], build: Callable[[], Sequence[Any]]
) -> tuple[ir.GlobalVar, relax.Function]:
    """Add a private function that returns a tuple.

    Parameters
    ----------
    bb : tvm.relax.BlockBuilder
        Of the module; a function may be under way.
    build
        Emits the body and returns the results.
    """
    bb.begin_scope(list(params))
    bb._begin_binding_block()
    result = bb.emit(relax.Tuple(list(build())))
    body = bb.normalize(relax.SeqExpr([bb._end_block()], result))
    bb.end_scope()
    func = relax.Function(list(params), body)
    gvar = bb.add_func(func, identifier(name))
    return gvar, bb.get()[gvar]


def branch(bb: Any, build: Callable[[], Any]) -> relax.SeqExpr:
    """Emit the branch of an ``If``."""
    bb._begin_binding_block()
    result = build()
    result = result if isinstance(result, relax.Var) else bb.emit(result)
    return relax.SeqExpr([bb._end_block()], result)


def shaped(bb: Any, value: Any, name: str) -> Any:
    """Set a tensor's extents: new symbols where they are known only at run time."""
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is not None:
        return value
    if ty.ndim < 0:
        raise Unsupported(
            f"whose result {name} has a rank that is known only at run time",
            "give it one rank in all branches and trips",
        )
    symbols = [tirx.Var(f"{identifier(name)}_{axis}", "int64") for axis in range(ty.ndim)]
    return bb.match_cast(value, relax.TensorType(symbols, ty.dtype))


def items(bb: Any, value: Any) -> list[Any]:
    """Bind the fields of a tuple."""
    return [bb.emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]


def flat(values: Iterable[Any]) -> list[Any]:
    """List the tensors of values that may be sequences."""
    return [
        leaf
        for value in values
        for leaf in (flat(value.fields) if isinstance(value, relax.Tuple) else [value])
    ]


def like(values: Iterable[Any], leaves: Iterable[Any]) -> list[Any]:
    """Put tensors into the places of those in values that may be sequences."""
    rest = iter(leaves)

    def place(value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([place(item) for item in value.fields])
        return next(rest)

    return [place(value) for value in values]


def finished(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop functions that nothing calls, and give private ones symbolic extents of their own."""
    kept: dict[Any, Any] = {}

    def reach(gvar: ir.GlobalVar) -> None:
        if gvar in kept:
            return
        func = kept[gvar] = mod[gvar]
        if isinstance(func, relax.Function):
            for called in relax.analysis.all_global_vars(func):
                reach(called)

    reach(mod.get_global_var("main"))
    for gvar, func in kept.items():
        if isinstance(func, relax.Function) and gvar.name_hint != "main":
            kept[gvar] = relax.utils.copy_with_new_vars(func)
    return tvm.IRModule(kept, attrs=mod.attrs)


def identifier(text: str) -> str:
    """Turn any text into an identifier."""
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in text)
    return name if name and not name[0].isdigit() else f"v{name}"
