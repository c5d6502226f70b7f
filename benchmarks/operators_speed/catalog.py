"""The operators, each at one of the sizes.

Left out are operators of sequences, strings, control flow, random numbers and training, what only
describes shapes, and what has results of data-dependent shapes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from .case import SIZES, Case


def network(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    """List the cases over images and sequences of about ``m * n`` elements.

    Parameters
    ----------
    rng
        For inputs and weights.
    m, n
        The size, as a matrix.
    """

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, "float32")

    side = {1024: 8, 1 << 16: 32, 1 << 20: 64}[m * n]
    c = m * n // side // side
    image = floats(1, c, side, side)
    wide, square = min(c, 64), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    narrow = floats(1, wide, side, side)
    yield Case("Conv 3x3", "Conv", [narrow], square, [floats(wide, wide, 3, 3)])
    yield Case("Conv 1x1", "Conv", [narrow], {}, [floats(wide, wide, 1, 1)])
    depthwise = {**square, "group": c}
    yield Case("Conv, depthwise", "Conv", [image], depthwise, [floats(c, 1, 3, 3)])
    yield Case("Conv of one axis", "Conv", [narrow[0]], {}, [floats(wide, side, 3)])
    twice: dict[str, Any] = {"strides": [2, 2]}
    small = floats(1, wide // 2, side // 2, side // 2)
    up = [floats(wide // 2, wide // 2, 2, 2)]
    yield Case("ConvTranspose", "ConvTranspose", [small], twice, up)
    for name in ("MaxPool", "AveragePool"):
        yield Case(f"{name} 3x3", name, [image], square)
        yield Case(f"{name} 2x2", name, [image], {"kernel_shape": [2, 2], **twice})
    yield Case("LpPool", "LpPool", [image], {"kernel_shape": [2, 2], **twice})
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        yield Case(name, name, [image])
    scale, bias = np.abs(floats(c)) + 0.5, floats(c)
    statistics = [floats(c), np.abs(floats(c)) + 0.5]
    yield Case("BatchNormalization", "BatchNormalization", [image], {}, [scale, bias, *statistics])
    yield Case("InstanceNormalization", "InstanceNormalization", [image], {}, [scale, bias])
    yield Case("LRN", "LRN", [image], {"size": 5})
    yield Case("DepthToSpace", "DepthToSpace", [image], {"blocksize": 2})
    yield Case("SpaceToDepth", "SpaceToDepth", [image], {"blocksize": 2})
    scales = np.array([1, 1, 2, 2], "float32")
    quarter = image[:, : c // 4].copy()
    for mode in ("nearest", "linear"):
        yield Case(f"Resize, {mode}", "Resize", [quarter], {"mode": mode}, [None, scales])
    grid = np.clip(floats(1, side, side, 2) / 2, -1, 1)
    yield Case("GridSample", "GridSample", [image, grid])
    hidden, steps = (16, 4) if m * n == 1024 else (64, 16) if m * n == 1 << 16 else (256, 32)
    sequence = floats(steps, 4, hidden)
    for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [floats(1, gates * hidden, hidden) / hidden for _ in range(2)]
        yield Case(name, name, [sequence], {"hidden_size": hidden}, weights)
    width = {16: 64, 64: 256, 256: 512}[hidden]
    weights = [floats(1, 4 * width, width) / width for _ in range(2)]
    for rows in (1, 32):
        sequence = floats(128, rows, width)
        name = f"LSTM, 128 steps of {rows}"
        yield Case(name, "LSTM", [sequence], {"hidden_size": width}, weights)


POSITIVE = ("Log", "Sqrt", "Reciprocal")
UNIT = ("Acos", "Asin", "Atanh")
UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Max",
    "Min",
    "Mean",
    "Sum",
    "PRelu",
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


def catalog(size: str) -> list[Case]:
    """List the cases of a size, each with fresh random inputs of a fixed seed."""
    rng = np.random.default_rng(2026)
    rows, columns = SIZES[size]
    cases = [*_elementwise(rng, rows, columns), *_rows(rng, rows, columns)]
    cases += [*_moves(rng, rows, columns), *_products(rng, rows, columns)]
    return [*cases, *network(rng, rows, columns)]


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw from a normal distribution."""
    return rng.standard_normal(shape, "float32")


