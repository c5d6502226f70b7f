"""Copy next states over the inputs that hold them, behind the last kernel of a function."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import ir, relax
from tvm.target import Target

from ...errors import UserError
from ...signature import Signature
from .in_place import pairs_of
from .slices import Slice, write_slices

_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_VIEWS = tuple(ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze"))


def write_back(
    mod: tvm.IRModule, signatures: Mapping[str, Signature], names: Mapping[str, str]
) -> tvm.IRModule:
    """Write the states that :func:`update_in_place` left as results, in one kernel a function.

    It runs when everything is scheduled: bindings keep their order from there on, so that whatever
    reads the old state has done so.

    Parameters
    ----------
    names
        By input, the output whose values it is to hold; a function need not have it.

    Raises
    ------
    UserError
        For an old state that is another result as well, or the next state of another input.
    """
    for function, signature in signatures.items():
        pairs = pairs_of(signature, names)
        if pairs:
            mod = _written(mod, function, signature, pairs)
    return mod


def _written(
    mod: tvm.IRModule, name: str, signature: Signature, pairs: Mapping[int, int]
) -> tvm.IRModule:
    func = mod[name]
    values = relax.analysis.get_var2val(func)
    results = _results(func.body.body, values, len(signature.outputs))
    if results is None:
        raise UserError(f"function {name!r} writes to inputs and branches", "no branches")
    late: dict[int, relax.Expr] = {}
    for i, output in pairs.items():
        param = func.params[i]
        if not _holds(results[output], param, values):
            late[i] = results[output]
    if not late:
        return mod
    _check(signature, func, pairs, results, values)
    builder = relax.BlockBuilder(mod.clone())
    params = [func.params[i] for i in late]
    slices = [Slice(p.ty, x.ty) for p, x in zip(params, late.values(), strict=True)]
    gvar = builder.add_func(write_slices(slices, Target.current(allow_none=False)), "write_states")
    types = [p.ty for p in params]
    args = relax.Tuple([*params, *late.values()])
    call = relax.op.call_tir_inplace(
        gvar, args, list(range(len(params))), types if len(types) > 1 else types[0]
    )
    written = relax.Var("written", relax.TupleType(types) if len(types) > 1 else types[0])
    bindings = [relax.VarBinding(written, call)]
    fields = list(results)
    for place, i in enumerate(late):
        if len(types) == 1:
            fields[pairs[i]] = written
            continue
        state = relax.Var(f"state{place}", types[place])
        bindings.append(relax.VarBinding(state, relax.TupleGetItem(written, place)))
        fields[pairs[i]] = state
    result = fields[0]
    if isinstance(func.ret_ty, relax.TupleType):
        result = relax.Var("results", func.ret_ty)
        bindings.append(relax.VarBinding(result, relax.Tuple(fields)))
    *before, last = func.body.blocks
    joined = type(last)([*last.bindings, *bindings])
    blocks = [*before, joined]
    whole = relax.Function(
        func.params, relax.SeqExpr(blocks, result), func.ret_ty, func.is_pure, func.attrs
    )
    mod = builder.get()
    mod.update_func(mod.get_global_var(name), whole)
    return relax.transform.Normalize()(mod)


def _results(
    body: relax.Expr, values: Mapping[ir.Var, relax.Expr], count: int
) -> list[relax.Expr] | None:
    """List a function's results; ``None`` where they come out of a branch as a whole."""
    while isinstance(body, ir.Var) and isinstance(values.get(body), ir.Var):
        body = values[body]
    whole = values.get(body, body) if isinstance(body, ir.Var) else body
    if isinstance(whole, relax.Tuple):
        return list(whole.fields)
    return [body] if count == 1 else None


def _holds(result: relax.Expr, param: ir.Var, values: Mapping[ir.Var, relax.Expr]) -> bool:
    """Whether a result lies in a parameter's memory: written there, or the parameter itself."""
    while isinstance(values.get(result), ir.Var):
        result = values[result]
    if result.same_as(param):
        return True
    place, value = 0, values.get(result)
    if isinstance(value, relax.TupleGetItem):
        place, value = value.index, values.get(value.tuple_value)
    if not isinstance(value, ir.Call) or value.op != _IN_PLACE:
        return False
    written = int(value.attrs.inplace_indices[place])
    return written >= 0 and value.args[1].fields[written].same_as(param)


def _check(
    signature: Signature,
    func: relax.Function,
    pairs: Mapping[int, int],
    results: Sequence[relax.Expr],
    values: Mapping[ir.Var, relax.Expr],
) -> None:
    """Refuse results that are the old state of an input that is written to."""
    for i, output in pairs.items():
        for place, result in enumerate(results):
            if place != output and _seen_through(result, values).same_as(func.params[i]):
                state, name = signature.inputs[i].name, signature.outputs[place].name
                raise UserError(
                    f"output {name!r} is input {state!r} as it was before the call writes to it",
                    "outputs that are computed",
                    "return a copy that the caller makes before the call",
                )


def _seen_through(result: relax.Expr, values: Mapping[ir.Var, relax.Expr]) -> relax.Expr:
    while result in values:
        value = values[result]
        is_view = isinstance(value, ir.Call) and value.op in _VIEWS
        if not is_view and not isinstance(value, ir.Var):
            break
        result = value.args[0] if is_view else value
    return result
