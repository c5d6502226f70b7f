"""In-place inputs: a function writes its state, such as a cache of keys, into the inputs' memory.

Slices along one axis whose numbers are known at run time, as ``cache.index_copy(axis, positions,
values)`` is imported, cost the slices' bytes and not the cache's: what reads the cache afterwards,
such as attention, reads the input. Any other next state (a window that is rolled, the state of a
recurrence, a cache that is read before it is written) is computed as results are, and copied over
the input behind the last kernel: :mod:`.write_back`.
"""

from collections.abc import Mapping

import tvm
from tvm import ir, relax
from tvm.target import Target

from ...errors import UserError
from ...signature import Signature, TensorSpec
from ..cuda_graph.static_inputs import check_inputs
from .slice_patterns import Bindings, Write, mentioned
from .slices import write_slices


def update_in_place(
    mod: tvm.IRModule, signatures: Mapping[str, Signature], names: Mapping[str, str]
) -> tvm.IRModule:
    """Let functions write results over inputs.

    Parameters
    ----------
    mod
        The functions that ``signatures`` describes, as imported.
    names
        By input, the output whose values it is to hold; a function need not have it.

    Returns
    -------
    tvm.IRModule
        Those inputs are static inputs, too.

    Raises
    ------
    UserError
        For a name that no function knows, and for an output of another shape or dtype than its
        input.
    """
    check_inputs(signatures, names)
    _check_outputs(signatures, names)
    for function, signature in signatures.items():
        pairs = pairs_of(signature, names)
        if pairs:
            mod = _written(mod, function, pairs)
    return mod


def pairs_of(signature: Signature, names: Mapping[str, str]) -> dict[int, int]:
    """Match the inputs that a function writes to with the outputs that they are to hold.

    Returns
    -------
    dict of int to int
        By position of the input, that of the output.

    Raises
    ------
    UserError
        For an output that does not fit into its input.
    """
    outputs = {spec.name: i for i, spec in enumerate(signature.outputs)}
    pairs = {}
    for i, spec in enumerate(signature.inputs):
        output = names.get(spec.name)
        if output not in outputs:
            continue
        result = signature.outputs[outputs[output]]
        if (result.shape, result.dtype) != (spec.shape, spec.dtype):
            raise UserError(
                f"output {output!r} has shape {_text(result)}, and input {spec.name!r}, which is "
                f"to hold it, {_text(spec)}",
                "one shape and dtype",
            )
        pairs[i] = outputs[output]
    return pairs


def _check_outputs(signatures: Mapping[str, Signature], names: Mapping[str, str]) -> None:
    """Check that some function that has an input has the output that it is to hold."""
    for name, output in names.items():
        having = [s for s in signatures.values() if name in (spec.name for spec in s.inputs)]
        known = dict.fromkeys(spec.name for s in having for spec in s.outputs)
        if output not in known:
            raise UserError(f"there is no output {output!r}", f"one of {', '.join(known)}")


def _text(spec: TensorSpec) -> str:
    return f"({', '.join(map(str, spec.shape))}) and dtype {spec.dtype}"


def writes_of(
    func: relax.Function, signature: Signature, names: Mapping[str, str]
) -> list[tuple[relax.Expr, int]]:
    """List the numbers of all slices that a function writes to its inputs.

    Returns
    -------
    list of (Expr, int)
        With the extent of the axis.
    """
    bindings = Bindings(func)
    found = []
    for i, output in pairs_of(signature, names).items():
        write = bindings.write(func.params[i], bindings.result(output))
        if write is not None:
            found.append((write.number, int(write.param.ty.shape[write.slice.axis])))
    return found


def _written(mod: tvm.IRModule, function: str, pairs: Mapping[int, int]) -> tvm.IRModule:
    """Write slices of a function's inputs in place."""
    func = mod[function]
    if len(func.body.blocks) != 1:  # of a function that branches
        return mod
    (block,) = func.body.blocks
    bindings = Bindings(func)
    writes: dict[ir.Var, Write] = {}
    for i, output in pairs.items():
        write = bindings.write(func.params[i], bindings.result(output))
        if write is not None and bindings.uses[func.params[i]] == 1:
            writes[write.at] = write
    if not writes:
        return mod
    builder = relax.BlockBuilder(mod.clone())
    new = _grouped(builder, block.bindings, writes)
    body = relax.SeqExpr([relax.DataflowBlock(new)], func.body.body)
    whole = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    mod = builder.get()
    mod.update_func(mod.get_global_var(function), whole)
    return relax.transform.Normalize()(mod)


def _grouped(
    builder: relax.BlockBuilder, bindings: list[relax.Binding], writes: Mapping[ir.Var, Write]
) -> list[relax.Binding]:
    """Write the bindings: neighbouring writes are one call, in front of what first reads them."""
    done: list[relax.Binding] = []
    waiting: dict[ir.Var, Write] = {}
    results = {w.result for w in writes.values()} - writes.keys()

    def flush() -> None:
        if waiting:
            done.extend(_call(builder, list(waiting.values())))
            waiting.clear()

    for binding in bindings:
        known = {*waiting, *(w.result for w in waiting.values())}
        if known.intersection(mentioned(binding.value)) and binding.var not in results:
            flush()
        if binding.var in writes:
            waiting[binding.var] = writes[binding.var]
        elif binding.var not in results:
            done.append(binding)
    flush()
    return done


def _call(builder: relax.BlockBuilder, found: list[Write]) -> list[relax.Binding]:
    wide = [
        relax.VarBinding(w.at, relax.op.astype(w.result, w.at.ty.dtype))
        for w in found
        if not w.at.same_as(w.result)
    ]
    kernel = write_slices([w.slice for w in found], Target.current(allow_none=False))
    gvar = builder.add_func(kernel, "write_slices")
    args = [*(w.param for w in found), *(e for w in found for e in (w.number, w.values))]
    types = [w.param.ty for w in found]
    indices = list(range(len(found)))
    if len(found) == 1:
        call = relax.op.call_tir_inplace(gvar, relax.Tuple(args), indices, types[0])
        return [relax.VarBinding(found[0].result, call), *wide]
    call = relax.op.call_tir_inplace(gvar, relax.Tuple(args), indices, types)
    whole = relax.DataflowVar("written", relax.TupleType(types))
    items = [relax.VarBinding(w.result, relax.TupleGetItem(whole, i)) for i, w in enumerate(found)]
    return [relax.VarBinding(whole, call), *items, *wide]
