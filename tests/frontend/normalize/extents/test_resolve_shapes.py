import numpy as np
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from tvm_fusion.frontend.normalize import ResolveShapes


def module():
    """Broadcast and add tensors of a shape that is an input."""
    x = relax.Var("x", relax.TensorType((3, 1), "float32"))
    s = relax.Var("s", relax.TensorType((2,), "int64"))

    def result(emit, *_):
        shape = emit(relax.op.tensor_to_shape(s))
        wide = emit(relax.op.broadcast_to(x, shape))
        twos = emit(relax.op.full(shape, relax.const(2.0, "float32"), "float32"))
        return relax.op.add(wide, twos)

    return main_module([x, s], result)


def test_computed_shape(tmp_path):
    program = tvm_fusion.load(tvm_fusion.compile(module(), "cpu").export(tmp_path / "a"))
    x = np.random.default_rng(0).standard_normal((3, 1)).astype("float32")
    (result,) = program.run({"x": x, "s": np.array([3, 5])}).values()
    np.testing.assert_allclose(result, np.broadcast_to(x, (3, 5)) + 2)


def test_operators_get_extents():
    func = ResolveShapes()(module())["main"]
    (block,) = func.body.blocks
    shapes = [b.value.args[1] for b in block.bindings if _is(b, "relax.broadcast_to")]
    assert [type(s) for s in shapes] == [relax.ShapeExpr]
    assert func.body.blocks[0].bindings[-1].var.ty.shape is not None
    casts = [b for b in block.bindings if isinstance(b, relax.MatchCast)]
    assert len(casts) == 1


def _is(binding, name):
    value = binding.value
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == name
