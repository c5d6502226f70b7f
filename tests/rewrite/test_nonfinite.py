"""NaN and infinities that a model tells from numbers: what becomes of them, and what laws keep."""

import operator

import numpy as np
import pytest
import tvm
from relax_modules import typed_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.constants.evaluate import ELEMENTWISE, evaluate_exactly
from tvm_fusion.device import parse
from tvm_fusion.rewrite.laws import LAWS, allowed
from tvm_fusion.rewrite.nonfinite import (
    ALL,
    INFINITE,
    KINDS,
    MINUS,
    NAN,
    NONE,
    NUMBER,
    PLUS,
    ZERO,
    becomes,
)
from tvm_fusion.rewrite.readers import Readers

op = relax.op
TARGET = parse("cpu:x86-64-v3").tvm_target()
INF, NOT = np.inf, np.nan
KIND_OF = dict(zip(KINDS, (NOT, INF, -INF), strict=True))
LARGE = 3.4e38
GRID = np.asarray([0.0, -0.0, 0.5, -0.5, 1, -1, 2, -3, LARGE, -LARGE, 1e-38, INF, -INF, NOT])
X = relax.TensorType((5, 7), "float32")


def kinds_in(x):
    found = NONE
    for kind, there in (
        (NAN, np.isnan(x)),
        (PLUS, x == INF),
        (MINUS, x == -INF),
        (NUMBER, np.isfinite(x)),
    ):
        if there.any():
            found |= kind
    return found


def elementwise():
    made = {name: getattr(op, name, None) for name in ELEMENTWISE if name != "nn.relu"}
    made |= {"nn.relu": op.nn.relu, "astype": lambda x: op.astype(x, "float16")}
    made |= {"clip": lambda x: op.clip(x, -1, 1)}
    skipped = ("bitwise", "logical", "shift", "where")
    return [(n, f) for n, f in made.items() if f is not None and not any(s in n for s in skipped)]


@pytest.mark.parametrize(("name", "make"), elementwise(), ids=[n for n, _ in elementwise()])
def test_what_elementwise_operators_make(name, make):
    """Every value that numpy gives, with any other operand, is foreseen."""
    ty = relax.TensorType(GRID.shape, "float32")
    try:
        call, count = make(relax.Var("x", ty)), 1
    except TypeError:
        call, count = make(relax.Var("x", ty), relax.Var("y", ty)), 2
    call = relax.BlockBuilder().normalize(call)
    for index in range(count):
        for kind, foreseen in zip(KINDS, becomes(call, index), strict=True):
            given = [GRID] * count
            given[index] = np.full(GRID.shape, KIND_OF[kind])
            numbers = [a.value for a in call.args[count:]]
            found = evaluate_exactly(call, [*given, *numbers])
            assert not kinds_in(np.asarray(found, "float64")) & ~foreseen


REDUCTIONS = {
    "sum": (op.sum, np.sum),
    "mean": (op.mean, np.mean),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
    "prod": (op.prod, np.prod),
    "variance": (op.variance, np.var),
    "std": (op.std, np.std),
    "softmax": (lambda x, axis: op.nn.softmax(x), None),
    "log_softmax": (lambda x, axis: op.nn.log_softmax(x), None),
}


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_reductions_make(name):
    make, compute = REDUCTIONS[name]
    compute = compute or (softmax if name == "softmax" else lambda x, a: np.log(softmax(x, a)))
    call = make(relax.Var("x", X), 1)
    others = np.stack(np.meshgrid(GRID, GRID), -1).reshape(-1, 2)
    for kind, foreseen in zip(KINDS, becomes(call, 0), strict=True):
        with np.errstate(all="ignore"):
            rows = np.concatenate([np.full((len(others), 1), KIND_OF[kind]), others], 1)
            found = compute(rows, 1)
        assert not kinds_in(found) & ~foreseen


