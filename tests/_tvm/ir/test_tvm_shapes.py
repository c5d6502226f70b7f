"""Bugs of TVM 0.27's lowering of shapes that the package works around: each fails when it is gone.

The work-arounds: ``deploy/build/lower.py`` binds computed shapes on their own,
``deploy/memory/destinations.py`` makes no parameter of a tensor whose extents are computed
from elements,
``frontend/onnx_ops/matching.py`` slices where ``2*((h + 1)//2)`` is ``h``.
"""

import subprocess
import sys

import pytest
import tvm
from tvm import relax, tirx


def lowered(params, bindings, result):
    """A function of some bindings, lowered as the virtual machine's."""
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    func = relax.Function(params, body, result.ty, is_pure=False)
    func = func.with_attrs({"global_symbol": "main", "relax.force_pure": True})
    return relax.transform.VMShapeLower()(tvm.IRModule({"main": func}))


def test_a_match_cast_of_a_computed_shape_finds_no_slot():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n,), "float32"))
    shape = relax.Var("shape", relax.ShapeType([m]))
    computed = relax.ShapeExpr([tirx.floordiv(n, 32)])
    cast = relax.MatchCast(shape, computed, relax.ShapeType([m]))
    with pytest.raises(tvm.error.InternalError, match="slot_map_"):
        lowered([x], [cast], shape)
    given = relax.Var("given", relax.ShapeType(list(computed.values)))
    apart = relax.MatchCast(shape, given, relax.ShapeType([m]))
    lowered([x], [relax.VarBinding(given, computed), apart], shape)


def test_a_parameter_of_extents_that_are_bound_later_is_not_checked_later():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    numbers = relax.Var("numbers", relax.ShapeType(ndim=2))
    shape = relax.Var("shape", relax.ShapeType([n, m]))
    cast = relax.MatchCast(shape, numbers, relax.ShapeType([n, m]))
    product = relax.Var("y", relax.TensorType((n * m,), "float32"))
    with pytest.raises(tvm.error.InternalError, match="is not computed"):
        lowered([numbers, product], [cast], product)
    plain = relax.Var("y", relax.TensorType((n,), "float32"))
    lowered([numbers, plain], [cast], plain)


RECURSES = """
import tvm
from tvm import relax, tirx

h = tirx.Var("h", "int64")
x, y = (relax.Var(name, relax.TensorType((h,), "float32")) for name in "xy")
even = relax.Var("z", relax.TensorType((2 * tirx.floordiv(h + 1, 2),), "float32"))
block = relax.BindingBlock([relax.MatchCast(y, even, y.ty)])
func = relax.Function([x, even], relax.SeqExpr([block], y), y.ty)
mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
print("made", flush=True)
relax.transform.CanonicalizeBindings()(mod)
"""


@pytest.mark.slow
def test_a_match_cast_to_an_extent_that_its_value_is_made_of_ends_the_process():
    done = subprocess.run([sys.executable, "-c", RECURSES], capture_output=True, text=True)
    assert done.stdout == "made\n"
    assert done.returncode < 0
