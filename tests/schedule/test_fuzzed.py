"""Small graphs that random testing found wrong or not compilable on CPUs."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

pytestmark = pytest.mark.slow_beyond(2)

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


@pytest.mark.slow
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


def test_a_product_whose_operands_have_symbolic_strides():
    (n,) = dims("n")
    instances = []
    for depth in (9, 33):
        x, w = normal((17, 3, depth), "float16"), normal((17, depth, 1), "float16")
        instances.append(([x, w], [x.astype("float64") @ w]))
    check(
        [tensor("x", (17, 3, n), "float16"), tensor("w", (17, n, 1), "float16")],
        lambda emit, x, w: [emit(OP.matmul(x, w))],
        *instances,
        rtol=2e-3,
        atol=1e-2,
    )


def test_a_product_over_sums_of_symbols():
    n, m = dims("n", "m")

    def body(emit, x, w):
        padded = emit(OP.nn.pad(x, [1, 1, 1, 1, 1, 1, 0, 1]))
        return [emit(OP.matmul(padded, w))]

    instances = []
    for rows, depth in ((6, 1), (4, 9)):
        x, w = normal((1, rows, 1, depth)), normal((depth + 1, 3))
        padded = np.pad(x, ((1, 1), (1, 1), (1, 1), (0, 1)))
        instances.append(([x, w], [padded @ w]))
    check([tensor("x", (1, m, 1, n)), tensor("w", (n + 1, 3))], body, *instances)


@pytest.mark.slow
def test_a_value_in_registers_beside_a_transposed_read():
    n, m = dims("n", "m")

    def body(emit, x, y):
        low = emit(OP.tanh(emit(OP.minimum(x, y))))
        total = emit(OP.sum(emit(OP.exp(x)), [1], keepdims=True))
        wide = emit(OP.broadcast_to(total, (m, 5, 3, n)))
        return [wide, low, emit(OP.atan2(low, relax.const(1.25, "float32")))]

    instances = []
    for rows, columns in ((6, 9), (3, 4)):
        x, y = normal((rows, 1, 1, columns)), normal((1, 3, 1, columns))
        wide = np.broadcast_to(np.exp(x), (rows, 5, 3, columns))
        low = np.tanh(np.minimum(x, y))
        instances.append(([x, y], [wide, low, np.arctan2(low, 1.25)]))
    check([tensor("x", (m, 1, 1, n)), tensor("y", (1, 3, 1, n))], body, *instances)


def test_integers_of_exponentials():
    x = normal(7)

    def body(emit, x):
        return [emit(OP.astype(emit(OP.subtract(x, emit(OP.exp(x)))), "int32"))]

    check([tensor("x", (7,))], body, ([x], [np.trunc(x - np.exp(x.astype("float64")))]))


def test_a_strided_grouped_convolution_of_a_map():
    x, w = normal((2, 4, 17, 9)), normal((2, 2, 1, 1))

    def body(emit, x, w):
        y = emit(OP.add(emit(OP.sigmoid(x)), relax.const(0.5, "float32")))
        return [emit(OP.nn.conv2d(y, w, strides=[1, 2], padding=[2, 1, 2, 1], groups=2))]

    y = np.pad(1 / (1 + np.exp(-x)) + 0.5, ((0, 0), (0, 0), (2, 2), (1, 1)))[..., ::2]
    right = np.einsum("ngchw,gc->nghw", y.reshape(2, 2, 2, *y.shape[2:]), w[:, :, 0, 0])
    check([tensor("x", x.shape), tensor("w", w.shape)], body, ([x, w], [right]))


@pytest.mark.parametrize("size", [16, 17])
def test_a_product_of_a_matrix_with_itself(size):
    x = normal((size, size))
    check(
        [tensor("x", x.shape)],
        lambda emit, x: [emit(OP.matmul(x, x))],
        ([x], [x.astype("float64") @ x]),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_product_of_rows_that_are_stacked_copies():
    x = normal((5, 8))

    def body(emit, x):
        rows = emit(OP.stack([x, x, x], 1))
        return [emit(OP.matmul(rows, emit(OP.permute_dims(rows, [0, 2, 1]))))]

    rows = np.stack([x] * 3, 1)
    check([tensor("x", (5, 8))], body, ([x], [rows @ rows.transpose(0, 2, 1)]))


def test_a_convolution_of_a_one_hot_tensor():
    x, w = RANDOM.integers(0, 7, (2, 5)).astype("int32"), normal((2, 5, 3))

    def body(emit, x, w):
        on, off = (relax.prim_value(tirx.const(v, "float32")) for v in (1, 0))
        return [emit(OP.nn.conv1d(emit(OP.one_hot(x, on, off, 7)), w, strides=[2]))]

    windows = np.lib.stride_tricks.sliding_window_view(np.eye(7)[x], 3, 2)[:, :, ::2]
    right = np.einsum("ncwr,fcr->nfw", windows, w)
    check([tensor("x", (2, 5), "int32"), tensor("w", w.shape)], body, ([x, w], [right]))


def test_a_tensor_without_elements():
    x, empty = normal((2, 3)), normal((0, 3))

    def body(emit, x, empty):
        return [emit(OP.exp(x)), emit(OP.exp(empty))]

    check([tensor("x", (2, 3)), tensor("e", (0, 3))], body, ([x, empty], [np.exp(x), empty]))


def test_a_convolution_of_one_element_everywhere():
    x, w = normal((3, 7, 1, 1)), normal((4, 7, 1, 1))

    def body(emit, x, w):
        full = emit(OP.full_like(x, relax.const(0.75, "float32")))
        return [emit(OP.nn.conv2d(full, w, padding=[1, 0, 0, 1]))]

    right = np.zeros((3, 4, 2, 2))
    right[..., 1, 0] = 0.75 * w[..., 0, 0].sum(1)
    check([tensor("x", x.shape), tensor("w", w.shape)], body, ([x, w], [right]))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, 16, 127])
def test_positions_of_values_that_make_no_vectors(columns):
    x = normal((5, columns))
    check(
        [tensor("x", x.shape)],
        lambda emit, x: [emit(OP.argmax(emit(OP.atan(x)), 1)), emit(OP.argmin(emit(OP.erf(x)), 1))],
        ([x], [x.argmax(1), x.argmin(1)]),
    )


def test_wrapped_borders_on_both_sides_of_several_axes():
    x, borders = normal((5, 3, 8, 6)), [(2, 0), (1, 2), (2, 2), (0, 1)]
    widths = [width for pair in borders for width in pair]
    check(
        [tensor("x", x.shape)],
        lambda emit, x: [emit(OP.nn.pad(x, widths, pad_mode="circular"))],
        ([x], [np.pad(x, borders, mode="wrap")]),
    )


def test_guarded_reads_of_shifted_rows():
    """LLVM makes one masked access of several, from the address of the first, wanted or not."""

    def body(emit, x):
        padded = emit(OP.nn.pad(x, [0, 0, 1, 0, 0, 0]))
        return [OP.subtract(padded, emit(OP.mean(x)))]

    arrays = [normal(shape) for shape in ((33, 3, 7), (4, 3, 17), (2, 3, 9))]
    instances = [
        ([x], [np.pad(x, [(0, 0), (1, 0), (0, 0)]) - x.mean(dtype="float64")]) for x in arrays
    ]
    symbolic = (tirx.Var("m", "int64"), 3, tirx.Var("n", "int64"))
    check([tensor("x", symbolic)], body, *instances)


def test_reversed_repeats():
    """TVM's simplifier takes remainders of falling lanes wrongly where divisions truncate."""

    def body(emit, x):
        return [OP.flip(emit(OP.tile(x, [3, 3])), 1)]

    x = normal((5, 17))
    right = np.tile(x, (3, 3))[:, ::-1]
    check([tensor("x", (5, 17))], body, ([x], [right]), rtol=0, atol=0)


