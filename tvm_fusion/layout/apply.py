"""Chosen layouts written into the module: groups read and write them, layout kernels are added."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import ir, relax

from ..core.template import TEMPLATE, Claim
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook
from ..program.group import Group
from ..program.layouts import Layout, is_layout_map
from ..program.primitive import call_group, primitive_function
from ..program.variant import variant
from .calls import Calls, GroupCall, Tensor
from .choice import Choice, layout_of
from .costs import layout_kernel
from .identity import is_identity


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
    mod : tvm.IRModule
        With the groups as they are.
    calls : Calls
        What was read from the block.
    book : ClaimBook
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
        result = call_group(gvar, new.group, args, known)
        if len(new.group.outputs) == 1:
            self._bind(call.binding.var, result)
            return
        whole = relax.DataflowVar(call.binding.var.name, result.ty)
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
        """Bind a tensor in the layout that its producer writes beside that of the graph."""
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
        self._bindings.append(relax.VarBinding(var, call_group(gvar, group, [arg])))
        if to is not None:
            self._vars[tensor.var, to] = var

    def _add(self, group: Group, claim: Claim, name: str) -> ir.GlobalVar:
        func = primitive_function(group, {TEMPLATE: claim.template.name})
        return self._builder.add_func(func, name)


def _stored(tensor: Tensor, layout: Layout) -> relax.DataflowVar:
    """Name a tensor in a layout."""
    type_ = relax.TensorType(layout.shape(tensor.shape), str(tensor.var.ty.dtype))
    return relax.DataflowVar(f"{tensor.var.name}_{layout.name(tensor.rank)}", type_)


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
