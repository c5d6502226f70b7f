"""Narrow element types: every code, and conversions bit for bit as ml_dtypes and onnx have them."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_fusion
from tvm_fusion.core.constants import narrow_types
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

pytestmark = pytest.mark.slow_beyond(2)

FLOATS = sorted(narrow_types.FLOATS)
ALL = sorted(narrow_types.NARROW)


@pytest.fixture
def convert(tmp_path):
    """Compile models of one node each, all in one, and run it."""

    def call(nodes, inputs, outputs, opset=25, **initializers):
        def infos(types):
            return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in types.items()]

        stored = [numpy_helper.from_array(a, n) for n, a in initializers.items()]
        types = {n: (_type(a), a.shape) for n, a in inputs.items()}
        graph = helper.make_graph(nodes, "graph", infos(types), infos(outputs), stored)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13
        )
        program = tvm_fusion.load(tvm_fusion.compile(model, "cpu").export(tmp_path / "model"))
        return model, program.run(inputs)

    return call


def _type(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _codes(dtype):
    bits = {4: 4, 2: 2}.get(narrow_types.INTEGERS.get(dtype, 8), 8)
    count = 16 if dtype.startswith("float4") else 2**bits
    return np.arange(count, dtype=np.uint8).view(dtype)


def _numbers(dtype):
    """Make random bits, all numbers of the type, ties between them and the neighbours of these."""
    rng = np.random.default_rng(3)
    own = np.unique(_codes(dtype).astype("float32"))
    own = own[np.isfinite(own)]
    ties = ((own[1:].astype("float64") + own[:-1]) / 2).astype("float32")
    near = [np.nextafter(ties, np.float32(side)) for side in (np.inf, -np.inf)]
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38], "float32")
    bits = rng.integers(0, 2**32, 5000, dtype=np.uint32).view("float32")
    normal = rng.standard_normal(5001).astype("float32") * np.float32(min(own.max(), 1e9) / 2)
    return np.concatenate([bits, own, ties, *near, special, normal])


@pytest.mark.slow
def test_every_code_of_every_type_becomes_its_number(convert):
    inputs = {f"x_{d}": _codes(d) for d in ALL}
    nodes, outputs = [], {}
    for name, codes in inputs.items():
        for to in ("float32", "float16", "int32"):
            if to == "int32" and "float" in str(codes.dtype):
                continue
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
            nodes.append(helper.make_node("Cast", [name], [f"{name}_{to}"], to=kind))
            outputs[f"{name}_{to}"] = (kind, codes.shape)
    _, found = convert(nodes, inputs, outputs)
    for name, codes in inputs.items():
        for to in ("float32", "float16", "int32"):
            if f"{name}_{to}" in found:
                with np.errstate(all="ignore"):
                    wanted = codes.astype("float32").astype(to)
                np.testing.assert_array_equal(found[f"{name}_{to}"], wanted, err_msg=name)
                signs = np.signbit(wanted) & ~np.isnan(wanted)
                assert (np.signbit(found[f"{name}_{to}"]) & ~np.isnan(wanted) == signs).all()


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_conversions_round_and_saturate_as_the_reference(convert, source):
    with np.errstate(all="ignore"):
        inputs = {d: _numbers(d).astype(source) for d in [*FLOATS, "float8_e8m0fnu"]}
    nodes, outputs, cases = [], {}, []
    for dtype, numbers in inputs.items():
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        modes = ("up", "down", "nearest") if dtype == "float8_e8m0fnu" else ("up",)
        for saturate in (0, 1):
            for mode in modes:
                name = f"{dtype}_{saturate}_{mode}"
                more = {"round_mode": mode} if len(modes) > 1 else {}
                nodes.append(
                    helper.make_node("Cast", [dtype], [name], to=kind, saturate=saturate, **more)
                )
                outputs[name] = (kind, numbers.shape)
                cases.append((dtype, saturate, mode, name))
    _, found = convert(nodes, inputs, outputs)
    for dtype, saturate, mode, name in cases:
        numbers = inputs[dtype]
        with np.errstate(all="ignore"):
            if dtype == "float8_e8m0fnu":
                wanted = numpy_helper.to_float8e8m0(numbers, bool(saturate), mode)
            elif saturate and dtype != "float4_e2m1fn":
                wanted = numpy_helper.saturate_cast(numbers.astype("float32"), np.dtype(dtype))
            else:
                wanted = numbers.astype("float32").astype(dtype)
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(
            found[name].view(np.uint8), wanted.view(np.uint8), err_msg=name
        )


def test_narrow_integers_take_the_lowest_bits(convert):
    numbers = np.random.default_rng(4).integers(-(2**31), 2**31, 333).astype("int32")
    reals = np.array([-8.0, -7.5, -1.99, -0.0, 0.5, 1.0, 3.7, 7.999], "float32")
    nodes, outputs = [], {}
    for dtype in narrow_types.INTEGERS:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        for name, array in (("n", numbers), ("r", reals)):
            nodes.append(helper.make_node("Cast", [name], [f"{name}_{dtype}"], to=kind))
            outputs[f"{name}_{dtype}"] = (kind, array.shape)
    _, found = convert(nodes, {"n": numbers, "r": reals}, outputs)
    for dtype in narrow_types.INTEGERS:
        np.testing.assert_array_equal(found[f"n_{dtype}"], numbers.astype(dtype))
        np.testing.assert_array_equal(found[f"r_{dtype}"], reals.astype("int32").astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        *(("int4", "tensor"), ("uint2", "axis"), ("int8", "blocks"), ("int4", "blocks")),
        *(("float4_e2m1fn", "blocks"), ("float8_e4m3fn", "axis")),
    ],
)
def test_quantizing_and_back_agrees_with_the_reference(convert, dtype, way):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((3, 10, 5)) * 3).astype("float32")
    shape, more = {
        "tensor": ((), {}),
        "axis": ((10,), {"axis": 1}),
        "blocks": ((3, 3, 5), {"axis": 1, "block_size": 4}),
    }[way]
    scale = (rng.random(shape) + 0.25).astype("float32")
    is_float = dtype.startswith("float")
    zero = np.zeros(shape) if is_float else rng.integers(0, 2, shape)
    stored = {"scale": scale, "zero": zero.astype(dtype)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **more),
        helper.make_node("Transpose", ["q"], ["t"], perm=[2, 0, 1]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **more),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = {"t": (kind, (5, 3, 10)), "y": (TensorProto.FLOAT, x.shape)}
    model, found = convert(nodes, {"x": x}, outputs, **stored)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(found["t"].view(np.uint8), wanted[0].view(np.uint8))
    np.testing.assert_allclose(found["y"], wanted[1], rtol=1e-6, atol=1e-6)


def test_what_computes_with_narrow_types_is_refused(onnx_model):
    model = onnx_model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        {"x": (ml_dtypes.float8_e5m2, [3])},
        {"y": (ml_dtypes.float8_e5m2, [3])},
    )
    with pytest.raises(UserError, match=r"Add of float8_e5m2.*cast to float16"):
        import_model(model)


def test_a_damaged_storage_is_refused(convert, tmp_path):
    codes = _codes("int4")
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    convert([node], {"x": codes}, {"y": (TensorProto.FLOAT, codes.shape)})
    manifest = tmp_path / "model" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"storage": "uint8"', '"storage": "float32"'))
    with pytest.raises(UserError, match="storage"):
        tvm_fusion.load(tmp_path / "model")
