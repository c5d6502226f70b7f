"""The layout stage: which layout each tensor between groups has in memory.

DNNFusion's inter-block step: groups are planned in the layout of the graph; here one choice over
the whole plan lets those around convolutions read and write blocked or channels-last tensors
(:mod:`.choose`). Reshapes that are left between groups become views.
"""

from collections.abc import Mapping

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from .._tvm.ir.reshape import is_reshape
from ..core.contract.template import TEMPLATE, Claim
from ..core.untouched import has_blocks, is_lowered, is_rewritable, on_rewritable
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook, claim_book
from ..program.group import Group
from ..program.layouts import Layout, is_layout_map
from ..program.primitive import call_group, primitive_function
from ..program.variant import variant
from .calls import Calls, GroupCall, Groups, Tensor, group_calls
from .choice import Choice, layout_of
from .choose import choose
from .costs import layout_kernel
from .identity import is_identity
from .record import record_choice


@tvm.transform.module_pass(opt_level=0, name="PlanLayout")
class PlanLayout:
    """Choose layouts of tensors between groups, and turn reshapes into views.

    Inputs and outputs of functions keep their layout. Where no template profits from another one,
    nothing but views changes. Runs under the target that kernels are for.

    Examples
    --------
    >>> def rows(x):
    ...     narrow = op.reshape(op.nn.softmax(op.matmul(x, weight(16, 16))), (16, 8))
    ...     return op.matmul(narrow, weight(8, 4))
    >>> with cpu:
    ...     fused = FuseOperators()(Legalize()(module(rows, (8, 16))))
    ...     calls(fused), calls(PlanLayout()(fused))  # a kernel becomes a view
    (['fused_matmul', 'fused_softmax', 'reshape', 'fused_matmul1'],
     ['fused_matmul', 'fused_softmax', 'relax.reshape', 'fused_matmul1'])
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        target = Target.current(allow_none=True)
        if target is not None:
            mod = choose_layouts(mod, target)
        return Sequential([ReshapesToViews()])(mod)


def choose_layouts(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Choose layouts of tensors between groups, and let groups read and write them.

    Parameters
    ----------
    mod
        Planned: its functions call groups.

    Returns
    -------
    tvm.IRModule
        The same object where nothing changes.
    """
    groups = Groups(mod)
    book = claim_book(target)
    builder = relax.BlockBuilder(mod.clone())
    rewritten: dict[tvm.ir.GlobalVar, relax.Function] = {}
    for gvar, func in mod.functions.items():
        if not is_rewritable(func) or is_lowered(func):
            continue
        blocks = list(func.body.blocks)
        changed = False
        for k, block in enumerate(blocks):
            if isinstance(block, relax.DataflowBlock):
                calls = group_calls(block, groups)
                choice = choose(calls, book)
                if choice is not None:
                    record_choice(choice)
                    blocks[k] = apply_choice(builder, mod, block, calls, choice, book)
                    changed = True
        if changed:
            body = relax.SeqExpr(blocks, func.body.body)
            rewritten[gvar] = relax.Function(
                func.params, body, func.ret_ty, func.is_pure, func.attrs
            )
    if not rewritten:
        return mod
    result = builder.get()
    for gvar, func in rewritten.items():
        result.update_func(gvar, func)
    called = {g for func in rewritten.values() for g in relax.analysis.all_global_vars(func)}
    before = {g for gvar in rewritten for g in relax.analysis.all_global_vars(mod[gvar])}
    kept = {
        g
        for gvar, func in result.functions.items()
        if isinstance(func, relax.Function)
        for g in relax.analysis.all_global_vars(func)
    }
    for gvar in before - called - kept:
        del result[gvar]
    return relax.transform.Normalize()(result)


# Replace reshapes between kernels by views of one buffer, which need no kernel.
@tvm.transform.module_pass(opt_level=0, name="ReshapesToViews")
class ReshapesToViews:
    """Turn reshapes between kernels into views, those that make a function's output included.

    TVM recognises a reshape by its PrimFunc, so this runs before kernels are scheduled. Left to
    itself it copies where a reshape is bound to an output variable.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        return on_rewritable(
            _AliasOutputs(),
            _RewriteReshapes(),
            relax.transform.DeadCodeElimination(),
        )(mod)


@tvm.transform.module_pass(opt_level=0, name="AliasOutputs")
class _AliasOutputs:
    """``output = reshape(x)`` becomes ``y = reshape(x); output = y``, which TVM sees as a view."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                mod.update_func(gvar, _alias_outputs(mod, func))
        return relax.transform.Normalize()(mod)


