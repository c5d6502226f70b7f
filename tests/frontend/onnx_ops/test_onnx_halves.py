"""What one operator computes of half types on the way to its result is float32's."""

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, tirx
from tvm.ir.transform import PassContext

import tvm_fusion
from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model

pytestmark = pytest.mark.slow_beyond(2)

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
SHAPE = (2, 4, 15)
ROWS = {"axes": [2], "keepdims": 1}
# Operators of the normalization kind by output, and the same in float64.
OPERATORS = {
    "ReduceL2": (ROWS, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    "ReduceL1": (ROWS, lambda x: np.abs(x).sum(2, keepdims=True)),
    "ReduceMean": (ROWS, lambda x: x.mean(2, keepdims=True)),
    "ReduceLogSum": (ROWS, lambda x: np.log(np.abs(x).sum(2, keepdims=True))),
    "GlobalLpPool": ({}, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    "LpPool": ({"kernel_shape": [15]}, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    "GlobalAveragePool": ({}, lambda x: x.mean(2, keepdims=True)),
    "MeanVarianceNormalization": (
        {"axes": [2]},
        lambda x: (x - x.mean(2, keepdims=True)) / (x.std(2, keepdims=True) + 1e-9),
    ),
    "LpNormalization": (
        {"axis": 2},
        lambda x: x / np.sqrt((x * x).sum(2, keepdims=True)),
    ),
    "LRN": ({"size": 3, "alpha": 0.75, "beta": 0.5}, lambda x: x / np.sqrt(1 + 0.25 * windows(x))),
    "Softsign": ({}, lambda x: x / (1 + np.abs(x))),
    "HardSwish": ({}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Celu": ({}, lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)),
    "Elu": ({}, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "Tanh": ({}, np.tanh),
    "Sigmoid": ({}, lambda x: 1 / (1 + np.exp(-x))),
}
OPSET = 14  # in which the axes of reductions are attributes


def windows(x):
    """Add the squares of a channel and its neighbours."""
    squares = np.pad(x * x, [(0, 0), (1, 1), (0, 0)])
    return squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]


def model_of(dtype, operators=OPERATORS):
    element = ELEMENTS[dtype]
    nodes, outputs = [], []
    for name, (attributes, _) in operators.items():
        source = "x"
        if name == "ReduceLogSum":
            source = "size"
            nodes.append(helper.make_node("Abs", ["x"], [source]))
        more = ["ones", "zeros"] if name == "InstanceNormalization" else []
        nodes.append(helper.make_node(name, [source, *more], [name.lower()], **attributes))
        outputs.append(helper.make_tensor_value_info(name.lower(), element, None))
    given = helper.make_tensor_value_info("x", element, SHAPE)
    channels = {"ones": np.ones(SHAPE[1]), "zeros": np.zeros(SHAPE[1])}
    weights = [
        numpy_helper.from_array(array.astype(HALVES[dtype]), name)
        for name, array in channels.items()
        if "InstanceNormalization" in operators
    ]
    graph = helper.make_graph(nodes, "halves", [given], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    return model


@pytest.fixture(scope="module", params=HALVES)
def program(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves") / request.param
    compiled = tvm_fusion.compile(model_of(request.param), "cpu")
    return request.param, tvm_fusion.load(compiled.export(folder))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("size", [200.0, 1.0, 1e-4, 3e-7])
def test_norms_are_rounded_once(program, size):
    dtype, compiled = program
    info = ml_dtypes.finfo(HALVES[dtype])
    x = (np.random.default_rng().standard_normal(SHAPE) * size).astype(HALVES[dtype])
    with np.errstate(all="ignore"):
        wanted = {n: f(x.astype(np.float64)) for n, (_, f) in OPERATORS.items()}
        single = {n: f(x.astype(np.float32)) for n, (_, f) in OPERATORS.items()}
    found = compiled.run({"x": x})
    for name, want in wanted.items():
        got = found[name.lower()].astype(np.float64)
        # Two units in the last place of the result, of them a half for its rounding, and what
        # float32 loses by cancellation.
        _, exponent = np.frexp(want)
        unit = np.exp2(
            np.maximum(exponent - 1 - info.nmant, np.log2(float(info.smallest_subnormal)))
        )
        apart = np.abs(single[name] - want).max()
        assert (np.abs(got - want) <= 2 * unit + 16 * apart).all(), name
        assert np.abs(got).max() > 0, name


POWERS = {
    name: OPERATORS[name]
    for name in ("ReduceL2", "LpPool", "LpNormalization", "MeanVarianceNormalization", "LRN")
}
POWERS["InstanceNormalization"] = (
    {},
    lambda x: (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5),
)


@pytest.fixture(scope="module")
def powers(tmp_path_factory):
    model = model_of("bfloat16", POWERS)
    return tvm_fusion.load(
        tvm_fusion.compile(model).export(tmp_path_factory.mktemp("powers") / "m")
    )


@pytest.mark.parametrize("size", [3e37, 1e-30])
def test_squares_of_bfloat16_leave_the_range_of_float32(powers, size):
    x = (np.random.default_rng().uniform(0.5, 1, SHAPE) * size).astype(ml_dtypes.bfloat16)
    x[:, :, ::2] *= -1
    found = powers.run({"x": x})
    for name in POWERS:
        want = POWERS[name][1](x.astype(np.float64))
        got = found[name.lower()].astype(np.float64)
        assert (np.abs(got - want) <= 2.0**-7 * np.abs(want).max()).all(), name


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("size", [6000.0, 200.0, 1e-4])
def test_storage_in_halves_keeps_the_range_of_norms(stored_in_halves, size):
    x = (np.random.default_rng().standard_normal(SHAPE) * size).astype("f2").astype("f4")
    found = stored_in_halves.run({"x": x})
    for name, (_, exact) in OPERATORS.items():
        want = exact(x.astype(np.float64))
        # Some roundings to float16 of what is stored in between, none of which overflows.
        error = np.abs(found[name.lower()] - want).max()
        assert error <= 4 * 2.0**-11 * np.abs(want).max(), name


@pytest.fixture(scope="module")
def stored_in_halves(tmp_path_factory):
    model = model_of("float16")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    compiled = tvm_fusion.compile(model, "cpu", precision="fp16")
    return tvm_fusion.load(compiled.export(tmp_path_factory.mktemp("halves") / "stored"))


def half_arithmetic(mod):
    """Name the PrimFuncs that add or multiply in a half type more than once an element."""
    found = []
    for gvar, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        sums = []
        for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div):
            tvm_ffi.structural_walk(
                func, (kind, lambda e, sums=sums: sums.append(str(e.ty.dtype) in HALVES))
            )
        if any(sums):
            found.append(gvar.name_hint)
    return found


def layers(dtype):
    """Build attention and the normalizations of opset 23, with gains and biases of the type."""
    shapes = {"x": [2, 4, 6, 8], "k": [2, 4, 10, 8], "v": [2, 4, 10, 8], "mask": [6, 10]}
    shapes |= {"row": [8], "channels": [4], "scores": [12, 8]}
    nodes = [
        helper.make_node("Attention", ["x", "k", "v", "mask"], ["attention"], softcap=2.0),
        helper.make_node("RMSNormalization", ["x", "row"], ["rms"]),
        helper.make_node("LayerNormalization", ["x", "row", "row"], ["layer"]),
        helper.make_node(
            "GroupNormalization", ["x", "channels", "channels"], ["group"], num_groups=2
        ),
        helper.make_node("InstanceNormalization", ["x", "channels", "channels"], ["instance"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
        helper.make_node("LogSoftmax", ["x"], ["log_softmax"]),
    ]
    given = [helper.make_tensor_value_info(n, ELEMENTS[dtype], s) for n, s in shapes.items()]
    given.append(helper.make_tensor_value_info("labels", TensorProto.INT64, [12]))
    outputs = [n.output[0] for n in nodes]
    made = [helper.make_tensor_value_info(n, ELEMENTS[dtype], None) for n in outputs]
    graph = helper.make_graph(nodes, "layers", given, made)
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


@pytest.mark.parametrize("spec", ["cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("model", [model_of, layers])
def test_no_kernel_computes_in_a_half_type(spec, dtype, model):
    mod = import_model(model(dtype), FusionConfig()).mod
    with parse(spec).tvm_target(), PassContext():
        kernels = transform.Legalize()(mod)
    assert not half_arithmetic(kernels)


@pytest.mark.parametrize("dtype", HALVES)
def test_scores_of_attention_keep_the_range_of_float32(dtype, run):
    rng = np.random.default_rng()
    size = 3e3  # scores are beyond float16, the result is not
    q, k = ((rng.standard_normal((1, 2, 5, 8)) * size).astype(HALVES[dtype]) for _ in range(2))
    v = rng.standard_normal((1, 2, 5, 8)).astype(HALVES[dtype])
    given = [
        helper.make_tensor_value_info(n, ELEMENTS[dtype], list(x.shape))
        for n, x in (("q", q), ("k", k), ("v", v))
    ]
    made = helper.make_tensor_value_info("y", ELEMENTS[dtype], None)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = helper.make_graph([node], "g", given, [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    got = run(import_model(model, FusionConfig()).mod, q, k, v).astype("f8")
    scores = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v.astype("f8")
    # Scores of float32 are known to some of their units, of which weights are exponentials.
    error = float(ml_dtypes.finfo(HALVES[dtype]).eps) + 8 * 2.0**-23 * np.abs(scores).max()
    assert (np.abs(got - want) <= error * np.abs(v.astype("f8")).max()).all()


def test_the_check_of_kernels_finds_sums_of_halves():
    mod = import_model(added(), FusionConfig()).mod
    with parse("cuda:sm_90a").tvm_target(), PassContext():
        assert half_arithmetic(transform.Legalize()(mod)) == ["add"]


def added():
    """Add a tensor to itself: one operator of one rounding, which stays one of halves."""
    half = TensorProto.FLOAT16
    given = helper.make_tensor_value_info("x", half, [3])
    made = helper.make_tensor_value_info("y", half, [3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def product(domain, op_type, weight, bias, shape, **attributes):
    half = TensorProto.FLOAT16
    stored = [numpy_helper.from_array(x, n) for n, x in (("w", weight), ("b", bias))]
    given = helper.make_tensor_value_info("x", half, shape)
    made = helper.make_tensor_value_info("y", half, None)
    node = helper.make_node(op_type, ["x", "w", "b"], ["y"], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [given], [made], stored)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
def test_products_with_a_bias_read_halves_and_are_rounded_once(kind, run):
    rng = np.random.default_rng()
    if kind == "Gemm":
        weight, shape = (rng.standard_normal((9, 64)) * 300).astype("f2"), [5, 64]
        attributes = {"transB": 1, "alpha": 1.0}
    else:
        weight, shape = (rng.standard_normal((9, 64, 1)) * 300).astype("f2"), [5, 64, 1]
        attributes = {"kernel_shape": [1]}
    x = (rng.standard_normal(shape) * 300).astype("f2")
    total = x.reshape(5, 64).astype("f8") @ weight.reshape(9, 64).T.astype("f8")
    # Beyond float16 before the bias, within it behind.
    bias = -np.round(total.mean(0)).clip(-6e4, 6e4).astype("f2")
    mod = import_model(product("", kind, weight, bias, shape, **attributes), FusionConfig()).mod
    dtypes = [str(c.value.dtype) for c in constants_of(mod) if c.value.numpy().size > 64]
    assert dtypes == ["float16"]  # the weights are not stored twice as wide
    want = (total + bias.astype("f8")).reshape(5, 9, *[1] * (len(shape) - 2))
    got = run(mod, x).astype("f8")
    with np.errstate(over="ignore"):
        rounded = want.astype("f2").astype("f8")
    close = np.abs(got - want) <= np.abs(want) * 2.0**-10 + 64 * 2.0**-23 * 9e4 * 9
    assert (close | (got == rounded)).all()


def constants_of(mod):
    found = {}

    def note(const):
        found[hash(const)] = const

    tvm_ffi.structural_walk(mod["main"], (ir.GenericConst, note))
    return list(found.values())