def test_a_constant_of_a_product_that_its_rows_read_too():
    """Packed for the product, it would not be there for the rows."""
    x, w = normal((1, 3, 2, 16)), normal((8, 8))

    weight = relax.const(w)

    def body(emit, x, bias):
        rows = emit(OP.nn.avg_pool2d(x, (2, 2), (2, 2), (0, 1, 1, 0), count_include_pad=True))
        low = emit(OP.minimum(rows, weight))
        product = emit(OP.subtract(emit(OP.matmul(rows, weight)), bias))
        return [emit(OP.maximum(low, product))]

    padded = np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 0)])[..., :16]
    rows = padded.reshape(1, 3, 1, 2, 8, 2).mean((3, 5))
    right = np.maximum(np.minimum(rows, w), rows @ w - 0.25)
    params = [tensor("x", x.shape), tensor("bias", ())]
    check(params, body, ([x, np.float32(0.25)], [right]))


def test_a_sum_and_difference_that_round():
    """As models round to integers that have no operator for it."""
    x = normal((5, 17)) * 100
    large = np.float32(1.5 * 2**23)

    def body(emit, x):
        constant = relax.const(large)
        return [emit(OP.subtract(emit(OP.add(x, constant)), constant))]

    check([tensor("x", (5, 17))], body, ([x], [np.round(x)]), rtol=0, atol=0)
