import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion.frontend.normalize import FoldBatchNorm, FoldConstants

EPSILON = 1e-3


class Net:
    """A convolution (with bias or not) and a batch norm after it, built with random constants."""

    def __init__(self, rng, channels=5, groups=1, inputs=4):
        self.w = rng.standard_normal((channels, inputs // groups, 3, 3), dtype="float32")
        self.bias = rng.standard_normal(channels, dtype="float32")
        self.gamma = rng.uniform(0.5, 2, channels).astype("float32")
        self.beta = rng.standard_normal(channels, dtype="float32")
        self.mean = rng.standard_normal(channels, dtype="float32")
        self.var = rng.uniform(0.1, 3, channels).astype("float32")
        self.groups, self.inputs, self.channels = groups, inputs, channels

    def norm(self, x, **options):
        params = [relax.const(p) for p in (self.gamma, self.beta, self.mean, self.var)]
        options = {"training": False} | options
        return relax.op.nn.batch_norm(x, *params, axis=1, epsilon=EPSILON, **options)

    def conv(self, x, w=None):
        w = relax.const(self.w if w is None else w)
        return relax.op.nn.conv2d(x, w, padding=1, groups=self.groups)

    @property
    def scale(self):
        return self.gamma.astype("float64") / np.sqrt(self.var.astype("float64") + EPSILON)

    @property
    def shift(self):
        return self.beta - self.mean * self.scale


def module(build, shape):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def dim(name):
    return tvm.tirx.Var(name, "int64")


def test_before_and_expected(rng):
    net = Net(rng)

    def before(builder, x):
        y = builder.emit(net.conv(x))
        normed = builder.emit(net.norm(y))
        return relax.op.nn.relu(relax.TupleGetItem(normed, 0))

    def expected(builder, x):
        w = (net.w * net.scale.reshape(-1, 1, 1, 1)).astype("float32")
        y = builder.emit(net.conv(x, w))
        shift = net.shift.reshape(1, -1, 1, 1).astype("float32")
        return relax.op.nn.relu(builder.emit(relax.op.add(y, relax.const(shift))))

    shape = (dim("n"), 4, 7, dim("w"))
    tvm.ir.assert_structural_equal(
        FoldBatchNorm()(module(before, shape)), module(expected, shape), map_free_vars=True
    )


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize(
    ("bias", "groups", "inputs"), [(False, 1, 3), (True, 2, 4), (False, 4, 4), (True, 1, 4)]
)
def test_folds_into_the_convolution(rng, run, operators, bias, groups, inputs):
    net = Net(rng, channels=8, groups=groups, inputs=inputs)

    def build(builder, x):
        y = builder.emit(net.conv(x))
        if bias:
            constant = builder.emit(relax.op.reshape(relax.const(net.bias), (1, -1, 1, 1)))
            y = builder.emit(relax.op.add(y, constant))
        return relax.TupleGetItem(builder.emit(net.norm(y)), 0)

    before = module(build, (2, inputs, 7, 5))
    after = FoldBatchNorm()(FoldConstants()(before))
    assert operators(after["main"]) == ["nn.conv2d", "add"]
    x = rng.standard_normal((2, inputs, 7, 5), dtype="float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_symbolic_batch(rng, run):
    net = Net(rng)
    before = module(
        lambda b, x: relax.TupleGetItem(b.emit(net.norm(b.emit(net.conv(x)))), 0),
        (dim("n"), 4, 6, 6),
    )
    after = FoldBatchNorm()(before)
    for n in (1, 3):
        x = rng.standard_normal((n, 4, 6, 6), dtype="float32")
        np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-4, atol=1e-5)


def test_convolution_with_another_reader_keeps_its_weights(rng, run, operators):
    net = Net(rng)

    def build(builder, x):
        y = builder.emit(net.conv(x))
        normed = builder.emit(relax.TupleGetItem(builder.emit(net.norm(y)), 0))
        return relax.op.add(normed, y)

    before = module(build, (1, 4, 5, 5))
    after = FoldBatchNorm()(before)
    assert operators(after["main"]) == ["nn.conv2d", "multiply", "add", "add"]
    x = rng.standard_normal((1, 4, 5, 5), dtype="float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("center", "scale"), [(True, True), (False, True), (True, False)])
def test_alone_it_is_scale_and_shift(rng, run, operators, center, scale):
    net = Net(rng)
    before = module(
        lambda b, x: relax.TupleGetItem(b.emit(net.norm(x, center=center, scale=scale)), 0),
        (2, 5, 3, 3),
    )
    after = FoldBatchNorm()(before)
    assert operators(after["main"]) == ["multiply", "add"]
    x = rng.standard_normal((2, 5, 3, 3), dtype="float32")
    spread = 1 / np.sqrt(net.var.astype("float64") + EPSILON)
    factor = spread * (net.gamma if scale else 1)
    offset = (net.beta if center else 0) - net.mean * factor
    expected = x * factor.reshape(-1, 1, 1) + offset.reshape(-1, 1, 1)
    np.testing.assert_allclose(run(after, x), expected, rtol=1e-5, atol=1e-6)


def test_a_bias_that_is_not_per_channel_does_not_fold(rng, operators):
    net = Net(rng)
    plane = rng.standard_normal((1, 1, 5, 5), dtype="float32")

    def build(builder, x):
        y = builder.emit(relax.op.add(builder.emit(net.conv(x)), relax.const(plane)))
        return relax.TupleGetItem(builder.emit(net.norm(y)), 0)

    after = FoldBatchNorm()(module(build, (1, 4, 5, 5)))
    assert operators(after["main"]) == ["nn.conv2d", "add", "multiply", "add"]


def test_parameters_that_are_no_constants(rng, run):
    params = [relax.Var(n, relax.TensorType((5,), "float32")) for n in ("g", "b", "m", "v")]
    x = relax.Var("x", relax.TensorType((dim("n"), 5, 3), "float32"))

    def result(emit, *_):
        normed = emit(relax.op.nn.batch_norm(x, *params, axis=1, epsilon=EPSILON, training=False))
        return relax.TupleGetItem(normed, 0)

    after = FoldBatchNorm()(main_module([x, *params], result))
    net = Net(rng)
    data = rng.standard_normal((2, 5, 3), dtype="float32")
    expected = data * net.scale[:, None] + net.shift[:, None]
    result = run(after, data, net.gamma, net.beta, net.mean, net.var)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_running_statistics_pass_through(rng, run):
    net = Net(rng)

    def build(builder, x):
        normed = builder.emit(net.norm(x))
        return relax.Tuple([builder.emit(relax.TupleGetItem(normed, i)) for i in range(3)])

    _, mean, var = run(FoldBatchNorm()(module(build, (2, 5, 3, 3))), np.ones((2, 5, 3, 3), "f"))
    np.testing.assert_array_equal(mean, net.mean)
    np.testing.assert_array_equal(var, net.var)


def test_training_stays(rng):
    net = Net(rng)
    before = module(
        lambda b, x: relax.TupleGetItem(b.emit(net.norm(x, training=True)), 0), (2, 5, 3, 3)
    )
    assert FoldBatchNorm()(before).same_as(before)


def test_scale_and_shift_of_half_types_are_rounded_once(rng, run):
    net = Net(rng)
    parameters = [net.gamma, net.beta, net.mean, net.var]
    x = relax.Var("x", relax.TensorType((2, 5, 3), "float16"))
    given = [relax.const(p.astype("f2"), "float16") for p in parameters]

    def result(emit, *_):
        normed = emit(relax.op.nn.batch_norm(x, *given, axis=1, epsilon=EPSILON, training=False))
        return relax.TupleGetItem(normed, 0)

    data = (rng.standard_normal((2, 5, 3)) + 100).astype("f2")
    gamma, beta, mean, var = (p.astype("f2").astype("f8") for p in parameters)
    scale = gamma / np.sqrt(var + EPSILON)
    expected = data * scale[:, None] + (beta - mean * scale)[:, None]
    found = run(FoldBatchNorm()(main_module([x], result)), data)
    assert found.dtype == np.float16
    # One rounding, and float32 of what is subtracted.
    np.testing.assert_allclose(found, expected, rtol=2.0**-11, atol=1e-5 * np.abs(expected).max())
