"""Packing functions evaluated by numpy write the bits that the compiled ones write."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.schedule.toy_kernels import TARGET, buffer
from tvm_fusion.core.constants.numpy_types import numpy_dtype
from tvm_fusion.core.constants.weight_names import WeightNames, tracking
from tvm_fusion.core.tir.loops import block
from tvm_fusion.program.stage import Axis
from tvm_fusion.schedule.contraction.problem.functions.prim_func import nest
from tvm_fusion.schedule.stage.install import Packer, gather

load = tirx.BufferLoad


def packing(source, target, value, dtype="float32"):
    source, target = buffer("source", source, dtype), buffer("packed", target, dtype)
    axes = [Axis(tirx.Var(f"i{k}", "int64"), d) for k, d in enumerate(target.ty.shape)]
    body = nest("packed", axes, [], target, value(source, *(axis.var for axis in axes)))
    func = tirx.PrimFunc([source, target], block("root", body))
    return func.with_attrs({"s_tir": True, "global_symbol": "pack"})


def random_bits(shape, dtype):
    """Any bits: NaNs with payloads, negative zeros and subnormal numbers among them."""
    dtype = numpy_dtype(dtype)
    bits = np.random.default_rng().integers(0, 256, [*shape, dtype.itemsize], "uint8")
    array = bits.view(dtype)[..., 0]
    return array.astype(dtype) if dtype != "bool" else bits[..., 0] > 127


def compiled(function, constant):
    packed = function.params[-1].ty
    result = tvm.runtime.empty([int(d) for d in packed.shape], str(packed.dtype))
    module = tvm.tirx.build(tvm.IRModule({"pack": function}), TARGET, pipeline="tvm_fusion")
    module["pack"](constant, result)
    return result


def check(function):
    source = function.params[0].ty
    array = random_bits([int(d) for d in source.shape], str(source.dtype))
    constant = tvm.runtime.tensor(array)
    got, expected = gather(function, constant), compiled(function, constant)
    assert got is not None
    assert str(got.dtype) == str(expected.dtype)
    assert tuple(got.shape) == tuple(expected.shape)
    assert got.numpy().tobytes() == expected.numpy().tobytes()


def zero(dtype="float32"):
    return tirx.const(0, dtype)


def panels(source, panel, k, lane):
    """Read a column of the panel, zeros behind the last one."""
    column = panel * 8 + lane
    return tirx.if_then_else(column < 19, load(source, [k, column]), zero(source.ty.dtype))


CASES = {
    "transposed": ((5, 7), (7, 5), lambda s, i, j: load(s, [j, i])),
    "panels": ((5, 19), (3, 5, 8), panels),
    "slice": ((9, 7), (4, 3), lambda s, i, j: load(s, [i * 2 + 1, 3])),
    "one_element": ((1, 1), (1, 1), lambda s, i, j: load(s, [i, j])),
    "diagonal": ((6, 6), (6, 3), lambda s, i, j: load(s, [i, i])),
    "reshaped": ((6, 4), (24,), lambda s, i: load(s, [i // 4, i % 4])),
    "reversed": ((5, 3), (5, 3), lambda s, i, j: load(s, [4 - i, j])),
    "negative_places": (
        (5,),
        (9,),
        lambda s, i: tirx.Select(tirx.all(i >= 2, i < 7), load(s, [i - 2]), zero()),
    ),
    "nested_choice": (
        (6, 4),
        (3, 8, 4),
        lambda s, g, k, c: tirx.if_then_else(
            k < 6,
            tirx.if_then_else(tirx.EQ(k % 2, g), load(s, [k, c]), zero()),
            tirx.const(-0.0, "float32"),
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_movements_are_evaluated_bit_by_bit(case):
    check(packing(*CASES[case]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "float64"])
def test_any_element_type(dtype):
    check(packing((5, 19), (3, 5, 8), panels, dtype))


def cast(source, i, j):
    return tirx.Cast("float32", tirx.Cast("float16", load(source, [j, i])))


def test_arithmetic_is_left_to_the_compiler():
    constant = tvm.runtime.tensor(random_bits((5, 7), "float32"))
    assert gather(packing((5, 7), (7, 5), lambda s, i, j: load(s, [j, i]) * 2), constant) is None
    assert gather(packing((5, 7), (7, 5), cast), constant) is None
    by_data = lambda s, i, j: tirx.Select(load(s, [j, i]) > 0, load(s, [j, i]), zero())  # noqa: E731
    assert gather(packing((5, 7), (7, 5), by_data), constant) is None


# Many constants ----------------------------------------------------------------------------------


@pytest.fixture
def builds(monkeypatch):
    """List the modules that are compiled."""
    found = []
    build = tvm.tirx.build

    def recorded(mod, *args, **kwargs):
        found.append(mod)
        return build(mod, *args, **kwargs)

    monkeypatch.setattr(tvm.tirx, "build", recorded)
    return found


def turned(rows):
    return packing((rows, 7), (7, rows), lambda s, i, j: load(s, [j, i]))


def const(rows):
    return relax.const(np.random.default_rng().standard_normal((rows, 7)).astype("float32"))


def test_packing_compiles_nothing_but_arithmetic(builds):
    packer = Packer(tvm.IRModule())
    for rows in range(2, 9):
        constant = const(rows)
        packed = packer(turned(rows), constant)
        np.testing.assert_array_equal(packed.value.numpy(), constant.value.numpy().T)
        assert packer(turned(rows), constant).same_as(packed)
    assert not builds
    doubled = packing((5, 7), (7, 5), lambda s, i, j: load(s, [j, i]) * tirx.const(2, "float32"))
    for constant in const(5), const(5):
        packed = packer(doubled, constant)
        np.testing.assert_array_equal(packed.value.numpy(), 2 * constant.value.numpy().T)
    assert len(builds) == 1


def test_functions_of_named_weights_are_kept(builds):
    weight, other = const(19), const(5)
    names = WeightNames([("weight", weight)])
    packer = Packer(tvm.IRModule())
    with tracking(names):
        packed = packer(turned(19), weight)
        packer(turned(5), other)
    assert not builds
    ((name, function),) = packer.functions.items()
    result = tvm.runtime.empty((7, 19))
    tvm.tirx.build(tvm.IRModule({name: function}), TARGET, pipeline="tvm_fusion")[name](
        weight.value, result
    )
    np.testing.assert_array_equal(result.numpy(), packed.value.numpy())
    assert names.knows(packed)
