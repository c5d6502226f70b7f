"""What rewriting learned of groups, planning knows."""

import numpy as np
import tvm
from relax_modules import main_module
from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.fusion.claims import claim_book, remembering
from tvm_fusion.layout.calls import Groups
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant


def module() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((7, 11), "float32"))

    def result(emit, *_):
        y = emit(relax.op.exp(x))
        return relax.op.nn.softmax(relax.op.add(y, x))

    return main_module([x], result)


def test_books_are_shared_inside_only_and_not_with_banned_claims():
    target = parse("cpu:x86-64-v3").tvm_target()
    with remembering() as books:
        book = claim_book(target)
        assert claim_book(target) is book
        with remembering() as inner:
            assert inner is books
        assert claim_book(target, frozenset({("rows", 0)})) is not book
        assert claim_book(target) is book
    assert claim_book(target) is not book


def test_two_plans_of_equal_modules_ask_once():
    passes = [transform.Legalize(), transform.FuseOperators()]
    with parse("cpu:x86-64-v3").tvm_target() as target, remembering():
        first = Sequential(passes)(module())
        book = claim_book(target)
        asked, questions = book.asked, book.questions
        second = Sequential([transform.Legalize(), transform.FuseOperators()])(module())
        assert asked > 0
        assert book.asked == asked
        assert book.questions == 2 * questions
    tvm.ir.assert_structural_equal(first, second)


def test_the_layout_stage_knows_the_variants_that_planning_compared():
    x = relax.Var("x", relax.TensorType((1, 32, 6, 5), "float32"))
    weight = relax.const(np.ones((48, 32, 3, 3), "float32"))

    def result(emit, *_):
        return relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weight, padding=1)))

    passes = Sequential([transform.Legalize(), transform.FuseOperators()])
    with parse("cpu:x86-64-v3").tvm_target() as target, remembering():
        mod = passes(main_module([x], result))
        book, groups = claim_book(target), Groups(mod)
        (group,) = filter(None, map(groups.get, mod.functions))
        images = [v for v in (*group.inputs, *group.outputs) if not v.is_constant]
        asked = book.asked
        book.claim(variant(group, dict.fromkeys(images, Layout(8))).group)
        assert book.asked == asked
        book.claim(variant(group, {images[0]: Layout(8)}).group)
        assert book.asked == asked + 1