def _elementwise(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    x, y = floats(rng, m, n), floats(rng, m, n)
    for name in UNARY:
        values = x
        if name in POSITIVE:
            values = np.abs(x) + 0.1
        if name in UNIT:
            values = np.clip(x / 4, -0.9, 0.9)
        if name == "Acosh":
            values = np.abs(x) + 1.1
        yield Case(name, name, [values.astype("float32")])
    for name in BINARY:
        left = np.abs(x) + 0.1 if name == "Pow" else x
        yield Case(name, name, [left, y])
    yield Case("Add of a row", "Add", [x, y[0]])
    yield Case("Add of a column", "Add", [x, y[:, :1].copy()])
    yield Case("Mul of int64", "Mul", [(9 * x).astype("int64"), (9 * y).astype("int64")])
    yield Case("Mod, fmod", "Mod", [9 * x, y], {"fmod": 1})
    whole = [(99 * x).astype("int32"), np.abs(9 * y).astype("int32") + 1]
    yield Case("Mod of int32", "Mod", whole)
    yield Case("Div of int32", "Div", whole)
    flags = [x > 0, y > 0]
    for name in ("And", "Or", "Xor"):
        yield Case(name, name, flags)
    yield Case("Not", "Not", flags[:1])
    yield Case("Where", "Where", [x > 0, x, y])
    bits = [np.abs(99 * x).astype("uint32"), np.abs(3 * y).astype("uint32")]
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield Case(name, name, bits)
    yield Case("BitwiseNot", "BitwiseNot", bits[:1])
    yield Case("BitShift", "BitShift", bits, {"direction": "LEFT"})
    yield Case("Clip", "Clip", [x], constants=[np.float32(-1), np.float32(1)])
    for kind in ("FLOAT16", "INT32", "INT64", "DOUBLE", "BOOL", "UINT8"):
        yield Case(
            f"Cast to {kind.lower()}", "Cast", [np.abs(x)], {"to": getattr(TensorProto, kind)}
        )
    yield Case("Cast from int64", "Cast", [(9 * x).astype("int64")], {"to": TensorProto.FLOAT})
    scale, zero = np.float32(0.02), np.array(3, "uint8")
    yield Case("QuantizeLinear", "QuantizeLinear", [x], constants=[scale, zero])
    q = np.clip(30 * x + 128, 0, 255).astype("uint8")
    yield Case("DequantizeLinear", "DequantizeLinear", [q], constants=[scale, zero])
    yield Case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [x], outputs=3)