@tvm.transform.module_pass(opt_level=0, name="RewriteReshapes")
class _RewriteReshapes:
    """Run TVM's RewriteDataflowReshape, whose analysis dies of PrimFuncs that it cannot read.

    Functions that are no reshape are shown to it without a body: it looks at none that uses no
    argument. Those without SBlocks end in an internal error otherwise (TVM 0.27).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        hidden = {
            gvar: func
            for gvar, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and not (has_blocks(func) and is_reshape(func))
        }
        shown = mod.clone()
        for gvar, func in hidden.items():
            shown.update_func(gvar, func.with_body(tirx.Evaluate(0)))
        rewritten = relax.transform.RewriteDataflowReshape()(shown)
        for gvar, func in hidden.items():
            rewritten.update_func(gvar, func)
        return rewritten


def _alias_outputs(mod: tvm.IRModule, func: relax.Function) -> relax.Function:
    blocks = []
    for block in func.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            bindings = [new for old in block.bindings for new in _alias(mod, old)]
            block = relax.DataflowBlock(bindings)
        blocks.append(block)
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _alias(mod: tvm.IRModule, binding: relax.Binding) -> list[relax.Binding]:
    if isinstance(binding.var, relax.DataflowVar) or not _is_reshape(mod, binding.value):
        return [binding]
    inner = relax.DataflowVar(binding.var.name, binding.var.ty, binding.var.span)
    return [relax.VarBinding(inner, binding.value), relax.VarBinding(binding.var, inner)]


def _is_reshape(mod: tvm.IRModule, value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    kernel = mod[value.args[0]]
    # TVM's test dies of a thread-level kernel, which has no SBlocks.
    return has_blocks(kernel) and is_reshape(kernel)


# Chosen layouts written into the module: groups read and write them, layout kernels are added.
def apply_choice(
    builder: relax.BlockBuilder,
    mod: tvm.IRModule,
    block: relax.DataflowBlock,
    calls: Calls,
    choice: Choice,
    book: ClaimBook,
) -> relax.DataflowBlock:
    """Rewrite a block so that its tensors have the layouts of a choice.

    Parameters
    ----------
    mod
        With the groups as they are.
    calls
        What was read from the block.
    book
        Names the templates of the new groups.

    Returns
    -------
    relax.DataflowBlock
        Not normalised yet.
    """
    writer = _Writer(builder, mod, calls, choice, book)
    inside = {binding.var for binding in block.bindings}
    for tensor, state in choice.states.items():
        if tensor.var not in inside:
            writer.copy(tensor, state)
    for binding in block.bindings:
        writer.rewrite(binding)
    return relax.DataflowBlock(writer.done())


class _Writer:
    def __init__(
        self,
        builder: relax.BlockBuilder,
        mod: tvm.IRModule,
        calls: Calls,
        choice: Choice,
        book: ClaimBook,
    ) -> None:
        self._builder, self._mod, self._book, self._choice = builder, mod, book, choice
        self._calls = {call.binding.var: call for call in calls.calls}
        self._tensors = {tensor.var: tensor for tensor in choice.states}
        self._items: dict[relax.Var, dict[int, int]] = {}  # of tuples whose order has changed
        self._whole: dict[relax.Var, relax.Var] = {}
        self._vars: dict[tuple[relax.Var, Layout | None], relax.Var] = {}
        self._bindings: list[relax.Binding] = []

    def done(self) -> list[relax.Binding]:
        """Return all bindings."""
        return self._bindings

    def rewrite(self, binding: relax.Binding) -> None:
        """Write a binding again, with what has become of its operands."""
        call = self._calls.get(binding.var)
        if call is not None and self._choice.layouts(call):
            self._call(call)
            return
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._items:
            index = self._items[value.tuple_value][value.index]
            item = relax.TupleGetItem(self._whole[value.tuple_value], index)
            self._bind(binding.var, item)
            return
        self._bindings.append(binding)
        if binding.var in self._tensors:
            tensor = self._tensors[binding.var]
            self.copy(tensor, self._choice.states[tensor])

    def _call(self, call: GroupCall) -> None:
        layouts, twice = self._choice.layouts(call), self._choice.written_twice(call)
        new = variant(call.group, layouts, self._builder.add_func, twice)
        value = call.binding.value
        given = [a for a in value.args if not isinstance(a.ty, relax.ShapeType)]
        by_input = dict(zip(call.group.inputs, given, strict=True))
        args = []
        for own in new.group.inputs:
            old = new.original[own]
            arg, layout = by_input[old], layouts.get(old)
            args.append(arg if layout is None else self._vars[arg, layout])
        if is_identity(new.group):
            self._bind(call.binding.var, args[0])
            return
        claim = self._book.claim(new.group)
        if not isinstance(claim, Claim):
            raise RuntimeError(f"{call.gvar.name_hint} has lost its claim: {claim.sentence}")
        gvar = self._add(new.group, claim, call.gvar.name_hint)
        known = _symbols(self._mod[call.gvar], list(value.args))
        result = call_group(gvar, new.group, args, known, value.span)
        if len(new.group.outputs) == 1:
            self._bind(call.binding.var, result)
            return
        whole = relax.DataflowVar(call.binding.var.name, result.ty, call.binding.var.span)
        self._bindings.append(relax.VarBinding(whole, result))
        items: dict[int, int] = {}
        for k, own in enumerate(new.group.outputs):
            output = new.original[own]
            is_second = own.producer is not None and is_layout_map(own.producer.func)
            if output in twice and is_second:
                self._second(call.writes[output], relax.TupleGetItem(whole, k))
            else:
                items[list(call.group.outputs).index(output)] = k
        if len(call.group.outputs) == 1:
            self._bind(call.binding.var, relax.TupleGetItem(whole, items[0]))
            return
        self._whole[call.binding.var] = whole
        self._items[call.binding.var] = items

    def _second(self, tensor: Tensor, value: relax.Expr) -> None:
        """Bind a tensor in the layout that its producer writes, besides that of the graph."""
        layout = layout_of(self._choice.states[tensor])
        assert layout is not None
        stored = _stored(tensor, layout)
        self._vars[tensor.var, layout] = stored
        self._bindings.append(relax.VarBinding(stored, value))

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Bind what a group has written, by a new variable if it has a layout."""
        tensor = self._tensors.get(var)
        state = self._choice.states[tensor] if tensor is not None else (None,)
        if tensor in self._choice.twice:
            state = (None,)
        if state[0] is not None:
            assert tensor is not None
            stored = _stored(tensor, state[0])
            self._vars[var, state[0]] = stored
            var = stored
        self._bindings.append(relax.VarBinding(var, value))
        if tensor is not None:
            self.copy(tensor, state)

    def copy(self, tensor: Tensor, state: tuple[Layout | None, ...]) -> None:
        """Add the layout kernel of a tensor that is there in two layouts."""
        if len(state) == 1:
            return
        from_, to = state
        layout = from_ or to
        assert layout is not None
        value = Value(tensor.var.name, tensor.var.ty)
        group = layout_kernel(value, layout, to is None, self._builder.add_func)
        claim = self._book.claim(group)
        assert isinstance(claim, Claim)
        (result,) = group.outputs
        gvar = self._add(group, claim, f"layout_{layout.name(tensor.rank)}")
        arg = tensor.var if from_ is None else self._vars[tensor.var, from_]
        var = tensor.var if to is None else relax.DataflowVar(result.name, result.type)
        copied = call_group(gvar, group, [arg], span=tensor.var.span)
        self._bindings.append(relax.VarBinding(var, copied))
        if to is not None:
            self._vars[tensor.var, to] = var

    def _add(self, group: Group, claim: Claim, name: str) -> ir.GlobalVar:
        func = primitive_function(group, {TEMPLATE: claim.template.name})
        return self._builder.add_func(func, name)


def _stored(tensor: Tensor, layout: Layout) -> relax.DataflowVar:
    """Name a tensor in a layout."""
    type_ = relax.TensorType(layout.shape(tensor.shape), str(tensor.var.ty.dtype))
    name = f"{tensor.var.name}_{layout.name(tensor.rank)}"
    return relax.DataflowVar(name, type_, tensor.var.span)


def _symbols(func: relax.Function, args: list[relax.Expr]) -> Mapping[ir.Var, ir.Expr]:
    """Map a group's symbolic variables to the extents that a call passes."""
    known: dict[ir.Var, ir.Expr] = {}
    for param, arg in zip(func.params, args, strict=True):
        if isinstance(param.ty, relax.ShapeType):
            known.update(zip(param.ty.values, arg.values, strict=True))
        elif isinstance(param.ty, relax.TensorType):
            extents = zip(param.ty.shape.values, arg.ty.shape.values, strict=True)
            known.update({mine: its for mine, its in extents if isinstance(mine, ir.Var)})
    return known
