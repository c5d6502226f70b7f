"""Small graphs that random testing found wrong or not compilable on CPUs."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.fusion.decisions import recording

OP = relax.op
RANDOM = np.random.default_rng(7)


def normal(shape, dtype="float32"):
    return RANDOM.normal(size=shape).astype(dtype)


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def check(params, body, *instances, rtol=1e-5, atol=1e-6):
    """Compile ``body(emit, *params)``; instances are inputs and what to expect."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(r) for r in body(builder.emit, *params)]
        builder.emit_func_output(results)
    target = parse("cpu").tvm_target()
    with recording() as decisions:
        executable = tvm.compile(
            builder.get(), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
        )
    assert "claim_broken" not in {d.code for d in decisions}
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for inputs, expected in instances:
        found = machine["main"](*(tvm.runtime.tensor(x) for x in inputs))
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), right, rtol=rtol, atol=atol)


def dims(*names):
    return tuple(tirx.Var(name, "int64") for name in names)


def scattered(x, part, axis):
    x = x.copy()
    np.moveaxis(x, axis, 0)[: part.shape[axis]] = np.moveaxis(part, axis, 0)
    return x


def test_a_vector_of_positions_is_compared_twice():
    x, part = normal((17, 1)), normal((3, 1))
    start, end, step = (relax.prim_value(i) for i in (0, 3, 1))

    def body(emit, x, part):
        whole = emit(OP.slice_scatter(x, part, start, end, step, 0))
        return [emit(OP.multiply(whole, whole))]

    right = scattered(x, part, 0) ** 2
    check([tensor("x", (17, 1)), tensor("p", (3, 1))], body, ([x, part], [right]))


def test_scattered_rows_under_conditions_on_them():
    x, part, other = normal((5, 5)), normal((5, 3)), normal((5, 5))
    chosen = RANDOM.integers(0, 2, (5, 5)).astype("bool")
    start, end, step = (relax.prim_value(i) for i in (0, 3, 1))

    def body(emit, x, part, chosen, other):
        whole = emit(OP.slice_scatter(x, part, start, end, step, 1))
        low = emit(OP.less(whole, relax.const(0.0, "float32")))
        return [emit(OP.where(low, emit(OP.where(chosen, whole, other)), other))]

    whole = scattered(x, part, 1)
    right = np.where(whole < 0, np.where(chosen, whole, other), other)
    params = [tensor("x", (5, 5)), tensor("p", (5, 3))]
    params += [tensor("c", (5, 5), "bool"), tensor("o", (5, 5))]
    check(params, body, ([x, part, chosen, other], [right]))


@pytest.mark.parametrize("columns", [5, 16, 19])
def test_truth_values_in_registers(columns):
    a, b, start = normal(columns), normal(columns), normal(())

    def body(emit, a, b, start):
        truth = emit(OP.less_equal(a, b))
        return [emit(OP.subtract(start, emit(OP.mean(emit(OP.astype(truth, "float32")))))), truth]

    params = [tensor("a", (columns,)), tensor("b", (columns,)), tensor("s", ())]
    check(params, body, ([a, b, start], [start - (a <= b).mean(), a <= b]))


@pytest.mark.parametrize("shift", [0, 7])
def test_truth_values_of_half_numbers_choose_inside_an_argmax(shift):
    x, constant = normal((16, 1, 8, 1), "float16"), normal((1, 7, 8, 1), "float16")
    constant += np.float16(shift)

    def body(emit, x):
        mixed = emit(OP.where(emit(OP.isnan(x)), x, relax.const(constant)))
        return [emit(OP.argmax(mixed, 1))]

    right = np.broadcast_to(constant, (16, 7, 8, 1)).argmax(1)
    check([tensor("x", x.shape, "float16")], body, ([x], [right]))


def test_a_transpose_whose_rows_have_symbolic_length():
    (n,) = dims("n")
    inputs = [normal((3, length, 32), "float16") for length in (3, 17)]
    check(
        [tensor("x", (3, n, 32), "float16")],
        lambda emit, x: [emit(OP.permute_dims(x, [0, 2, 1]))],
        *(([x], [x.transpose(0, 2, 1)]) for x in inputs),
    )


def test_a_flip_of_merged_symbolic_axes():
    n, m = dims("n", "m")

    def body(emit, x):
        parts = emit(OP.split(x, [3], 2))
        merged = emit(OP.reshape(emit(parts[1]), (1, 4 * n, m)))
        return [emit(OP.flip(merged, 1))]

    inputs = [normal((1, a, 7, b)) for a, b in ((2, 9), (17, 4))]
    right = [x[:, :, 3:].reshape(1, -1, x.shape[3])[:, ::-1] for x in inputs]
    check(
        [tensor("x", (1, n, 7, m))],
        body,
        *(([x], [y]) for x, y in zip(inputs, right, strict=True)),
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_log_add_exp_of_large_numbers(dtype):
    inf = np.inf
    a = np.array([153, -150, 3, 3, -inf, -inf, inf, inf, 90, 0, np.nan], dtype)
    b = np.array([[100, -151, 3, -4, -inf, 2, inf, -inf, 90, -20, 1]], dtype).repeat(3, 0)
    with np.errstate(invalid="ignore"):
        right = np.logaddexp(a.astype("float64"), b.astype("float64"))
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    check(
        [tensor("a", (11,), dtype), tensor("b", (3, 11), dtype)],
        lambda emit, a, b: [emit(OP.log_add_exp(a, b))],
        ([a, b], [right]),
        rtol=tolerance,
    )


def test_a_padded_result_beside_reductions_of_it():
    n, m = dims("n", "m")
    weight = normal((16, 3), "float16")

    def body(emit, x, w):
        y = emit(OP.linear(x, w))
        y = emit(OP.add(y, y))
        y = emit(OP.tanh(emit(OP.sin(emit(OP.multiply(y, relax.const(0.125, "float16")))))))
        quarter = emit(OP.multiply(y, relax.const(0.25, "float16")))
        z = emit(OP.add(quarter, relax.const(1.0, "float16")))
        low = emit(OP.min(emit(OP.matmul(quarter, relax.const(weight))), None, keepdims=True))
        padded = emit(OP.nn.pad(z, [1, 0, 2, 0], "constant", 1.5))
        return [padded, emit(OP.prod(z, [-2])), low, emit(OP.abs(y))]

    instances = []
    for rows, depth in ((9, 6), (2, 33)):
        x, w = normal((rows, depth), "float16"), normal((16, depth), "float16")
        y = np.tanh(np.sin((x.astype("float64") @ w.T.astype("float64")) / 4))
        z = y / 4 + 1
        padded = np.pad(z, ((1, 0), (2, 0)), constant_values=1.5)
        low = (y / 4 @ weight.astype("float64")).min(keepdims=True)
        instances.append(([x, w], [padded, z.prod(0), low, abs(y)]))
    params = [tensor("x", (n, m), "float16"), tensor("w", (16, m), "float16")]
    check(params, body, *instances, rtol=2e-2, atol=1e-2)