def told(body):
    """What is told of the only input, by the only output."""
    mod = typed_module(body, X)
    func = mod["main"]
    return Readers(mod).of("main", func).get(hash(func.params[0]), NONE)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda emit, x: op.add(x, x), NONE),
        (lambda emit, x: op.isnan(x), ALL),
        (lambda emit, x: op.astype(x, "int32"), ALL),
        (lambda emit, x: op.less(x, relax.const(1.0)), ALL),
        (lambda emit, x: op.argmax(x, 1), ALL),
        (lambda emit, x: op.tanh(emit(op.negative(x))), INFINITE),
        (lambda emit, x: op.exp(emit(op.negative(x))), PLUS),
        (lambda emit, x: op.nn.relu(x), MINUS),
        (lambda emit, x: op.nn.softmax(x), MINUS),
        (lambda emit, x: op.divide(relax.const(1.0), x), INFINITE | ZERO),
        (lambda emit, x: op.power(x, relax.const(2.0)), NONE),
        (lambda emit, x: op.power(x, relax.const(0.0)), ALL | ZERO),
        (lambda emit, x: op.rsqrt(emit(op.negative(x))), MINUS | ZERO),
        (lambda emit, x: op.divide(x, emit(op.abs(x))), INFINITE),
        (lambda emit, x: op.divide(x, emit(op.add(x, relax.const(1.0)))), INFINITE),
        (lambda emit, x: op.divide(x, emit(op.add(x, x))), INFINITE | ZERO),
        (lambda emit, x: op.where(relax.const(True), x, x), NONE),
        (lambda emit, x: emit(op.split(x, [2], 1))[0], NONE),
        (lambda emit, x: op.isinf(emit(emit(op.split(x, [2], 1))[0])), ALL),
        (lambda emit, x: op.nn.layer_norm(x, relax.const(np.ones(7, "float32")),
                                          relax.const(np.ones(7, "float32")), [1]), NONE),
    ],
)  # fmt: skip
def test_what_readers_tell(body, expected):
    assert told(body) == expected


def test_results_of_functions_that_are_called_are_asked_about():
    mod = typed_module(lambda emit, x: op.add(x, x), X)
    caller = relax.BlockBuilder(mod)
    x = relax.Var("x", X)
    with caller.function("caller", [x]):
        caller.emit_func_output(caller.emit(relax.Call(mod.get_global_var("main"), [x])))
    whole = caller.get()
    func = whole["main"]
    assert Readers(whole).of("main", func)[hash(func.params[0])] == ALL | ZERO


ASKED = {
    "x - x, of a comparison": lambda x: op.less(op.subtract(x, x), relax.const(1.0)),
    "x * 0 == 0": lambda x: op.equal(op.multiply(x, relax.const(0.0)), relax.const(0.0)),
    "isnan(x / x)": lambda x: op.isnan(op.divide(x, x)),
    "tanh(x * 2e38 / 2e38)": lambda x: op.tanh(
        op.divide(op.multiply(x, relax.const(2e38)), relax.const(2e38))
    ),
    "1 / log(exp(x))": lambda x: op.divide(relax.const(1.0), op.log(op.exp(x))),
    "isnan(exp(log(x)))": lambda x: op.isnan(op.exp(op.log(x))),
    "relu(x + x - x)": lambda x: op.nn.relu(op.subtract(op.add(x, x), x)),
    "rsqrt(-(x - 1))": lambda x: op.rsqrt(op.negative(op.subtract(x, relax.const(1.0)))),
    "1 / (x + 0)": lambda x: op.divide(relax.const(1.0), op.add(x, relax.const(0.0))),
    "x + x * 0 == x": lambda x: op.equal(op.add(x, op.multiply(x, relax.const(0.0))), x),
}


@pytest.mark.parametrize("search", ["search", "greedy"])
@pytest.mark.parametrize("name", ASKED)
def test_laws_keep_what_is_asked_about(name, search):
    mod = typed_module(lambda emit, x: ASKED[name](x), X)
    with TARGET:
        after = transform.Rewrite(search)(mod)
        same = transform.Rewrite("none")(mod)
    tvm.ir.assert_structural_equal(operators(after), operators(same))


def operators(mod):
    (block,) = mod["main"].body.blocks
    return [str(binding.value.op.name) for binding in block.bindings]


def test_a_flag_takes_what_is_asked_about():
    mod = typed_module(lambda emit, x: op.isnan(op.divide(x, x)), X)
    with TARGET:
        after = transform.Rewrite(allow=["reassociate"])(mod)
    assert "divide" not in after.script()


GRAPHS = 40

# Property ----------------------------------------------------------------------------------------