def _rows(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    x = floats(rng, m, n)
    for axis, name in ((0, "first"), (1, "last")):
        axes = np.array([axis], "int64")
        for kind in REDUCTIONS:
            values = np.abs(x) + 0.5 if kind in ("LogSum", "Prod") else x
            values = values if kind != "Prod" else 1 + 0.01 * x
            yield Case(f"Reduce{kind}, {name} axis", f"Reduce{kind}", [values], {}, [axes])
        for kind in ("ArgMax", "ArgMin"):
            yield Case(f"{kind}, {name} axis", kind, [x], {"axis": axis})
        yield Case(f"CumSum, {name} axis", "CumSum", [x], {}, [np.array(axis, "int64")])
        yield Case(f"Softmax, {name} axis", "Softmax", [x], {"axis": axis})
        k = np.array([5], "int64")
        yield Case(f"TopK, {name} axis", "TopK", [x], {"axis": axis}, [k], 2)
    every = np.array([0, 1], "int64")
    yield Case("ReduceSum of all", "ReduceSum", [x], {}, [every])
    yield Case("ReduceMax of all", "ReduceMax", [x], {}, [every])
    cube = floats(rng, 4, m // 4, n)
    yield Case("CumSum, middle axis", "CumSum", [cube], {}, [np.array(1, "int64")])
    weights = [floats(rng, n), floats(rng, n)]
    yield Case("LayerNormalization", "LayerNormalization", [x], {"axis": -1}, weights)


def _moves(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    x = floats(rng, m, n)
    cube = x.reshape(4, m // 4, n)
    yield Case("Transpose", "Transpose", [x], {"perm": [1, 0]})
    yield Case("Transpose of rows", "Transpose", [cube], {"perm": [1, 0, 2]})
    yield Case("Concat, first axis", "Concat", [x, x + 1], {"axis": 0})
    yield Case("Concat, last axis", "Concat", [x, x + 1], {"axis": 1})
    yield Case("Split", "Split", [x], {"axis": 1, "num_outputs": 2}, [], 2)
    ints = [np.array(v, "int64") for v in ([1, 3], [m, n], [0, 1])]
    yield Case("Slice", "Slice", [x], {}, ints)
    yield Case("Slice with steps", "Slice", [x], {}, [*ints, np.array([1, 2], "int64")])
    pads = np.array([1, 2, 1, 2], "int64")
    for mode in ("constant", "edge", "reflect"):
        yield Case(f"Pad, {mode}", "Pad", [x], {"mode": mode}, [pads])
    yield Case("Tile", "Tile", [x[: m // 2]], {}, [np.array([2, 2], "int64")])
    yield Case("Expand", "Expand", [x[:1]], {}, [np.array([m, n], "int64")])
    yield Case("Trilu", "Trilu", [x])
    yield Case("EyeLike", "EyeLike", [x])
    rows, places = rng.integers(0, m, m), rng.integers(0, n, n)
    yield Case("Gather of rows", "Gather", [x, rows], {"axis": 0})
    yield Case("Gather of columns", "Gather", [x, places], {"axis": 1})
    where = rng.integers(0, m, (m, n))
    yield Case("GatherElements, first axis", "GatherElements", [x, where], {"axis": 0})
    where = rng.integers(0, n, (m, n))
    yield Case("GatherElements, last axis", "GatherElements", [x, where], {"axis": 1})
    yield Case("GatherND of rows", "GatherND", [x, rows[:, None]])
    pairs = np.stack([rng.integers(0, m, m), rng.integers(0, n, m)], 1)
    yield Case("GatherND of elements", "GatherND", [x, pairs])
    chosen = rng.permutation(m)[: m // 2]
    yield Case("ScatterND of rows", "ScatterND", [x, chosen[:, None], x[: m // 2] + 1])
    yield Case("ScatterND of elements", "ScatterND", [x, pairs[:1], x[0, :1]])
    columns = np.argsort(rng.random((m, n)), 1)
    yield Case("ScatterElements", "ScatterElements", [x, columns, x + 1], {"axis": 1})
    lengths = rng.integers(1, n + 1, m)
    turned = {"batch_axis": 0, "time_axis": 1}
    yield Case("ReverseSequence", "ReverseSequence", [x, lengths], turned)
    depth, values = np.array(64, "int64"), np.array([0, 1], "float32")
    yield Case("OneHot", "OneHot", [rng.integers(0, 64, m * n // 64)], {}, [depth, values])


def _products(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    k = min(m, 256)
    a, b = floats(rng, m, k), floats(rng, k, k)
    yield Case("MatMul", "MatMul", [a, b])
    yield Case("MatMul by a weight", "MatMul", [a], {}, [b])
    heads = [floats(rng, 8, k // 2, 32), floats(rng, 8, 32, k // 2)]
    yield Case("MatMul of batches", "MatMul", heads)
    yield Case("MatMul by a vector", "MatMul", [a, b[0]])
    yield Case("Gemm, transposed", "Gemm", [a], {"transB": 1}, [b, b[0]])
    bytes_: list[Any] = [np.clip(20 * v + 128, 0, 255).astype("uint8") for v in (a, b)]
    yield Case("MatMulInteger", "MatMulInteger", bytes_)
    for equation, operands in {
        "ij,jk->ik": [a, b],
        "bij,bjk->bik": heads,
        "bij,bkj->bik": [heads[0], heads[0]],
        "ij,j->i": [a, b[0]],
        "ij,ij->i": [a, a],
        "i,j->ij": [a[:, 0].copy(), b[0]],
        "bij->bji": heads[:1],
        "ii->i": [b],
        "ij->j": [a],
        "bhid,bhjd->bhij": [heads[0][None], heads[0][None]],
    }.items():
        yield Case(f"Einsum {equation}", "Einsum", operands, {"equation": equation})
