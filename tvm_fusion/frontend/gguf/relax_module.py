"""Bind parameters of Relax functions to the tensors of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ...core.untouched import is_rewritable
from ...errors import UserError
from ..operators.packed_weights import RelaxOperators, dequantize
from ..tensor_types import dtype_of
from .formats import PackedWeight


def bind(mod: tvm.IRModule, weights: Mapping[str, PackedWeight | np.ndarray]) -> tvm.IRModule:
    """Replace parameters by weights, which the functions compute from their planes.

    Parameters
    ----------
    mod
        Functions with dataflow blocks, such as those that ``relax.frontend.nn`` exports.
    weights
        By the parameters' names; every function is without those parameters then.

    Returns
    -------
    tvm.IRModule
        A new module; arrays are constants of it.

    Raises
    ------
    UserError
        For a name that no function has as a parameter, and for a parameter of another shape.
    """
    functions = {g: f for g, f in mod.functions.items() if is_rewritable(f)}
    names = {param.name for func in functions.values() for param in func.params}
    if unknown := [name for name in weights if name not in names]:
        listed = ", ".join(sorted(names)[:12])
        raise UserError(f"no function has a parameter {unknown[0]!r}", f"one of {listed}")
    # Read once: a file makes new arrays each time, and constants are told apart by their arrays.
    weights = {name: weights[name] for name in weights}
    constants: dict[int, relax.Constant] = {}
    changed = {g: _bound(f, weights, constants) for g, f in functions.items()}
    return tvm.IRModule({**mod.functions, **changed}, attrs=mod.attrs)


def _bound(
    func: relax.Function,
    weights: Mapping[str, PackedWeight | np.ndarray],
    constants: dict[int, relax.Constant],
) -> relax.Function:
    bound = [param for param in func.params if param.name in weights]
    first, *rest = func.body.blocks if bound else [None]
    if not isinstance(first, relax.DataflowBlock):
        return func

    for param in bound:
        shape = [int(d) if isinstance(d, tirx.IntImm) else str(d) for d in param.ty.shape]
        wanted = list(weights[param.name].shape)
        if shape != wanted:
            what = f"parameter {param.name} has shape {shape}"
            raise UserError(what, f"{wanted}, as its weight has it")

    def constant(array: np.ndarray) -> relax.Constant:
        """Make one constant of an array, however many functions have it."""
        if id(array) not in constants:
            constants[id(array)] = relax.const(np.ascontiguousarray(array))
        return constants[id(array)]

    def value(param: relax.Var) -> Any:
        weight = weights[param.name]
        if not isinstance(weight, PackedWeight):
            return RelaxOperators(builder.emit).cast(constant(weight), dtype_of(param))
        arrays = {name: constant(array) for name, array in weight.arrays.items()}
        ops = RelaxOperators(builder.emit)
        return dequantize(weight.packing, arrays, dtype_of(param), ops)

    builder = relax.BlockBuilder()
    with builder.function("weights", []):
        with builder.dataflow():
            # What later blocks read as well has to leave the block.
            emit = builder.emit_output if rest else builder.emit
            values = {param: emit(value(param)) for param in bound}
            last = builder.emit_output(relax.const(0))
        builder.emit_func_output(last)
    made = builder.get()["weights"].body.blocks[0].bindings[:-1]
    body = func.bind_params(values).body
    block = relax.DataflowBlock([*made, *body.blocks[0].bindings])
    kept = [param for param in func.params if param.name not in weights]
    return relax.Function(
        kept, relax.SeqExpr([block, *rest], body.body), func.ret_ty, func.is_pure, func.attrs
    )
