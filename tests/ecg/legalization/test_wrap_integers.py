"""What of an operator's arithmetic wraps around, and what stays index arithmetic."""

import numpy as np
import pytest
from tvm import ir, relax, sym, te, tirx

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.integer_ranges import range_of
from tvm_fusion.core.tir.integers import NAMES, unwrapped, wrapped, wrapping
from tvm_fusion.ecg.legalization.legalize import Legalize, wrap_integers
from tvm_fusion.program.domain import Domain
from tvm_fusion.program.stage import Axis


def calls(func):
    """Names of the operators of a function that wrap around."""
    found = []
    ir_calls = []
    from tvm_fusion._tvm.ir.structural import structural_walk

    structural_walk(func.body, (ir.Call, ir_calls.append))
    for call in ir_calls:
        if call_name(call) in NAMES:
            found.append(call_name(call))
    return sorted(found)


def operator(make, *dtypes):
    """The PrimFunc that an operator of tensors of seven numbers becomes."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType((7,), d)) for n, d in enumerate(dtypes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*params)))
        builder.emit_func_output(result)
    mod = Legalize()(builder.get())
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


op = relax.op


@pytest.mark.parametrize(
    ("make", "dtypes", "expected"),
    [
        (op.multiply, ["int32", "int32"], ["wrapping_mul"]),
        (op.add, ["uint8", "uint8"], ["wrapping_add"]),
        (op.negative, ["uint8"], ["wrapping_sub"]),
        (op.abs, ["int64"], ["wrapping_sub"]),
        (op.floor_divide, ["int64", "int64"], ["wrapping_floordiv"]),
        (op.divide, ["uint32", "uint32"], ["wrapping_truncdiv"]),
        (op.left_shift, ["int32", "int32"], ["wrapping_shift_left"]),
        (lambda x: op.astype(x, "int8"), ["float32"], ["wrapping_cast"]),
        (lambda x: op.astype(x, "int32"), ["uint32"], ["wrapping_cast"]),
        # The simplifier would multiply such divisors, and the bounds of quotients by them.
        (lambda x: op.floor_divide(x, relax.const(np.int32(3))), ["int32"], ["wrapping_floordiv"]),
        (lambda x: op.mod(x, relax.const(np.int32(3))), ["int32"], ["wrapping_truncmod"]),
        (lambda x: op.less(x, relax.const(np.int32(2**31 - 1))), ["int32"], ["wrapping_add"]),
        (lambda x: op.less(x, relax.const(np.int32(2**30))), ["int32"], []),
        # Nothing can overflow here.
        (lambda x: op.astype(x, "int32"), ["uint16"], []),
        (lambda x: op.divide(x, relax.const(np.int32(0))), ["int32"], []),
        (lambda x: op.divide(x, relax.const(np.int32(-1))), ["int32"], ["wrapping_sub"]),
        (op.multiply, ["float32", "float32"], []),
        # Sums of reductions are told by their form, and wrap around in the end.
        (op.sum, ["int32"], []),
        (op.matmul, ["int32", "int32"], []),
        (op.argmax, ["float32"], []),
    ],
)
def test_operators(make, dtypes, expected):
    assert calls(operator(make, *dtypes)) == expected


def test_indices_stay_index_arithmetic():
    numbers = te.placeholder((7,), "int64", name="numbers")
    x = te.placeholder((9,), "int64", name="x")
    y = te.compute((7,), lambda i: x[numbers[i] + 1] * 3, name="y")
    func = wrap_integers(te.create_prim_func([numbers, x, y]), "relax.take")
    assert calls(func) == ["wrapping_mul"]


def test_bytes_cannot_overflow_in_32_bits():
    x = tirx.decl_buffer((4,), "int8")
    value = tirx.Cast("int32", tirx.BufferLoad(x, [0]))
    product = tirx.Mul(value, value)
    assert range_of(product, {}) == (-128 * 127, 128 * 128)
    assert wrapped(product).same_as(product)


def test_what_is_always_one_number_is_multiplied_as_data_is():
    """0 times anything is in range, but not the product of all factors."""
    x = tirx.BufferLoad(tirx.decl_buffer((4,), "int32"), [0])
    zero = tirx.FloorMod(x, tirx.const(1, "int32"))
    product = wrapped(tirx.Mul(zero, tirx.const(2**20, "int32")))
    assert call_name(product) == "wrapping_mul"


def test_ranges_of_quotients():
    x = tirx.BufferLoad(tirx.decl_buffer((4,), "int32"), [0])
    three = tirx.const(3, "int32")
    assert range_of(wrapping("floormod", "int32", x, three), {}) == (0, 2)
    assert range_of(wrapping("truncmod", "int32", x, three), {}) == (-2, 2)
    assert range_of(wrapping("floordiv", "int32", x, three), {}) == (-(2**31) // 3, 2**31 // 3)
    assert range_of(wrapping("mul", "int32", x, three), {}) == (-(2**31), 2**31 - 1)


def test_quotients_of_positions_become_index_arithmetic_again():
    i = ir.Var("i", ir.PrimType("int64"))
    three, five = tirx.IntImm("int64", 3), tirx.IntImm("int64", 5)
    x = tirx.BufferLoad(tirx.decl_buffer((4,), "int64"), [0])
    of_position = wrapping("floordiv", "int64", wrapping("add", "int64", i, five), three)
    bounds = {i: (0, 99)}
    expected = tirx.FloorDiv(tirx.Add(i, five), three)
    ir.assert_structural_equal(unwrapped(of_position, bounds), expected)
    assert unwrapped(of_position, {}).same_as(of_position)
    for other in (
        wrapping("floordiv", "int64", x, three),
        wrapping("floordiv", "int64", i, tirx.IntImm("int64", 0)),
        wrapping("add", "int64", three, five),  # a hidden constant
    ):
        assert unwrapped(other, bounds).same_as(other)


def test_simplifier_multiplies_divisors_and_bounds():
    """Fails when TVM minds the type's range there: then constants need not be hidden from it."""
    analyzer, large = sym.Analyzer(), tirx.const(2**63 - 1, "int64")
    x = tirx.Var("x", "int64")
    quotient = tirx.FloorDiv(x, large)
    below = analyzer.simplify(tirx.LT(quotient, tirx.const(100, "int64")))
    ir.assert_structural_equal(below, tirx.LT(x, tirx.const(-100, "int64")))
    with pytest.raises(ValueError, match="exceeds range"):
        analyzer.simplify(tirx.FloorDiv(quotient, tirx.const(100, "int64")))


def test_positions_become_index_arithmetic_again():
    """Templates tell masks and positions by the sums that they are."""
    i = ir.Var("i", ir.PrimType("int64"))
    total = wrapping("add", "int64", i, tirx.IntImm("int64", 5))
    ir.assert_structural_equal(unwrapped(total, {i: (0, 99)}), tirx.Add(i, tirx.IntImm("int64", 5)))
    assert unwrapped(total, {}).same_as(total)
    simplified = Domain([Axis(i, tirx.IntImm("int64", 100))]).simplify(total)
    assert isinstance(simplified, tirx.Add)
