"""What rewriting learned of groups, planning knows."""

from __future__ import annotations

import tvm
from relax_modules import main_module
from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.fusion.claims import claim_book, remembering


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
