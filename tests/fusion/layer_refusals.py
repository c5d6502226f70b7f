"""Pairs of layers that one kernel does not take, and why."""

from group_kernels import tensor
from layer_graphs import layers
from refusal_case import Case
from tvm import relax, tirx

from tvm_fusion.schedule.contraction.back_to_back.template import BackToBackGemm

op = relax.op
MANY = 65536  # rows that pay
SQUARE = layers(MANY, 64, 64, 64)[0]


def hidden_stored(emit, x, w, b, v, c):
    hidden = emit(op.nn.relu(emit(op.add(emit(op.matmul(x, w)), b))))
    return [hidden, op.add(emit(op.matmul(hidden, v)), c)]


def hidden_reshaped(emit, x, w, _, v, c):
    """Rows of the second product are halves of the first one's."""
    hidden = emit(op.reshape(emit(op.matmul(x, w)), (2 * MANY, 64)))
    return op.add(emit(op.matmul(hidden, v)), c)


def both_operands(emit, x, w, *_):
    first = emit(op.matmul(x, w))
    return op.matmul(emit(op.permute_dims(first)), first)


def columns_added(emit, x, w, _, v, __):
    """The hidden columns are sums of two of the first product's."""
    left, right = (emit(x) for x in op.split(emit(op.matmul(x, w)), 2, -1))
    return op.matmul(emit(op.add(left, right)), v)


def bias_looked_up(emit, x, w, b, i, v):
    """The bias of a column is wherever an index says."""
    bias = emit(op.take(b, i, 0, mode="fast"))
    return op.matmul(emit(op.add(emit(op.matmul(x, w)), bias)), v)


def hidden_cast(emit, x, w, v):
    """The first product is of float32."""
    return op.matmul(emit(op.astype(emit(op.matmul(x, w)), "float16")), v)


LAYERS = [
    (
        "two_kernels_are_faster",
        layers(3136, 96, 384, 96, activation="gelu"),
        "49 tiles of 64 rows, and 196608 bytes of weights",
    ),
    (
        "too_much_shared_memory",
        layers(4096, 512, 256, 128),
        "do not fit together into the shared memory",
    ),
    ("too_wide", layers(4096, 768, 3072, 768), "has 768 columns; registers hold 256"),
    ("unaligned_rows", layers(MANY, 67, 64, 64), "a multiple of 16 bytes, as TMA needs"),
    ("symbolic_rows", layers(tirx.Var("rows", "int64"), 64, 64, 64), "number of rows of matmul"),
    ("hidden_is_read", (SQUARE, hidden_stored), "has readers other than matmul"),
    (
        "hidden_in_another_order",
        ([*layers(MANY, 64, 128)[0], *layers(2 * MANY, 64, 64)[0][1:]], hidden_reshaped),
        "Rows of the operand of matmul are not those",
    ),
    (
        "guarded_loads",
        ([*SQUARE[:3], tensor("i", 64, dtype="int32"), SQUARE[3]], bias_looked_up),
        "indices that are loaded themselves",
    ),
    ("not_mine", layers(MANY, 64, 64, 64, dtype="float32"), "in a half type"),
    ("not_mine", (SQUARE, both_operands), "Not exactly one operand of matmul"),
    (
        "epilogue_elsewhere",
        ([*layers(MANY, 64, 128)[0], *layers(MANY, 64, 64)[0][1:]], columns_added),
        "several of its columns",
    ),
    (
        "batched",
        (
            [tensor(name, 4, 4096, 64, dtype="float16") for name in "xy"][:1]
            + [tensor(name, 4, 64, 64, dtype="float16") for name in "wv"],
            lambda emit, x, w, v: op.matmul(emit(op.matmul(x, w)), v),
        ),
        "one weight each",
    ),
    ("no_gemm", layers(MANY, 8, 64, 64), "are not two GEMMs of half types"),
    (
        "no_gemm",
        ([tensor("x", MANY, 64), tensor("w", 64, 64), SQUARE[3]], hidden_cast),
        "are not two GEMMs of half types",
    ),
]
LAYER_CASES = [
    Case(code, BackToBackGemm(), *case[:2], (says,), True) for code, case, says in LAYERS
]
