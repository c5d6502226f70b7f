"""Products side by side become batches of one: modules before and after, and what is refused."""

import numpy as np
import pytest
from test_join_matmuls import module, tensor
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording

op = relax.op
RNG = np.random.default_rng(0)
M = tirx.Var("m", "int64")
MATRICES = [RNG.standard_normal((5, 7)).astype("float32") for _ in range(3)]
ROWS = [RNG.standard_normal(7).astype("float32") for _ in MATRICES]


def pieces(emit, x, number=3, axis=-1):
    split = emit(op.split(x, number, axis=axis))
    return [emit(relax.TupleGetItem(split, i)) for i in range(number)]


def side_by_side(emit, lefts, rows=(), matrices=MATRICES, axis=-1):
    found = [emit(op.matmul(x, relax.const(w))) for x, w in zip(lefts, matrices, strict=True)]
    if rows:
        found = [emit(op.add(relax.const(r), y)) for r, y in zip(rows, found, strict=True)]
    return [op.concat(found, axis=axis)]


def batches(emit, x, shape, swapped, rows=()):
    """The same as one product; ``shape`` is that of the rows."""
    left = emit(op.permute_dims(emit(op.reshape(x, (*shape, 3, 5))), swapped))
    y = emit(op.permute_dims(emit(op.matmul(left, relax.const(np.stack(MATRICES)))), swapped))
    y = emit(op.add(y, relax.const(np.stack(rows)))) if rows else y
    return [op.reshape(y, (*shape, 21))]


def rewritten(mod):
    """The module after the pass, which has nothing left to do, and what it decided."""
    with recording() as log:
        after = transform.BatchMatmuls()(mod)
    relax.analysis.well_formed(after)  # raises
    assert transform.BatchMatmuls()(after).same_as(after)
    return after, [d.code for d in log]


def check_untouched(mod, *codes):
    after, log = rewritten(mod)
    assert after.same_as(mod)
    assert log == list(codes)


@pytest.mark.parametrize(
    ("shape", "swapped"),
    [((4,), [1, 0, 2]), ((M,), [1, 0, 2]), ((2, M), [0, 2, 1, 3])],
    ids=str,
)
@pytest.mark.parametrize("rows", [(), ROWS], ids=["plain", "rows"])
def test_products_of_pieces(shape, swapped, rows):
    def before(emit, x):
        return side_by_side(emit, pieces(emit, x), rows)

    def expected(emit, x):
        return batches(emit, x, shape, swapped, rows)

    after, log = rewritten(module(before, tensor(*shape, 15)))
    assert_structural_equal(after, module(expected, tensor(*shape, 15)))
    assert log == ["batched"]


def test_products_of_different_tensors():
    def expected(emit, *lefts):
        return batches(emit, emit(op.concat(list(lefts), axis=1)), (M,), [1, 0, 2], ROWS)

    types = [tensor(M, 5)] * 3
    after, log = rewritten(module(lambda emit, *x: side_by_side(emit, x, ROWS), *types))
    assert_structural_equal(after, module(expected, *types))
    assert log == ["batched"]


def test_pieces_in_another_order_are_different_tensors():
    after, _ = rewritten(
        module(lambda emit, x: side_by_side(emit, pieces(emit, x)[::-1]), tensor(4, 15))
    )
    names = [
        str(b.value.op.name)
        for b in after["main"].body.blocks[0].bindings
        if hasattr(b.value, "op")
    ]
    assert names[:2] == ["relax.split", "relax.concat"]


def test_half_precision_with_float32_sums():
    def body(emit, x):
        found = [
            emit(op.matmul(p, relax.const(w.astype("float16")), "float32"))
            for p, w in zip(pieces(emit, x), MATRICES, strict=True)
        ]
        return [op.concat(found, axis=-1)]

    after, _ = rewritten(module(body, tensor(M, 15, dtype="float16")))
    assert str(after["main"].ret_ty.dtype.dtype) == "float32"


def test_wide_operands_are_not_copied():
    matrices = [w.T.copy() for w in MATRICES]
    check_untouched(
        module(lambda emit, *x: side_by_side(emit, x, (), matrices), *[tensor(4, 7)] * 3),
        "wide_operands",
    )


def test_a_matrix_that_something_else_reads_stays():
    shared = relax.const(MATRICES[0])

    def body(emit, x, y):
        a, b = (emit(op.matmul(v, w)) for v, w in ((x, shared), (y, relax.const(MATRICES[1]))))
        return [op.concat([a, b], axis=1), emit(op.exp(shared))]

    check_untouched(module(body, tensor(4, 5), tensor(4, 5)), "weight_shared")


@pytest.mark.parametrize(
    "what", ["rows", "one_operand", "read_twice", "other_shapes", "half_biased"]
)
def test_what_else_is_concatenated_stays(what):
    def body(emit, x, y, z):
        lefts = [x, x, x] if what == "one_operand" else [x, y, z]
        if what == "rows":
            return side_by_side(emit, lefts, axis=0)
        matrices = list(MATRICES)
        if what == "other_shapes":
            matrices[1] = np.concatenate([MATRICES[1]] * 2, axis=1)
        found = [emit(op.matmul(v, relax.const(w))) for v, w in zip(lefts, matrices, strict=True)]
        if what == "half_biased":
            found[0] = emit(op.add(found[0], relax.const(ROWS[0])))
        result = [op.concat(found, axis=1)]
        return [*result, emit(op.exp(found[0]))] if what == "read_twice" else result

    check_untouched(module(body, *[tensor(4, 5)] * 3))
