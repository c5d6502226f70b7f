"""Variants of a group under layouts share the stages of its operators."""

import numpy as np
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.layout.calls import Groups
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.stages import bind
from tvm_fusion.program.variant import variant


def one_group():
    filters = relax.const(np.zeros((48, 32, 3, 3), "float32"))
    x = relax.Var("x", relax.TensorType((1, 32, 9, 11), "float32"))
    mod = main_module(
        [x], lambda emit, x: [emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, filters))))]
    )
    with parse("cpu").tvm_target():
        mod = transform.FuseOperators()(transform.Legalize()(mod))
    groups = Groups(mod)
    (group,) = [g for gvar in mod.functions if (g := groups.get(gvar)) is not None]
    return group


def test_operators_are_bound_once(monkeypatch):
    group = one_group()
    assert group.program.stages
    bound = []
    stages_of = bind._stages_of
    monkeypatch.setattr(bind, "_stages_of", lambda op: bound.append(op.title) or stages_of(op))
    (image,) = [v for v in group.inputs if int(v.shape[0]) == 1]
    for layouts in ({image: Layout(16)}, {group.outputs[0]: Layout(16)}):
        bound.clear()
        assert variant(group, layouts).group.program.stages
        assert len(bound) == 1  # the index map alone
        assert set(bound).isdisjoint(op.title for op in group.members)


def test_a_variant_and_its_group_are_programs_of_their_own():
    group = one_group()
    (image,) = [v for v in group.inputs if int(v.shape[0]) == 1]
    new = variant(group, {image: Layout(16), group.outputs[0]: Layout(16)}).group
    before, after = group.program, new.program
    assert not set(before.outputs) & set(after.inputs + after.outputs)
    assert bind.buffer_of(image) not in after.inputs
    assert bind.buffer_of(image) in before.inputs
    assert [len(s.reduce) for s in after.stages if not s.is_map] == [3]
