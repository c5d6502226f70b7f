"""Activations of int8 for weights in blocks, on CPUs that multiply bytes."""

from typing import Any

import tvm
from tvm import ir, relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.decisions import Decision, record
from ...core.names.source import names_of, sources_of
from ...core.tir.loops import constant
from ...device import device_of
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ...frontend.operators.rounded_rows import rounded_rows, widened_rows
from ...frontend.tensor_types import dtype_of
from ...schedule.instructions.table import find_of_bytes

SIZE = 32  # elements of a block, as llama.cpp has them
MOST = 32  # operators that unpack weights
_VIEWS = ("relax.reshape", "relax.permute_dims")


@tvm.transform.module_pass(opt_level=0, name="RoundedActivations")
class RoundedActivations:
    """``x W = (numbers * scales) W``: each product with packed weights reads bytes of its own.

    Where the user allows approximate results, activations of products with weights of 8 bits and
    fewer are rounded to int8, with a scale for each block of a row. Where a model rounds them
    itself, what scales them back is repeated for every product, so that kernels read the bytes:
    once computed for all, four times as many bytes would be read, and floats multiplied.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function, for a CPU with dot products of bytes."""
        target = Target.current()
        if target is None or target.kind.name != "llvm":
            return mod
        device = device_of(target)
        if find_of_bytes(device, 8) is None:
            return mod
        known: dict[int, tuple[relax.Var, relax.Var]] = {}

        def product(value: Any, scope: Scope) -> Any:
            return _product(value, scope, device.approximates, known)

        return rewrite(mod, product)


def _product(
    value: Any,
    scope: Scope,
    rounds: bool,
    known: dict[int, tuple[relax.Var, relax.Var]],
) -> Any:
    if op_name(value) != "relax.matmul" or not isinstance(value.args[0], relax.Var):
        return None
    x, weights = value.args
    if not _is_packed(weights, scope):
        return None
    widened = _widened(x, scope)
    if widened is not None:
        if all(scope.uses(v) == 1 for v in widened):
            return None
        return relax.op.matmul(_repeated(x, scope), weights, out_dtype=value.attrs.out_dtype)
    terms = constant(x.ty.shape[-1]) if x.ty.shape is not None else None
    if not rounds or terms is None or terms % SIZE or dtype_of(x) != "float32":
        return None
    if hash(x) not in known:
        known[hash(x)] = rounded_rows(scope.emit, x, SIZE)
    sentence = f"Activations are rounded to int8 in blocks of {SIZE}."
    names = names_of(sources_of(scope.target))
    name = scope.target.name
    record(Decision(name, "", "accepted", "rounded_activations", sentence, producer_names=names))
    x = widened_rows(scope.emit, *known[hash(x)], x)
    return relax.op.matmul(x, weights, out_dtype=value.attrs.out_dtype)


def _is_packed(weights: Any, scope: Scope) -> bool:
    """Whether weights are unpacked from a constant of bytes, by operators of constants alone."""
    frontier, seen, has_bytes = [weights], 0, False
    while frontier:
        value = scope.value(frontier.pop())
        if isinstance(value, GenericConst):
            has_bytes |= dtype_of(value) in ("int8", "uint8") and value.ty.ndim > 1
            continue
        if not isinstance(value, relax.Call) or seen == MOST:
            return False
        seen += 1
        for operand in value.args:
            if isinstance(operand, relax.Tuple):
                frontier.extend(operand.fields)
            elif isinstance(operand, relax.Var | GenericConst):
                frontier.append(operand)
            elif isinstance(operand, ir.Expr) and isinstance(operand.ty, relax.TensorType):
                return False
    return has_bytes


def _widened(x: Any, scope: Scope) -> list[relax.Var] | None:
    """List the variables from bytes, scaled back, to an operand; ``None`` of another operand."""
    found = []
    while (view := scope.call(x, *_VIEWS)) is not None:
        found.append(x)
        x = view.args[0]
    scaled = scope.call(x, "relax.multiply")
    wide = None if scaled is None else scope.call(scaled.args[0], "relax.astype")
    if scaled is None or wide is None or dtype_of(wide.args[0]) != "int8":
        return None
    return [*found, x, scaled.args[0]]


def _repeated(x: Any, scope: Scope) -> relax.Var:
    """Scale bytes back once more."""
    view = scope.call(x, *_VIEWS)
    if view is not None:
        inner = _repeated(view.args[0], scope)
        return scope.emit(relax.Call(view.op, [inner, *view.args[1:]], view.attrs))
    scaled = scope.call(x, "relax.multiply")
    assert scaled is not None
    wide = scope.call(scaled.args[0], "relax.astype")
    assert wide is not None
    own = scope.emit(relax.Call(wide.op, list(wide.args), wide.attrs))
    return scope.emit(relax.op.multiply(own, scaled.args[1]))
