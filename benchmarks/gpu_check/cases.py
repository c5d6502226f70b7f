"""Groups of a planned module, each cut out with what it needs to run alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import tvm
from tvm import ir, relax
from tvm.target import Target

from tvm_fusion import transform
from tvm_fusion.core.contract.template import TEMPLATE
from tvm_fusion.device import Device
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.program.group import Group


@dataclass(frozen=True, eq=False)
class Case:
    """A group as a plan has it."""

    gvar: ir.GlobalVar  # its Primitive function
    functions: Mapping[ir.GlobalVar, ir.BaseFunc]  # that function and the PrimFuncs that it calls
    # By position among the group's inputs: what the model passes.
    constants: Mapping[int, ir.GenericConst]
    # Positions of inputs that are known before the model's inputs are, constants included.
    weights: frozenset[int]
    calls: int  # how often the module calls it

    @cached_property
    def group(self) -> Group:
        """The group, read back from its function."""
        func = self.functions[self.gvar]
        mod = tvm.IRModule(dict(self.functions))
        group = Group(Graph(mod, func, func.body.blocks[0]).operators)
        for position, value in enumerate(group.inputs):
            value.is_parameter = position in self.weights
        return group

    @property
    def template(self) -> str:
        """Name of the template that claimed it; empty where nobody did."""
        return str(self.functions[self.gvar].attrs.get(TEMPLATE, ""))

    def key(self, device: Device) -> Key:
        """Key of its record."""
        return Key.of(self.group, self.template, device)


def grouped(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Run the pipeline until groups are decided."""
    stages = (
        transform.NormalizeImport,
        transform.Rewrite,
        transform.Legalize,
        transform.FuseOperators,
    )
    with target:
        return tvm.ir.transform.Sequential([stage() for stage in stages])(mod)


def cases(mod: tvm.IRModule) -> Iterator[Case]:
    """Cut out every Primitive function that the module's other functions call."""
    found: dict[ir.GlobalVar, Case] = {}
    for func in mod.functions.values():
        if not isinstance(func, relax.Function) or _is_group(func):
            continue
        first_weight = int(func.attrs.get("num_input", len(func.params))) if func.attrs else None
        weights = set(func.params[first_weight:]) if first_weight is not None else set()
        for call in _calls(func):
            if not _is_group(mod.functions.get(call.op)):
                continue
            if call.op in found:
                found[call.op] = replace(found[call.op], calls=found[call.op].calls + 1)
                continue
            inputs = [a for a in call.args if not isinstance(a, relax.ShapeExpr)]
            constants = {i: a for i, a in enumerate(inputs) if isinstance(a, ir.GenericConst)}
            positions = {i for i, a in enumerate(inputs) if i in constants or a in weights}
            found[call.op] = Case(
                call.op, _needed(mod, call.op), constants, frozenset(positions), 1
            )
    yield from found.values()


def _is_group(func: ir.BaseFunc | None) -> bool:
    if not isinstance(func, relax.Function) or not func.attrs:
        return False
    return bool(func.attrs.get("Primitive", False))


def _calls(func: relax.Function) -> Iterator[relax.Call]:
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar):
                yield value


def _needed(mod: tvm.IRModule, gvar: ir.GlobalVar) -> dict[ir.GlobalVar, ir.BaseFunc]:
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {gvar: mod[gvar]}
    for block in mod[gvar].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and binding.value.args:
                callee = binding.value.args[0]
                if isinstance(callee, ir.GlobalVar):
                    functions[callee] = mod[callee]
    return functions