UNARY = {
    **{n: (getattr(op, n), getattr(np, n)) for n in ("exp", "log", "sqrt", "tanh", "negative")},
    "square": (op.square, np.square),
    "abs": (op.abs, np.abs),
    "relu": (op.nn.relu, lambda x: np.maximum(x, np.float32(0))),
    "half": (lambda x: op.multiply(x, relax.const(0.5)), lambda x: x * np.float32(0.5)),
    "huge": (lambda x: op.multiply(x, relax.const(1e38)), lambda x: x * np.float32(1e38)),
    "tiny": (lambda x: op.divide(x, relax.const(1e38)), lambda x: x / np.float32(1e38)),
    "more": (lambda x: op.add(x, relax.const(1.0)), lambda x: x + np.float32(1)),
    "inverse": (lambda x: op.divide(relax.const(1.0), x), lambda x: np.float32(1) / x),
}
BINARY = {
    **{n: (getattr(op, n), getattr(np, n)) for n in ("maximum", "minimum")},
    "add": (op.add, operator.add),
    "subtract": (op.subtract, operator.sub),
    "multiply": (op.multiply, operator.mul),
    "divide": (op.divide, operator.truediv),
}
LAST = {
    "nan": (lambda x: op.where(op.isnan(x), relax.const(7.0), x),
            lambda x: np.where(np.isnan(x), np.float32(7), x)),
    "inf": (lambda x: op.astype(op.isinf(x), "float32"), lambda x: np.isinf(x).astype("float32")),
    "tanh": (op.tanh, np.tanh),
    "inverse": UNARY["inverse"],
    "none": (lambda x: x, lambda x: x),
}  # fmt: skip
VALUES = np.asarray(
    [0, 1, -1, 0.5, 2, 3, -3, 11, 88, -88, 89, 100, -104, 1e19, -3e19, 1e38, INF, -INF, NOT], "f4"
)


def drawn(rng):
    """A graph as a function of two variables, in Relax and in numpy, operator by operator."""
    steps, count = [], 2
    for _ in range(int(rng.integers(3, 7))):
        if rng.random() < 0.5:
            steps.append((UNARY[rng.choice(list(UNARY))], [int(rng.integers(count))]))
        else:
            places = [int(rng.integers(count)), count - 1]
            steps.append((BINARY[rng.choice(list(BINARY))], places))
        count += 1
    steps.append((LAST[rng.choice(list(LAST))], [count - 1]))

    def run(which, given, emit=lambda x: x):
        values = list(given)
        for functions, places in steps:
            values.append(emit(functions[which](*(values[p] for p in places))))
        return values

    return run


@pytest.mark.slow
def test_drawn_graphs_are_right_wherever_they_are_finite():
    """By numpy in float32, rewritten and as it is; where rounding does not decide."""
    rng = np.random.default_rng()
    a, b = (v.reshape(-1) for v in np.meshgrid(VALUES, VALUES))
    ty = relax.TensorType(a.shape, "float32")
    compared = 0

    def rounded(x):
        return x * (1 + rng.uniform(-2e-7, 2e-7, x.shape)).astype("f4")

    for _ in range(GRAPHS):
        run = drawn(rng)
        mod = typed_module(lambda emit, x, y, run=run: run(0, [x, y], emit)[-1], ty, ty)
        with TARGET:
            after = transform.Rewrite()(mod)
        with np.errstate(all="ignore"):
            expected = run(1, [a, b])[-1].astype("float64")
            # Results that rest on rounding, or on the sign of a zero, are left out.
            zeros = (lambda x: x + 0.0, lambda x: np.where(x == 0, np.float32(-0.0), x))
            moved = [run(1, [a, b], how) for how in (*[rounded] * 4, *zeros)]
            spread = np.max([np.abs(m[-1] - expected) for m in moved], 0)
        found = by_numpy(after, [a, b])
        with np.errstate(all="ignore"):
            sure = np.isfinite(expected) & (spread <= 1e-3 * (1 + np.abs(expected)))
            wrong = sure & ~(np.abs(found - expected) <= 4e-3 * (1 + np.abs(expected)))
        i = int(np.argmax(wrong))
        assert not wrong.any(), f"{a[i]}, {b[i]}: {expected[i]} became {found[i]}\n{mod}\n{after}"
        compared += int(sure.sum())
    assert compared > GRAPHS * len(a) // 10


def by_numpy(mod, arrays):
    """Evaluate a function operator by operator; each result is rounded to its dtype."""
    func = mod["main"]
    known = dict(zip(map(hash, func.params), arrays, strict=True))

    def value(arg):
        if isinstance(arg, relax.Var):
            return known[hash(arg)]
        if isinstance(arg, tvm.ir.GenericConst):
            return arg.value.numpy()
        if isinstance(arg, relax.ShapeExpr):
            return [int(v) for v in arg.values]
        return arg.value

    for block in func.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call):
                result = evaluate_exactly(call, [value(arg) for arg in call.args])
                assert result is not None, call
                with np.errstate(all="ignore"):
                    known[hash(binding.var)] = result.astype(str(call.ty.dtype.dtype))
            else:
                known[hash(binding.var)] = value(call)
    return value(func.body.body).astype("float64")


def test_laws_that_change_nothing_are_most():
    assert len(allowed()) > len(LAWS) / 2
