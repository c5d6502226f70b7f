"""What of an operator's arithmetic wraps around, and what stays index arithmetic."""

import numpy as np
import pytest
from tvm import ir, relax, te, tirx

from tvm_fusion.core.expressions import call_name
from tvm_fusion.core.integer_ranges import range_of
from tvm_fusion.core.integers import NAMES, unwrapped, wrapped, wrapping
from tvm_fusion.ecg.legalize import Legalize
from tvm_fusion.ecg.wrap_integers import wrap_integers
from tvm_fusion.program.domain import Domain
from tvm_fusion.program.stage import Axis


def calls(func):
    """Names of the operators of a function that wrap around."""
    found = []
    ir_calls = []
    from tvm_fusion._tvm.structural import structural_walk

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
        # Nothing can overflow here.
        (lambda x: op.astype(x, "int32"), ["uint16"], []),
        (lambda x: op.floor_divide(x, relax.const(np.int32(3))), ["int32"], []),
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


def test_positions_become_index_arithmetic_again():
    """Templates tell masks and positions by the sums that they are."""
    i = ir.Var("i", ir.PrimType("int64"))
    total = wrapping("add", "int64", i, tirx.IntImm("int64", 5))
    ir.assert_structural_equal(unwrapped(total, {i: (0, 99)}), tirx.Add(i, tirx.IntImm("int64", 5)))
    assert unwrapped(total, {}).same_as(total)
    simplified = Domain([Axis(i, tirx.IntImm("int64", 100))]).simplify(total)
    assert isinstance(simplified, tirx.Add)
