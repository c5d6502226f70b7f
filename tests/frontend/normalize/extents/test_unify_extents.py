"""Extents that a match_cast compares: one name, in shapes and in numbers."""

from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.frontend.normalize import UnifyExtents


def module():
    """Add the numbers below k to x, of as many elements: k is an input."""
    x = relax.Var("x", relax.TensorType([tirx.Var("n", "int64")], "int64"))
    number = relax.Var("number", relax.TensorType((1,), "int64"))

    def result(emit, *_):
        k, builder = tirx.Var("k", "int64"), relax.BlockBuilder.current()
        builder.match_cast(emit(relax.op.tensor_to_shape(number)), relax.ShapeType([k]))
        counted = emit(relax.op.arange(0, k, 1, "int64"))
        return relax.op.add(x, builder.match_cast(counted, x.ty))

    return main_module([x, number], result)


def forgets(mod):
    """Tell whether the sum has no known shape."""
    mod = relax.transform.CanonicalizeBindings()(mod)
    return "ndim=1" in mod["main"].script().replace("R.Shape(ndim=1)", "")


def test_one_name_for_an_extent():
    mod = UnifyExtents()(module())
    assert "R.arange(0, n" in mod["main"].script()
    assert not forgets(mod)


def test_tvm_still_forgets_the_shape():
    """When this fails, `frontend.normalize.extents.unify` can go."""
    assert forgets(module())
