"""One group under layouts of its images, as a module from laid out tensors to laid out tensors."""

import numpy as np
import tvm
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.contract.template import TEMPLATE
from tvm_fusion.device import parse
from tvm_fusion.fusion.claims import claim_book
from tvm_fusion.layout.calls import Groups
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.primitive import call_group, primitive_function
from tvm_fusion.program.variant import variant


def variant_of(mod, layout, target="cpu", only=lambda value: True):
    """Plan ``main``, which must be one group, and lay its images out; also give the claim."""
    tvm_target = parse(target).tvm_target()
    with tvm_target:
        mod = transform.FuseOperators()(transform.Legalize()(mod))
        groups = Groups(mod)
        found = [g for gvar in mod.functions if (g := groups.get(gvar)) is not None]
        assert len(found) == 1, [str(g) for g in found]
        (group,) = found
        images = [v for v in (*group.inputs, *group.outputs) if len(v.shape) == 4]
        images = [v for v in images if not v.is_parameter and int(v.shape[2]) > 1 and only(v)]
        functions = mod.clone()
        del functions["main"]
        builder = relax.BlockBuilder(functions)
        new = variant(group, {v: layout for v in images}, builder.add_func)
        claim = claim_book(tvm_target).claim(new.group)
    return mod, builder, new, claim


def laid_out_module(mod, layout, target="cpu", only=lambda value: True):
    """Write the module that calls the group; returns it with the claim and the order of inputs."""
    planned, builder, new, claim = variant_of(mod, layout, target, only)
    groups = Groups(planned)
    call = next(
        b.value
        for block in planned["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call) and groups.get(b.value.op) is not None
    )
    func = primitive_function(new.group, {TEMPLATE: claim.template.name})
    gvar = builder.add_func(func, "group")
    given = [a for a in call.args if not isinstance(a.ty, relax.ShapeType)]
    old = groups.get(call.op)
    positions = [
        next(k for k, v in enumerate(old.inputs) if v.name == new.original[own].name)
        if not own.is_constant
        else None
        for own in new.group.inputs
    ]
    constants = [a for a in given if not isinstance(a, relax.Var)]
    params, args = [], []
    for own, position in zip(new.group.inputs, positions, strict=True):
        if position is None:
            args.append(constants.pop(0))
        else:
            args.append(relax.Var(own.name, own.type))
            params.append(args[-1])
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(call_group(gvar, new.group, args))
        builder.emit_func_output(result)
    return builder.get(), claim


def compiled(mod, target="cpu"):
    """Schedule and build a module whose groups are planned."""
    tvm_target = parse(target).tvm_target()
    built = tvm.compile(mod, tvm_target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())["main"]


def pack(array, layout):
    """Lay an array out, zeros as padding."""
    if array.ndim != 4:
        return array
    if not layout.block:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    n, c, h, w = array.shape
    blocks = -(-c // layout.block)
    padded = np.zeros((n, blocks * layout.block, h, w), array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(
        padded.reshape(n, blocks, layout.block, h, w).transpose(0, 1, 3, 4, 2)
    )


__all__ = ["Layout", "compiled", "laid_out_module", "pack", "variant_of"]
